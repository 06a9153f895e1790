"""Models by the names that hubs, logs and people give them.

Quantisation, file format and tuning leave the architecture as it is, so that those words are left
out of a name; so are releases of which the table has one only. Fine-tunes under names of their own
stand in ``model_aliases.csv``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from gputop_analysis.catalog.other_kinds import kind_of
from gputop_analysis.data import table

SUGGESTIONS = 5
SAME_PARAMETERS = 0.05
"""Share by which millions in a name may differ from the model's own, which may tie its head."""
_QUANTISED = re.compile(
    r"[-. ](?:unsloth|bnb|[348]-?bits?|int[48]|nf4|(?:nv|mx)?fp[48]|fp16|bf16|f16|f32"
    r"|w\d+(?:a\d+)?|g(?:32|64|128)|sym|gptq|awq|gguf|ggml(?:v\d)?|exl2|mlx|qat|i?q\d(?:[-.]?[k01s](?:-?[msl])?)?"
    r"|dynamic|turbo|quantized|quant|sharded|autoround|hqq|eetq|aqlm|imatrix"
    r"|safetensors|hf|fast)(?=$|[-. ])"
)
_FOUR_BIT = re.compile(r"[-. ](?:bnb|4-?bits?|int4|nf4|gptq|awq)(?=$|[-. ])")
_TUNED = re.compile(
    r"\b(?:meta|hf|base|instruct|inst|chat|it|pt|sft|dpo|orpo|kto|rlhf|grpo|preview|thinking"
    r"|reasoning|embedding|reranker"
    r"|deduped|abliterated|uncensored|latest|\d+k|1m|mt|mnli|lora|qlora|adapter|peft|ft"
    r"|finetuned?|fine-tuned?|full|merged"
    r"|epochs?-?\d+(?:\.\d+)?|pretrained|pretrain|model|weights|ckpt|checkpoint|release|ner|squad2?|whole-word-masking)\b"
)
_PART = re.compile(r"-\((?:text|multimodal)\)")
"""What a row of the table counts of a model that sees."""
_RELEASE = re.compile(r"\bv\d+(?:\.\d+)?\b")
_DATE = re.compile(r"(?<![\d.])\d{4}(?![\d.a-z])")
_FAMILY = r"(?P<family>llama)"
_SIZE = r"(?P<size>\d+(?:\.\d+)?[bm])"
_SIZED = re.compile(r"(?<![a-z\d])\d+(?:\.\d+)?[bm](?![a-z\d])")
_FOLDERS = (
    r"checkpoint(?:-\d+)?|ckpt(?:-\d+)?|epoch-?\d+|step-?\d+|final|best|last|output|merged|hf"
    r"|model|original|snapshots?"
)
"""Folders inside that of a model."""
_OTHER_SHAPE = re.compile(
    r"llava|[-_]vl\b|video|vision|audio|omni|\bmoe\b|eagle|draft|medusa"
    r"|chinese|korean|japanese|distil"
    r"|distill|prune|minitron|extended|merge[^d]|\d+x\d|mini(?:cpm|gpt)|expand|tiny|nano|lite"
    r"|reward|\brm\b"
    r"|speech|\btts\b|\basr\b|vocab|mamba|hybrid|linear|\bvla\b|\bocr\b|upscal|depth"
    r"|width|layers?\b|sliced"
    r"|speculat|\bmtp\b|\bclip\b|classif|bitnet|1\.58|upcycl"
    r"|passthrough|openvla|geochat|tokenizer"
    r"|\b(?:jp|ja|ko|kr|tw|zh|cn)\b|vila\b"
)
"""Words of models that have another shape than the one that their name ends with."""


@dataclass(frozen=True, slots=True)
class ModelName:
    """The row of ``models.csv`` that a name means."""

    row: str
    note: str = ""
    """Which model was taken where the name leaves it open; empty where it does not."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """What is left of a name without its tuning."""

    core: str
    release: str
    date: str

    def may_be(self, other: _Reading) -> bool:
        """Whether nothing that both say differs."""
        pairs = ((self.release, other.release), (self.date, other.date))
        return all(not part or not another or part == another for part, another in pairs)


def match_name(name: str) -> ModelName:
    """The model that a name of the table, a Hugging Face id, a path or a line of a log means.

    Raises:
        LookupError: none; the message lists the nearest.
    """
    plain = _plain(name)
    matched = _matched(name, plain)
    notes = [note for note in (matched.note, _of_four_bits(plain)) if note]
    return ModelName(matched.row, "; ".join(notes))


def _matched(name: str, plain: str) -> ModelName:
    for spelling in dict.fromkeys((plain, _last(plain), _unquantised(_last(plain)))):
        if spelling in _exact():
            return ModelName(_exact()[spelling])
    for reader in (
        _by_alias,
        _by_core,
        _by_alias_of_any_release,
        _by_major,
        _by_family,
        _by_ending,
        _by_beginning,
        _by_ends,
        _by_folder,
        _by_parameters,
    ):
        if matched := reader(name, plain):
            return matched
    return _raise(name)


def _by_alias(name: str, plain: str) -> ModelName | None:
    return _aliased(name, plain, _reading(plain).release)


def _by_alias_of_any_release(name: str, plain: str) -> ModelName | None:
    return _aliased(name, plain, "")


def _aliased(name: str, plain: str, release: str) -> ModelName | None:
    core = _reading(plain).core
    for alias, row, why in _aliases():
        if (alias.core, alias.release) == (core, release):
            return ModelName(row, f"{name.strip()} is taken as {row}: {why}")
    return None


def _by_core(name: str, plain: str) -> ModelName | None:
    reading = _reading(plain)
    rows = list(
        dict.fromkeys(
            row for row, other in _readings().get(reading.core, ()) if reading.may_be(other)
        )
    )
    if not rows:
        return None
    if rows[1:]:
        alternatives = f"{name.strip()} is taken as {rows[0]}; there is also {', '.join(rows[1:])}"
    else:
        alternatives = ""
    return ModelName(rows[0], alternatives)


def _by_major(name: str, plain: str) -> ModelName | None:
    """``llama-3-405b`` as the one 3.x of that size; ``tinyllama`` as the one of that name."""
    core = _reading(plain).core
    major = re.fullmatch(r"([a-z]+)(\d)(?:\.0)?(\d{1,3}(?:\.\d+)?[bm])", core)
    pattern = re.compile(
        rf"{major[1]}{major[2]}\.\d{major[3]}" if major else rf"{re.escape(core)}\d+(?:\.\d+)?[bm]"
    )
    if len(core) < 5:
        return None
    rows = {
        row
        for other, readings in _readings().items()
        if pattern.fullmatch(other)
        for row, _ in readings
    }
    if len(rows) != 1:
        return None
    row = rows.pop()
    return ModelName(row, f"{name.strip()} is taken as {row}, the only one of that kind")


def _by_family(name: str, plain: str) -> ModelName | None:
    """``llama-8b`` and ``8B llama`` as the newest of that size; of other families the first release
    is called so.
    """
    bare = _TUNED.sub("", _unquantised(_last(plain))).strip("-. ")
    if _OTHER_SHAPE.search(bare):
        return None
    match = re.fullmatch(rf"{_FAMILY}-?{_SIZE}", bare) or re.fullmatch(rf"{_SIZE}-{_FAMILY}", bare)
    if match is None:
        return None
    pattern = rf"{match['family']}-?\d+(?:\.\d+)?-{re.escape(match['size'])}"
    rows = [row["name"] for row in table("models.csv") if re.fullmatch(pattern, row["name"])]
    if not rows:
        return None
    alternatives = ""
    if rows[1:]:
        alternatives = f"; there is also {', '.join(rows[:-1])}"
    return ModelName(rows[-1], f"{name.strip()} is taken as {rows[-1]}, the newest{alternatives}")


def _by_ending(name: str, plain: str) -> ModelName | None:
    """``Hermes-3-Llama-3.1-8B`` as a fine-tune of what its name ends with."""
    words = _unquantised(_last(plain)).split("-")
    if _OTHER_SHAPE.search(plain):
        return None
    for start in range(1, len(words)):
        ending = "-".join(words[start:])
        is_named = re.search(r"[a-z]{4}", ending) or _head(words[start]) in _heads()
        if not is_named or re.search(r"\d[bm]\b", ending) is None:
            continue
        if matched := _by_core(name, ending) or _by_alias(name, ending):
            why = f"{name.strip()} is taken as {matched.row}, which its name says it is made of"
            return ModelName(matched.row, why)
    return None


def _by_beginning(name: str, plain: str) -> ModelName | None:
    """``Llama-3-8B-Instruct-Gradient-1048k`` as a fine-tune of what its name begins with."""
    words = _unquantised(_last(plain)).split("-")
    if _OTHER_SHAPE.search(plain):
        return None
    for end in range(len(words) - 1, 0, -1):
        beginning, rest = "-".join(words[:end]), "-".join(words[end:])
        if re.search(r"\d(?:\.\d+)?[bm]\b", beginning) is None or _SIZED.search(rest):
            continue
        if (matched := _by_core(name, beginning)) and not _families() & set(words[end:]):
            why = f"{name.strip()} is taken as {matched.row}, which its name begins with"
            return ModelName(matched.row, why)
    return None


def _by_ends(name: str, plain: str) -> ModelName | None:
    """``Llama-3-Groq-8B-Tool-Use`` as a fine-tune of the model of that release and size."""
    words = _unquantised(_last(plain)).split("-")
    sizes = [word for word in words if re.fullmatch(_SIZE, word)]
    release = re.match(r"([a-z]{4,}-?\d(?:\.\d+)?)(?=-)", _last(plain))
    if _OTHER_SHAPE.search(plain) or len(sizes) != 1 or release is None:
        return None
    named = _families() & set(words[1:])
    matched = None if named else _by_core(name, f"{release[1]}-{sizes[0]}")
    if matched is None:
        return None
    why = f"{name.strip()} is taken as {matched.row}, the one of that release and size"
    return ModelName(matched.row, why)


def _by_folder(name: str, plain: str) -> ModelName | None:
    """``llama-2-7b/checkpoint-500`` as the model of the folder above."""
    above, _, last = plain.rpartition("/")
    if not above or re.fullmatch(_FOLDERS, last) is None:
        return None
    try:
        return _matched(name, above)
    except LookupError:
        return None


def _by_parameters(name: str, plain: str) -> ModelName | None:
    """``flan-t5-783m`` as the one Flan-T5 of so many parameters."""
    words = _unquantised(_last(plain)).split("-")
    if _OTHER_SHAPE.search(plain) or not re.fullmatch(r"\d{3}m", words[-1]):
        return None  # of billions, several models have about so many
    _, wanted = _family_and_size(words[-1])
    for start in range(len(words) - 1):
        family = "-".join(words[start:-1])
        sized = [
            row["name"]
            for row in table("models.csv")
            if row["name"].startswith(family)
            and abs(_parameters(row) / wanted - 1) <= SAME_PARAMETERS
        ]
        if len(sized) == 1 and _head(words[start]) in _heads():
            why = f"{name.strip()} is taken as {sized[0]}, the one of so many parameters"
            return ModelName(sized[0], why)
    return None


def _parameters(row: dict[str, str]) -> float:
    return float(row["total_params_official"] or row["total_params_computed"])


def _of_four_bits(plain: str) -> str:
    if _FOUR_BIT.search(plain):
        return (
            "its weights count in 16 bits where they are trained, in 4 as the frozen base of "
            "adapters (--lora or --qlora)"
        )
    return ""


def has_four_bits(name: str) -> bool:
    """Whether a name is that of weights in 4 bits, as ``TheBloke/Llama-2-7B-GPTQ``."""
    return _FOUR_BIT.search(_plain(name)) is not None


def _raise(name: str) -> ModelName:
    if other_kind := kind_of(name):
        raise LookupError(
            f"no model {name!r} in the catalog: {other_kind.name}, which "
            f"no formula covers; a trace does: {other_kind.command}"
        )
    near = ", ".join(nearest_models(name))
    raise LookupError(
        f"no model {name!r} in the catalog; the nearest names are {near}{_by_its_config(name)}"
    )


def _by_its_config(name: str) -> str:
    """What answers for a model that is not in the catalog."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name.strip()):
        return "; for a model of your own: gputop estimate train.py"
    return "; with its config.json in FOLDER: gputop estimate --model FOLDER"


def hf_ids() -> dict[str, str]:
    """Hugging Face ids by name, of the models that have one."""
    return {
        row["name"]: row["hf_id"]
        for row in table("models.csv")
        if re.fullmatch(r"\S+/\S+", row["hf_id"])
    }


def nearest_models(name: str, count: int = SUGGESTIONS) -> tuple[str, ...]:
    """Models of the kind of ``name``: families written most alike, then of sizes near its own."""
    from difflib import SequenceMatcher  # slow to import, and only a mistake needs it

    family, size = _family_and_size(_unquantised(_last(_plain(name))))

    def far(row: dict[str, str]) -> float:
        other, _ = _family_and_size(_plain(row["name"]))
        parameters = _parameters(row)
        unlike = 1 - SequenceMatcher(None, family, other, autojunk=False).ratio()
        return 6 * unlike + (abs(math.log2(size / parameters)) if size else 1.0)

    return tuple(row["name"] for row in sorted(table("models.csv"), key=far)[:count])


def _family_and_size(plain: str) -> tuple[str, float]:
    """``qwen2.5-7b`` as ``qwen2.5`` and 7e9; 0 parameters where the name says none."""
    size = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)([bm])(?![a-z])", plain)
    if not size:
        return _TUNED.sub("", plain).strip("-. "), 0.0
    family = _TUNED.sub("", plain[: size.start()]).strip("-. ")
    unit = 1e9 if size[2] == "b" else 1e6
    return family, float(size[1]) * unit


@cache
def _exact() -> dict[str, str]:
    index: dict[str, str] = {}
    for written, row in _written():
        index.setdefault(written, row)
    return index


@cache
def _readings() -> dict[str, list[tuple[str, _Reading]]]:
    index: dict[str, list[tuple[str, _Reading]]] = {}
    for written, row in _written():
        reading = _reading(written)
        index.setdefault(reading.core, []).append((row, reading))
    return index


@cache
def _heads() -> frozenset[str]:
    """What models are called before their release and size, as ``llama`` and ``yi``."""
    return frozenset(_head(row["name"]) for row in table("models.csv"))


def _head(word: str) -> str:
    return re.split(r"[^a-z]", word, maxsplit=1)[0]


def _families() -> frozenset[str]:
    """Those that are no part of other words."""
    return frozenset(head for head in _heads() if len(head) > 3)


@cache
def _aliases() -> tuple[tuple[_Reading, str, str], ...]:
    """``(name, row, why)`` of models that have the architecture of another."""
    rows = table("model_aliases.csv")
    return tuple((_reading(_plain(row["written"])), row["name"], row["why"]) for row in rows)


def _written() -> Iterator[tuple[str, str]]:
    """``(name, row)`` of every way that the table writes a model, plain; short names come first."""
    for row in table("models.csv"):
        yield _plain(row["name"]), row["name"]
    for row, called in hf_ids().items():
        yield _plain(called), row
        yield _last(_plain(called)), row


def _plain(name: str) -> str:
    name = re.sub(r"/snapshots/[0-9a-f]{6,}$", "", name.strip().lower().rstrip("/"))
    name = re.sub(r"(?:/config\.json|\.(?:gguf|safetensors|bin|ckpt|pt))$", "", _bare(name))
    name = re.sub(r"^(?:(?:us|eu|apac)\.)?[a-z]+\.(?=[a-z]{3,})|(?<=\w)-v\d+:\d+$", "", name)
    name = re.sub(r"\bllama-?3-?([1-4])(?=[-_ ])", r"llama-3.\1", name)
    name = re.sub(r"\bllama[-_ ]?v([23](?:\.\d)?)(?=[-_ ])", r"llama-\1", name)
    name = re.sub(rf"(?<![a-z\d])l([23](?:\.[1-3])?)-(?={_SIZE})", r"llama-\1-", name)
    name = re.sub(r"(?<![\d.])(\d)b(\d)(?!\d)", r"\1.\2b", name)
    name = re.sub(rf"(?<=\d)_(?={_SIZE}(?![a-z\d]))", "-", name)
    name = re.sub(r"(?<=\d)_(?=\d)", ".", name)
    name = re.sub(r"(?<=[a-z]{4})v(?=\d(?:\.\d+)?(?:$|[-_/]))", "-v", name)
    return re.sub(r"[\s_:]+", "-", name)


def _bare(name: str) -> str:
    """Without the hub, its cache's folder or a well-known owner that a file name begins with."""
    return re.sub(
        r"^(?:hf-hub:|hf:|hf\.co/|huggingface\.co/|thebloke_)", "", name.rpartition("--")[2]
    )


def _last(plain: str) -> str:
    return plain.rpartition("/")[2]


def _unquantised(plain: str) -> str:
    while (shorter := _QUANTISED.sub("", plain)) != plain:
        plain = shorter
    return plain


def _reading(plain: str) -> _Reading:
    bare = _TUNED.sub("", _unquantised(_PART.sub("", _last(plain))))
    release, date = _RELEASE.search(bare), _DATE.search(bare)
    core = re.sub(r"[^a-z0-9.]", "", _DATE.sub("", _RELEASE.sub("", bare))).strip(".")
    return _Reading(core, release[0] if release else "", date[0] if date else "")
