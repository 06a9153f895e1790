"""Small pieces of terminal text: bars, sparklines, durations, colours."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from typing import Any

SGR = {
    "critical": "1;31",
    "high": "31",
    "medium": "33",
    "info": "36",
    "good": "32",
    "bold": "1",
    "dim": "2",
}
"""Select Graphic Rendition codes by style; a phase has the hue that it has on the screen."""
SGR |= {
    "data": "33",
    "h2d": "93",
    "forward": "96",
    "backward": "34",
    "optimizer": "32",
    "comm": "35",
    "eval": "36",
}
SGR |= {"wait": "91", "checkpoint": "31", "compile": "95", "other": "90"}
MISSING = "–"
"""Stands for what was not measured, on every screen and in every report."""
RANKS_IN_TEXT, RANKS_ON_A_PAGE = 16, 32
"""Rows of a table of ranks: in a terminal, and on a page that is scrolled."""
LABEL = 10
"""Columns of a label before wrapped text."""

_UNITS = r"(?:%|(?:[nmµu]?s|min|h|[KMGT]i?B|kB|B|Gbit|[MGTP]?FLOPs?|k?Wh?|°C|GHz|MHz)\b)"
BREAKS = re.compile(rf" (?!(?<=\d ){_UNITS})")
"""Where a line of a text may end: at a blank, but not at that between a figure and its unit."""
_BEFORE_UNIT = re.compile(rf"(?<=\d) (?={_UNITS})")
_UNBROKEN = "\xa0"
_SITE = re.compile(r"(.+\.py):(\d+)\b")
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS, _ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.-:=+*#"


def with_minus(text: str) -> str:
    """A number with its sign as screens and pages write it: ``−0.3 %`` for ``-0.3 %``."""
    return text.replace("-", "−")


def painted(text: str, style: str, colour: bool) -> str:
    """``text`` in one of the ``SGR`` styles, or as it is without ``colour``."""
    return f"\x1b[{SGR[style]}m{text}\x1b[0m" if colour and text else text


def bar(share: float, width: int, fancy: bool) -> str:
    """A bar of ``share`` (0 to 1) of ``width`` columns, padded to it."""
    share = min(1.0, max(0.0, share)) if math.isfinite(share) else 0.0
    if not fancy:
        return ("#" * round(share * width)).ljust(width)
    full, part = divmod(round(share * width * 8), 8)
    return ("█" * full + (_EIGHTHS[part] if part else "")).ljust(width)


def sparkline(values: Sequence[float], width: int, fancy: bool) -> str:
    """Finite values in order as one line of at most ``width`` levels, each the mean of its part."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return ""
    cells = min(width, len(finite))
    means = [
        _mean(finite[i * len(finite) // cells : (i + 1) * len(finite) // cells])
        for i in range(cells)
    ]
    low, high = min(means), max(means)
    levels = _LEVELS if fancy else _ASCII_LEVELS
    if not high > low:
        return levels[3] * len(means)
    return "".join(levels[round((mean - low) / (high - low) * 7)] for mean in means)


def ms(value: float) -> str:
    """Milliseconds with three significant digits, or the sign for missing."""
    if not math.isfinite(value):
        return MISSING
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def gib(value: float) -> str:
    """GiB with two decimals, or the sign for missing."""
    return f"{value:.2f}" if math.isfinite(value) else MISSING


def whole(value: float) -> str:
    """Without decimals, or the sign for missing."""
    return f"{value:.0f}" if math.isfinite(value) else MISSING


def rate(value: float) -> str:
    """``20,812``, ``4.6`` or ``0.75`` a second: never 0 of what does come."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def percent(share: float) -> str:
    """``10 %`` of 0.1: how a threshold is told."""
    return f"{100 * share:g} %"


def whole_percent(share: float) -> str:
    """``57 %`` of 0.57."""
    return f"{100 * share:.0f} %"


def signed_percent(share: float) -> str:
    """``-26.4 %`` of -0.264, ``+0.0 %`` of what is next to nothing: how a change is told."""
    return f"{round(100 * share, 1) + 0.0:+.1f} %"  # no minus before a zero


def duration(seconds: float) -> str:
    """``42 s``, ``3 min 20 s``, ``5 h 12 min``."""
    whole_seconds = round(seconds)
    if whole_seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole_seconds} s"
    minutes, hours = whole_seconds // 60, whole_seconds // 3600
    if hours == 0:
        return f"{minutes} min {whole_seconds % 60} s"
    return f"{hours} h {minutes % 60} min"


def step_time(seconds: float) -> str:
    """``312 ms``, ``4.25 s``, ``42.5 s``, ``1,204 s``: three digits of a predicted step."""
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    if seconds >= 10:
        return f"{seconds:.1f} s"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1000 * seconds:,.0f} ms"


def longer(growth: float) -> str:
    """Of a time that grew by ``growth``, as 0.34: ``34 % longer``, or ``23.9x as long``."""
    if growth < 1:
        return f"{100 * growth:.0f} % longer"
    return f"{times(1 + growth)} as long"


def times(value: float) -> str:
    """``2.0x``, ``23.9x``, ``1,200x``."""
    return f"{factor(value)}x"


def factor(value: float) -> str:
    """``2.4``, ``150``, ``4e+29``: how many times a level something is."""
    if value < 100:
        return f"{value:.1f}"
    return f"{value:,.0f}" if value < 1e6 else f"{value:.0e}"


def counted(number: int, noun: str) -> str:
    """``1 worker``, ``1,200 workers``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


_RUNS_SHOWN = 6
_MOST_LEFT_OUT = 3


def step_number(step: int | None) -> str:
    """``12``; a question mark where the step is not known."""
    return MISSING if step is None else str(step)


def share_words(share: float) -> str:
    """``38 %``; a share that is not quite all is not 100 %, and one that is not nothing not 0 %."""
    if 0.99 < share < 1:
        if share < 0.9995:
            return f"{min(share, 0.9995) * 100:.1f} %"
        return "over 99.9 %"
    if 0 < share < 0.005:
        return "under 1 %"
    return f"{100 * share:.0f} %"


def rank_list(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-3, 8``, ``ranks 0-7 but 5``."""
    ordered = sorted(set(ranks))
    if len(ordered) < 2:
        return f"rank {ordered[0]}" if ordered else "no rank"
    left_out = sorted(set(range(ordered[0], ordered[-1] + 1)) - set(ordered))
    if 0 < len(left_out) <= _MOST_LEFT_OUT and len(ordered) > 2 * len(left_out):
        but = ", ".join(map(str, left_out))
        return f"ranks {ordered[0]}-{ordered[-1]} but {but}"
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = [_run_words(*run) for run in runs[:_RUNS_SHOWN]]
    more = sum(last - first + 1 for first, last in runs[_RUNS_SHOWN:])
    return f"ranks {', '.join(shown)}" + (f" and {more} more" if more else "")


def ranks_do(ranks: Collection[int], verb: str) -> str:
    """``rank 3 waits``, ``ranks 0-3, 8 wait``."""
    return f"{rank_list(ranks)} {verb}{'s' if len(ranks) == 1 else ''}"


def _run_words(first: int, last: int) -> str:
    if last - first < 2:
        return str(first) if first == last else f"{first}, {last}"
    return f"{first}-{last}"


def capitalised(text: str) -> str:
    """The text as a sentence begins; the other letters stay."""
    return text[:1].upper() + text[1:]


def file_and_line(site: str | None) -> tuple[str, int] | None:
    """``train.py`` and 118 of ``train.py:118 fit``; None for a site that is no line of Python."""
    match = _SITE.match(site or "")
    return (match[1], int(match[2])) if match else None


def cut_middle(text: str, width: int) -> str:
    """``text`` in at most ``width`` columns; too long a one loses its middle."""
    if len(text) <= width:
        return text
    head = (width - 3) // 2
    return f"{text[:head]}...{text[len(text) - (width - 3 - head) :]}"


def cut_end(text: str, length: int) -> str:
    """The text in at most ``length`` letters; what is left out is told by three dots."""
    if len(text) <= length:
        return text
    return text[: length - 3].rstrip() + "..."


def for_terminal(text: str, colour: bool) -> str:
    """``text`` as it is with ``colour``; else in ASCII: the missing sign as a hyphen, all else
    outside as a question mark.
    """
    if colour:
        return text
    return text.replace(MISSING, "-").encode("ascii", "replace").decode()


def wrap(text: str, width: int, **how: Any) -> list[str]:
    """As ``textwrap.wrap``, but a figure and its unit stay on one line."""
    together = _BEFORE_UNIT.sub(_UNBROKEN, text)
    return [line.replace(_UNBROKEN, " ") for line in textwrap.wrap(together, width, **how)]


def wrapped(label: str, text: str, width: int, indent: int = 4) -> list[str]:
    """``label  text`` wrapped to ``width``, continuation lines below the text's first column."""
    head = " " * indent + f"{label:<{LABEL}}"
    return wrap(text, max(20, width), initial_indent=head, subsequent_indent=" " * len(head)) or [
        head
    ]


def paragraphs(parts: Iterable[Sequence[str]], width: int) -> str:
    """Parts of a page, a sequence of lines each, with an empty line between them; lines are cut at
    ``width`` columns, and empty parts left out.
    """
    return "\n\n".join("\n".join(line[:width] for line in part) for part in parts if part)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
