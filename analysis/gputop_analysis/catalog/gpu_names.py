"""GPUs by the names that drivers, logs and people give them.

A name is read as facts: the chip, its form factor, memory and power, how many of them. A word that
is none of these and says nothing by itself (``GPU``, ``NVIDIA``) names another part, and the name
is refused: an RTX 4080 SUPER is no RTX 4080, a slice of an A100 no A100.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cache

from gputop_analysis.catalog import gpu_text
from gputop_analysis.catalog.gpus import GpuSpec, gpus
from gputop_analysis.catalog.model_names import match_name
from gputop_analysis.catalog.nearest import most_alike
from gputop_analysis.data import table

MEMORY_TOLERANCE = 0.07
"""Share by which a name's memory may differ from the data sheet: a B200 of 180 GB, sold as 192."""
POWER_TOLERANCE = 0.02
SUGGESTIONS = 5
_REFUSED = {
    "a slice of a GPU (MIG), which is no GPU of the catalog": r"\bmig\b|\b\dg\.\d+gb\b",
    "a laptop's or Max-Q part, which is slower than the card of that name": (
        r"\b(?:laptop|notebook|mobile|embedded|max-?q)\b|笔记本|筆電|移动|ノート|노트북"
    ),
    "a chip of Apple's, none of which runs CUDA": r"\bapple\b|\bm\d (?:pro|max|ultra)\b",
    "a virtual GPU, a part of one": r"\b(?:grid|vgpu)\b|\b[a-z]\d+[a-z]?-\d+[qcab]\b",
}
_NEUTRAL = frozenset(
    (  # noqa: SIM905  (a word a line would be two pages)
        "nvidia amd intel google instinct tesla geforce quadro radeon rtx gtx grace "
        "gpu gpus graphics card cards accelerator accelerators device devices superchip "
        "tensor core cores data center datacenter edition generation vram memory ram "
        "hgx dgx baseboard board module mcm oam ac mba vf nvlink "
        "unified gcd one "
        "の カード メモリ 显卡 顯卡 显存 顯存 卡 各 "
        "lc standard dedicated instance spot "
        "cloud colab kaggle aws gcp azure lambda runpod "
        "each per single node nodes machine machines with of on a the x "
        "corporation controller desktop developer kit jetson founders fe"
    ).split()
)
"""Words that say nothing of which part it is."""
_AROUND = frozenset(("nvidia", "amd", "intel", "gpu", "gpus"))
"""Words around a driver's name that are no part of it."""
_OF_MAKER = {
    "AMD": frozenset(("rx", "pro", "ai")),
    "Intel": frozenset(("ai", "hpu", "habana", "arc", "pro")),
}
"""Words that are part of a name with one maker and say another part with the others."""
_MAKERS = re.compile(r"^(?:nvidia|tesla|amd|instinct|geforce)[\s_-]+")
_FORMS = {"sxm": "SXM", "hgx": "SXM", "pcie": "PCIe", "oam": "OAM"}
"""Words for a form factor, and how it begins in the table; a board called HGX has SXM modules."""
_EDITIONS = ("nvl", "server", "workstation")
"""Words that tell parts of one chip apart by their names in the table."""
_SPELLINGS = (
    (r"\bpci(?:[- ]?e(?:xpress)?)?\b", "pcie"),
    (r"(?<=[a-z0-9])(sxm\d?|pcie|nvl|oam)\b", r" \1"),
    (r"\bsxm\d\b", "sxm"),
    (r"(?<=[ ,+/])(\d+)x(?=[a-z])", r"\1 x "),
    (r"\b(nvidia|tesla|quadro|geforce)(?=[a-z]+\d)", r"\1 "),
    (r"\b(rtx|gtx|gaudi|tpu)(?=[a-z]?\d)", r"\1 "),
    (r"\ba(\d{4})[- ]?ada\b", r"\1 ada"),  # there is no A6000 of Ada
    (r"\b(\d{4})(ti|super|ada|d|xtx|xt|gre)\b", r"\1 \2"),
    (r"\bti(super)\b", r"ti \1"),
    (r"\b(mi|[abhlmptv]) ?-?(\d{2,3}[a-z]?)\b", r"\1\2"),
)
_SYSTEMS_OF_EIGHT = frozenset(("a100", "h100", "h800", "h200", "b200", "b300"))
"""Chips of which a server that is called DGX has eight."""


@dataclass(frozen=True, slots=True)
class GpuMatch:
    """The GPU that a name means."""

    spec: GpuSpec
    written: str
    count: int = 1
    """How many the name says, as the 8 of ``8xA100``."""
    others: tuple[GpuSpec, ...] = ()
    """Parts that the name could mean as well."""

    @property
    def note(self) -> str:
        """Which part was taken where the name leaves it open; empty where it does not."""
        names = ", ".join(spec.name for spec in self.others)
        if names:
            return f"{self.written.strip()} is taken as the {self.spec.name}; there is also {names}"
        return ""


def gpu(name: str) -> GpuSpec:
    """The GPU that a name means; see ``match_gpu``."""
    return match_gpu(name).spec


def find_gpu(name: str) -> GpuSpec | None:
    """The GPU that a driver's name means; None for one that the table does not have."""
    try:
        return match_gpu(name).spec
    except LookupError:
        return None


def match_gpu(name: str) -> GpuMatch:
    """The GPU that a name of the table, a driver's name, or a line of a log or of a person means.

    Raises:
        LookupError: none, or several; the message says why and lists the nearest.
    """
    if exact := _by_exact_name().get(_plain(name)):
        return GpuMatch(exact, name)
    text = gpu_text.plain(name)
    if exact := _by_exact_name().get(_plain(text)):
        return GpuMatch(exact, name)
    if rented := _rented(name):
        return rented
    if counted := _counted(name, text):
        return counted
    alias = _by_alias().get(_letters(name))
    for reason, pattern in _REFUSED.items():
        if alias is None and re.search(pattern, text):
            raise _unknown(name, f" ({reason})")
    try:
        read = _read(name, text)
    except LookupError:
        if aliased := _aliased(name, text):
            return aliased
        raise
    return GpuMatch(alias, name) if alias not in (None, read.spec) else read


def _rented(name: str) -> GpuMatch | None:
    """The GPUs of a server or rented machine: ``p4d.24xlarge``, ``2x ml.p5.48xlarge``."""
    count, text = gpu_text.counted(name.lower())
    machine = re.sub(r"\b(?:aws|azure|gcp|ec2|instances?|vm)\b|\bml\.|^standard_", "", text.strip())
    rented = _instances().get(_letters(machine)) or _instances().get(_letters(name))
    if rented is None or count == 0:
        return None
    spec, devices = rented
    return GpuMatch(spec, name, devices * (count if _letters(machine) in _instances() else 1))


def _counted(name: str, text: str) -> GpuMatch | None:
    """Several of what a driver calls so, or one with its memory: ``4x NVIDIA GH200 120GB``."""
    facts = gpu_text.facts(text)
    for memory, spelling in ((0.0, gpu_text.counted(text)[1]), (facts.memory_gb, facts.words)):
        words = (word for word in re.split(r"[\s,()]+", spelling) if word not in _AROUND)
        spec = _by_exact_name().get(_plain(" ".join(words)))
        if facts.count and spec and _of_memory([spec], memory):
            return GpuMatch(spec, name, facts.count)
    return None


def _aliased(name: str, text: str) -> GpuMatch | None:
    """What the table calls so besides, as a whole or without count and memory."""
    said = gpu_text.facts(text)
    bare = " ".join(word for word in re.split(r"[\s,:()]+", said.words) if word not in _AROUND)
    for written, count, memory in ((name, 1, 0.0), (bare, said.count, said.memory_gb)):
        spec = _by_alias().get(_letters(written))
        if spec and count and _of_memory([spec], memory):
            return GpuMatch(spec, name, count)
    return None


def _read(name: str, text: str) -> GpuMatch:
    """The GPU of a name that is read as facts.

    Raises:
        LookupError: a word or fact of it fits no GPU of that chip, or no chip is named.
    """
    facts = gpu_text.facts(text)
    if not facts.count:
        raise _unknown(name, " (it says no one count above 0)")
    words = _words(name, facts)
    able = _chip(name, words, facts.memory_gb)
    chip = able[0].chip
    if facts.count == 1 and "dgx" in words and chip in _SYSTEMS_OF_EIGHT:
        facts = replace(facts, count=8)
    longer_chips = _longer_chips(chip) if gpu_text.is_cut(text) else []
    if longer_chips:
        longer = " or ".join(longer_chip.upper() for longer_chip in longer_chips)
        raise _unknown(name, f" (it is cut: {longer} begins so, too)")
    unexplained = _unexplained(words, able)
    if unexplained:
        raise _unknown(name, f" ({unexplained[0]!r} makes it another part than the {chip.upper()})")
    kinds = [word for word in words if word in _FORMS or word in _EDITIONS]
    able = _of_kind(able, kinds)
    if not able:
        raise _unknown(name, f" (no {chip.upper()} as {kinds[-1].upper()})")
    memory, able = _of_said_memory(able, facts)
    if not able:
        raise _unknown(name, f" (no {chip.upper()} of {facts.memory_gb:g} GB)")
    able = [spec for spec in able if _has_power(spec, facts.power_w)] or able
    spec = next((spec for spec in able if _is_default(spec, memory)), able[0])
    others = tuple(other for other in able if other is not spec)
    return GpuMatch(spec, name, facts.count, others)


def _words(name: str, facts: gpu_text.NameFacts) -> list[str]:
    """The words of a name that are no facts, in one spelling."""
    text = re.sub(r"([^\W\d_a-z]+)", r" \1 ", facts.words)  # other letters stand apart
    for pattern, spelling in _SPELLINGS:
        text = re.sub(pattern, spelling, text)
    words = re.findall(r"[a-z0-9]+|[^\W\d_]+", text)
    return [_singular(word, name, facts.count) for word in words]


def _has_power(spec: GpuSpec, watts: float) -> bool:
    if not spec.power_w:
        return False
    return abs(watts / spec.power_w - 1) <= POWER_TOLERANCE


def _of_said_memory(able: list[GpuSpec], facts: gpu_text.NameFacts) -> tuple[float, list[GpuSpec]]:
    """The memory of one GPU that a name says, and the parts that have it; what is said beside
    several may be the memory of all.
    """
    if fitting := _of_memory(able, facts.memory_gb):
        return facts.memory_gb, fitting
    gb_each = facts.memory_gb / facts.count
    return gb_each, _of_memory(able, gb_each) if facts.count > 1 else []


def _singular(word: str, name: str, count: int) -> str:
    """``A100s`` as ``a100``; a V100S or L40S only where it is written so, or as one."""
    chips = {spec.chip for spec in gpus()}
    if not word.endswith("s") or word[:-1] not in chips:
        return word
    if f"{word[:-1]} super" in chips and count == 1:
        return word  # a 4080S is a SUPER
    plural = re.search(rf"\b{re.escape(word[:-1].upper())}s\b", name) is not None
    if word not in chips or (count > 1 and plural):
        return word[:-1]
    return word


def _chip(name: str, words: list[str], memory: float) -> list[GpuSpec]:
    """The GPUs of the one chip that is named, or whose number is, where its memory tells which:
    the RTX 6000 of 24 GB is the Quadro, that of 48 GB the Ada.
    """
    named = _chips_in(words)
    if len(named) > 1:
        chips = " and ".join(sorted(chip.upper() for chip in named))
        raise _unknown(name, f" (it names {chips}: say one)")
    if not named and memory and "rtx" in words:
        named = _chips_of_number(words, memory)
    if len(named) != 1:
        raise _unknown(name, "")
    return [spec for spec in gpus() if spec.chip == named[0]]


def _chips_in(words: list[str]) -> list[str]:
    """The chips whose words are all there, but for those that are a part of another's name."""
    present = {spec.chip for spec in gpus() if set(spec.chip.split()) <= set(words)}
    chips = []
    for chip in present:
        chip_words = chip.split()
        is_part = any(set(chip_words) < set(other.split()) for other in present)
        # or written once more by itself: ``3090 / 3090 Ti``
        if not is_part or all(words.count(word) > 1 for word in chip_words):
            chips.append(chip)
    return chips


def _chips_of_number(words: list[str], memory: float) -> list[str]:
    """The chips whose four digits are among the words, and that have the memory."""
    numbered = []
    for spec in gpus():
        if not set(re.findall(r"\b\d{4}\b", spec.chip)).isdisjoint(words):
            numbered.append(spec)
    if not numbered:
        return []
    return list(dict.fromkeys(spec.chip for spec in _of_memory(numbered, memory)))


def _longer_chips(chip: str) -> list[str]:
    """Chips whose names begin with another's, as that of the 2080 Ti."""
    return sorted({spec.chip for spec in gpus() if spec.chip.startswith(f"{chip} ")})


def _unexplained(words: list[str], chip: list[GpuSpec]) -> list[str]:
    maker = _OF_MAKER.get(chip[0].vendor, frozenset())
    explained = {*chip[0].chip.split(), *_NEUTRAL, *_FORMS, *_EDITIONS, *maker}
    if len(chip) == 1:
        explained.update(re.findall(r"[a-z0-9]+", " ".join(chip[0].aliases).lower()))
    explained.update(chip[0].architecture.lower().split())
    if chip[0].architecture == "Ada":
        explained.add("lovelace")
    return [word for word in words if word not in explained]


def _of_kind(able: list[GpuSpec], words: list[str]) -> list[GpuSpec]:
    for word in words:
        if word in _EDITIONS:
            named = [spec for spec in able if word in spec.name.lower()]
            # "server" is said of any data center's card
            able = named or ([] if word == "nvl" else able)
        elif word == "hgx" and not any(spec.form_factor.startswith("SXM") for spec in able):
            continue
        else:
            able = [spec for spec in able if spec.form_factor.startswith(_FORMS[word])]
            able = [spec for spec in able if "NVL" not in spec.name or "nvl" in words] or able
    return able


def _of_memory(able: list[GpuSpec], memory: float) -> list[GpuSpec]:
    """Those whose memory is nearest, within the tolerance; a card of two devices may be named by
    all of its own.
    """
    if not memory:
        return able

    def off(spec: GpuSpec) -> float:
        card = spec.memory_gb * spec.devices
        nearest = min(abs(memory / size - 1) for size in (spec.memory_gb, spec.usable_gib, card))
        if memory > spec.usable_gib:
            return nearest
        return abs(memory / spec.usable_gib - 1)

    smallest = min(map(off, able))
    if smallest <= MEMORY_TOLERANCE:
        return [spec for spec in able if off(spec) == smallest]
    return []


def _is_default(spec: GpuSpec, memory: float) -> bool:
    """Whether an alias makes this the part meant by the chip's name, or chip and memory."""
    aliases = {_letters(alias) for alias in spec.aliases}
    with_memory = _letters(f"{spec.chip}{memory:g}gb")
    return _letters(spec.chip) in aliases or (memory > 0 and with_memory in aliases)


@cache
def _by_exact_name() -> dict[str, GpuSpec]:
    """GPUs by what means no other: the table's names and the drivers'."""
    index = {_plain(spec.name): spec for spec in gpus()}
    return index | {driver: spec for spec in gpus() for driver in spec.driver_names}


@cache
def _instances() -> dict[str, tuple[GpuSpec, int]]:
    """GPUs of servers and rented machines, and how many one has."""
    named = {spec.name: spec for spec in gpus()}
    rows = table("instances.csv")
    return {_letters(row["written"]): (named[row["gpu"]], int(row["count"])) for row in rows}


@cache
def _by_alias() -> dict[str, GpuSpec]:
    index: dict[str, GpuSpec] = {}
    for spec in gpus():
        for alias in (spec.name, *spec.aliases):
            index.setdefault(_letters(alias), spec)
    return index


def _plain(name: str) -> str:
    """A name without its maker, in lower case, with single spaces."""
    name = " ".join(name.lower().split())
    while (shorter := _MAKERS.sub("", name)) != name:
        name = shorter
    return name


def _letters(name: str) -> str:
    return "".join(letter for letter in _plain(name) if letter.isalnum() or letter == ".")


def _unknown(name: str, why: str) -> LookupError:
    try:
        model = match_name(name).row
    except LookupError:
        model = ""
    if model:
        return LookupError(
            f"{name!r} is a model, and no GPU: gputop models {model}, or gputop estimate --model "
            f"{model}"
        )
    return LookupError(
        f"no GPU {name!r} in the catalog{why}; the nearest names are "
        f"{', '.join(nearest_gpus(name))}"
    )


def nearest_gpus(name: str, count: int = SUGGESTIONS) -> tuple[str, ...]:
    """GPUs of the kind of ``name``: the same series, then numbers near its own; by letters where it
    has no number.
    """
    named = re.search(
        r"(?:^|[^a-z0-9])([a-z]*)[ -]?(\d{1,4})(?!\s*g?b)", re.sub(r"^\d+\s*x\s*", "", name.lower())
    )
    short = {_short(spec): spec for spec in gpus()}
    if named is None:
        return most_alike(name, tuple(short), count)

    def far(spec: GpuSpec) -> tuple[float, bool]:
        chip = re.search(r"\b([a-z]{0,3})(\d+)", spec.chip)
        if chip is None:
            return (math.inf, True)
        series = "" if named[1] in ("rtx", "gtx") else named[1]
        distance = abs(math.log2(max(int(named[2]), 1) / int(chip[2])))
        longer = _letters(name).startswith(spec.chip)
        return (0.0 if longer else distance + 4 * (chip[1] != series), not _is_default(spec, 0.0))

    return tuple(sorted(short, key=lambda written: far(short[written]))[:count])


def _short(spec: GpuSpec) -> str:
    return spec.aliases[0] if spec.aliases else spec.name
