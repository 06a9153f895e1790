"""What is written around the name of a GPU: counts, memory, power, and what logs and lists of
devices put before and after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBERS = {
    "one": 1,
    "single": 1,
    "two": 2,
    "dual": 2,
    "three": 3,
    "four": 4,
    "quad": 4,
    "six": 6,
    "eight": 8,
    "sixteen": 16,
}
_COUNTERS = "卡张張块塊枚基"
_WRITTEN_NUMBERS = str.maketrans("单單双雙两兩三四六八", "1122223468")
_NARROW = str.maketrans("（），：／＊", "(),:/*")
_INSIDE = (
    r"name='([^']+)'",  # torch.cuda.get_device_properties
    r"nvidia corporation[^\[]*\[([^\]]+)\]",  # lspci
    r"amd/ati\][^\[]*\[([^\]]+)\]",
    r"^(?:cuda|xpu|hip)(?::\d+)?\s*\((.+)\)$",
)
"""Where a log has the name inside something else."""
_MEMORY_ALONE = re.compile(r"\b((?:gpu:)?[ahv]\d{2,3})[_-](\d{2})(?![\dg])\b")
"""A chip and its memory without a unit, as the constraints of clusters have it: ``a100_80``."""
_NOISE = re.compile(
    # Slurm
    r"^-{1,2}(?:gres|gpus(?:-per-(?:node|task))?|constraint|[cg])[= ]|\bgres[/:]|\(s:[\d,-]+\)"
    r"|^\|\s*\d+\s|\s(?:on|off)\s*\|.*$"  # a row of nvidia-smi
    r"|^(?:gpu|device)\s*\d+\s*:|^gpu(?=\s\d+x)|,?\s*compute capability [\d.]+|\bsm[_ ]?\d{2,3}\b"
    r"|\(uuid[^)]*\)|\(gfx[^)]*\)|\bgfx\w+|\bcuda:\d+|\(rev \w+\)|\(\d+ nodes?\)"
    r"|[®™]|\((?:r|tm|kaggle|colab)\)"
    r"|\bhbm\d?\w?|\bg?ddr\d\w?|\bgen\s?\d\b|\bnvl\d+\b"
    r"|\b(?:ga10\d|gp10\d|gv10\d|tu1\d\d|ad10\d|gm\d{3}|gk\d{3}|gh100|gb20[2-7])[a-z]{0,3}\b"
)
_TIMES = r"\s*[x×*]\s*"
_COUNT_INSIDE = (
    r"-(\d{1,2})(?=-\d{2,3}g$)",  # Scaleway's machines
    r"(?<!x )(?<!gaudi )\b(\d{1,5})[- ]gpus?\b",
    rf"\b(\d{{1,5}}){_TIMES}(?=\d+\s*gi?b?\b)",
    r"(?:(?<=[a-z] )|\()(\d{1,3})\s?[x×](?=\s?[a-z])",
    r"(?<=\w)\s*[x×]\s*(\d{1,3})(?=\s*\()",
    rf"(?:[x×*]\s*)?(\d{{1,5}})\s*[{_COUNTERS}]",
)
_COUNT_FIRST = (
    rf"(\d{{1,5}}){_TIMES}(?!(?:gib|gb|g|w)\b|\d{{1,3}}$)(?=\w)",
    r"(\d{1,3})\s(?=\d+\s*gi?b?\b)",
    r"(\d{1,3})\s(?=[a-z])(?!(?:gib|gb|g|w)\b)",
    r"(\d{4,5})\s(?=(?:nvidia |amd |tesla )?(?:mi|gb|gh|[abhltv])\d)",  # not of ``3090 Ti``
)
_COUNT_AT_END = (
    r"(?:\s|(?<=\d)|(?<=\dgb)|(?<=\d[a-z]))\(?[x×*]\s*(\d{1,5})\)?$",
    r"[\s-](\d{1,4})[x×]$",
    r"(?<=\w)\s*[:=](\d{1,4})$",
)


@dataclass(frozen=True, slots=True)
class NameFacts:
    """A name without what is told beside the part itself."""

    words: str
    """What is left: chip, form factor, edition."""
    count: int
    memory_gb: float
    """Of one GPU; 0 where the name says none."""
    power_w: float


def plain(name: str) -> str:
    """The name itself out of a line of a log, in lower case."""
    text = name.lower().translate(_NARROW)
    if "name='" not in name:
        text = _MEMORY_ALONE.sub(r"\1 \2gb", text).replace("_", " ")
    for pattern in _INSIDE:
        if inside := re.search(pattern, text):
            return _NOISE.sub(" ", inside[1].replace("_", " "))
    return _NOISE.sub(" ", text)


def is_cut(text: str) -> bool:
    """Whether a table has cut it, as ``nvidia-smi`` does: ``GeForce RTX 2080 ...``."""
    return re.search(r"\.\.\.|…", text) is not None


def facts(text: str) -> NameFacts:
    """Count, memory and power out of what ``plain`` returns, and the words that are left."""
    count, text = counted(text)
    memory, text = _amount(text, r"(?<![a-z\d.])(\d+(?:\.\d+)?)\s*-?(?:gib|gb|g)(?![a-z0-9])")
    mebibytes, text = _amount(text, r"(\d{4,6}(?:\.\d+)?)\s*mi?b\b")
    power, text = _amount(text, r"(?<![a-z0-9])(\d{2,4})\s*w(?:atts?)?\b")
    return NameFacts(text, count, memory or mebibytes / 1024, power)


def counted(text: str) -> tuple[int, str]:
    """How many, and the text without it: ``8xA100``, ``8 A100s``, ``two A100s``, ``A100 x8``,
    ``A100:8``, ``HGX H100 8-GPU``, ``2 nodes x 8 H100``; 0 where it says 0, or two numbers
    contradict.
    """
    text = text.strip()
    for word, number in _NUMBERS.items():
        text = re.sub(rf"^{word}(?= )", f"{number} x", text)
    text = re.sub(
        rf"[^\W\da-z](?=[{_COUNTERS}])", lambda match: match[0].translate(_WRITTEN_NUMBERS), text
    )
    nodes, text = _nodes(text)
    counts: list[int] = []
    for pattern in _COUNT_INSIDE:
        if inside := re.search(pattern, text):
            counts.append(int(inside[1]))
            text = f"{text[: inside.start()]} {text[inside.end() :]}"
            break
    text = text.strip()
    if leading := next((match for p in _COUNT_FIRST if (match := re.match(p, text))), None):
        counts.append(int(leading[1]))
        text = text[leading.end() :]
    if not counts:
        for pattern in _COUNT_AT_END:
            if trailing := re.search(pattern, text):
                counts.append(int(trailing[1]))
                text = text[: trailing.start()]
                break
    if len(set(counts)) > 1:
        return 0, text
    return (counts[0] if counts else 1) * nodes, text


def _nodes(text: str) -> tuple[int, str]:
    """Nodes that a name begins with, as the 2 of ``2 nodes x 8 H100`` and of ``2x8xH100``."""
    for pattern in (
        rf"(\d{{1,4}})\s*(?:nodes?|servers?|machines?|hosts?)(?:{_TIMES}|\s*(?:of|with)\s*|\s+)",
        rf"(\d{{1,4}}){_TIMES}(?=\d{{1,2}}{_TIMES}[a-z])",
    ):
        if leading := re.match(pattern, text):
            return max(int(leading[1]), 1), text[leading.end() :]
    return 1, text


def _amount(text: str, pattern: str) -> tuple[float, str]:
    match = re.search(pattern, text)
    if match is None:
        return 0.0, text
    return float(match[1]), f"{text[: match.start()]} {text[match.end() :]}"
