"""The comparison for a terminal or a pipe: verdict, speed by phase and rank, findings, memory,
loss, what was set differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gputop_analysis.diff.model import JUDGEMENTS, Diff, Judgement, SpeedDiff
from gputop_analysis.diff.settings import telling
from gputop_analysis.model import Finding
from gputop_analysis.stats import Interval
from gputop_analysis.text import (
    MISSING,
    RANKS_IN_TEXT,
    counted,
    cut_middle,
    for_terminal,
    ms,
    painted,
    times,
    wrap,
)

_STYLE: dict[Judgement, str] = {
    "regression": "critical",
    "slower": "medium",
    "faster": "good",
    "no difference": "good",
    "too few steps": "info",
    "not comparable": "medium",
}
CHANGES_SHOWN = 30
WORTH_A_FACTOR = 0.05
"""Of a step: what is won in time is told as a speed too from here on."""
GROUPS = {"code": "code", "environment": "machine", "config": "config"}


def diff_text(diff: Diff, width: int = 80, colour: bool = False) -> str:
    """Text of the comparison in ``width`` columns (at least 60); plain ASCII without ``colour``."""
    width = max(60, width)
    sections = (_verdict, _phases, _ranks, _findings, _memory, _loss, _changes)
    parts = [list(section(diff, width, colour)) for section in sections]
    text = "\n\n".join("\n".join(part) for part in parts if part)
    return for_terminal(text, colour)


def _verdict(diff: Diff, width: int, colour: bool) -> Iterator[str]:
    for line in wrap(headline(diff), width):
        yield painted(line, style_of(diff), colour)
    yield f"{'A':<10} {diff.a_name}, {counted(diff.a_steps, 'step')}"[:width]
    yield f"{'B':<10} {diff.b_name}, {counted(diff.b_steps, 'step')}"[:width]
    for label, text in figures(diff):
        yield from wrap(text, width, initial_indent=f"{label:<10} ", subsequent_indent=" " * 11)


def style_of(diff: Diff) -> str:
    """Style of the first line."""
    return "critical" if diff.is_regression else _STYLE[diff.judgement]


def figures(diff: Diff) -> list[tuple[str, str]]:
    """What each run took, over how many steps, and what others took from it; labelled."""
    speed = diff.speed
    if speed is None:
        return []
    text = f"{ms(speed.a_ms)} -> {ms(speed.b_ms)} ms a {speed.unit}"
    if diff.judgement == "not comparable":
        text += ", not compared"
    else:
        text += f", {_slower(speed)}"
    compared = f"{speed.steps[0]:,} and {speed.steps[1]:,} steps past the warm-up"
    rows = [("speed", text), ("compared", compared)]
    if _loaded(speed):
        of_a, of_b = (ms(value) for value in speed.foreign_ms)
        load = (
            f"other programs kept cores from A for {of_a} ms a step, from B for {of_b}: "
            "taken off before judging"
        )
        rows.append(("load", load))
    return rows


def headline(diff: Diff) -> str:
    """First line: caveats, else the judgement with figure and place: no winner over a caveat."""
    first = "; ".join(caveat.text for caveat in diff.caveats)
    if diff.judgement == "not comparable":
        head = ""
        if diff.loss_broke:
            head = "regression: "
        return f"{head}{first}: speeds are not comparable"
    if not first:
        return _judged(diff)
    return f"{first}; {_judged(diff, name_winner=False)}"


def _judged(diff: Diff, name_winner: bool = True) -> str:
    speed = diff.speed
    if speed is None:
        return JUDGEMENTS["too few steps"]
    if not name_winner and not diff.is_regression:
        return f"B takes {ms(speed.b_ms)} ms a {speed.unit}, A {ms(speed.a_ms)}: {_slower(speed)}"
    if diff.judgement in ("no difference", "faster"):
        times_text = f"B takes {ms(speed.b_ms)} ms a {speed.unit}, A {ms(speed.a_ms)}"
        return f"{JUDGEMENTS[diff.judgement]}: {times_text}, {_slower(speed)}"
    limit = f"threshold {100 * diff.threshold:g} %"
    difference = f"B is {_slower(speed)}{_where(speed)}"
    if diff.is_regression:
        return f"regression: {difference}; {limit}"
    return f"slower, not surely beyond the {limit}: {difference}"


def _where(speed: SpeedDiff) -> str:
    rank = next(
        (difference for difference in speed.ranks if difference.rank == speed.culprit), None
    )
    if rank is not None:
        return f", on rank {rank.rank} in {_name(rank.phase)}"
    if speed.phase:
        return f", in {_name(speed.phase)}"
    return ""


def _name(phase: str) -> str:
    return {
        "other": "host code",
        "data": "waiting for data",
        "wait": "waiting for other ranks or the network",
    }.get(phase, phase)


def _loaded(speed: SpeedDiff) -> bool:
    """Whether other programs took enough of a run's step to change the judgement."""
    return max(speed.foreign_ms) >= 0.005 * max(speed.a_ms, speed.b_ms)


def _slower(speed: SpeedDiff) -> str:
    """The growth, and what it leaves out: the step times beside it have other programs' load."""
    words = _percent(speed.slower)
    if _loaded(speed):
        words += " without the load of other programs"
    return words


def _percent(slower: Interval) -> str:
    """``18.7 % less time, 1.23x (95 % interval 9.5 to 27.0 %)``; from twice on as a factor."""
    if slower.value >= 1:
        return (
            f"{times(1 + slower.value)} slower (95 % interval {times(1 + slower.low)} to "
            f"{times(1 + slower.high)})"
        )
    if slower.value <= -0.5:
        value, low, high = (1 / max(1 + x, 1e-9) for x in (slower.value, slower.high, slower.low))
        return f"{times(value)} faster (95 % interval {times(low)} to {times(high)})"
    if slower.value >= 0:
        word = "slower"
    else:
        word = "less time"
        if slower.value <= -WORTH_A_FACTOR:
            word += f", {1 / (1 + slower.value):.2f}x"
    value, low, high = (100 * x for x in slower)
    if slower.value < 0:
        value, low, high = -value, -high, -low
    return f"{value:.1f} % {word} (95 % interval {low:.1f} to {high:.1f} %)"


def _phases(diff: Diff, width: int, colour: bool) -> Iterator[str]:
    if diff.speed is None:
        return
    yield painted(
        f"{'ms a step':<12}{'A':>10}{'B':>10}{'B - A':>10}   95 % interval", "bold", colour
    )
    for phase in diff.speed.phases:
        yield _row(
            phase.name,
            phase.a_ms,
            b=phase.b_ms,
            difference=phase.difference_ms,
            colour=colour,
        )


def _ranks(diff: Diff, width: int, colour: bool) -> Iterator[str]:
    ranks = ()
    if diff.speed:
        ranks = diff.speed.ranks
    if len(ranks) < 2:
        return
    yield painted(
        f"{'own work, ms':<12}{'A':>10}{'B':>10}{'B - A':>10}   95 % interval", "bold", colour
    )
    shown = sorted(ranks, key=lambda rank_diff: -rank_diff.difference_ms.value)[:RANKS_IN_TEXT]
    for rank_diff in sorted(shown, key=lambda rank_diff: rank_diff.rank):
        yield _row(
            f"rank {rank_diff.rank}",
            rank_diff.a_ms,
            b=rank_diff.b_ms,
            difference=rank_diff.difference_ms,
            colour=colour,
        )
    if len(ranks) > len(shown):
        yield f"and {len(ranks) - len(shown)} ranks that grew less"


def _row(label: str, a: float, b: float, difference: Interval, colour: bool) -> str:
    if difference.low > 0:
        sure = "high"
    elif difference.high < 0:
        sure = "good"
    else:
        sure = ""
    line = f"{label:<12}{ms(a):>10}{ms(b):>10}{signed(difference.value):>10}"
    line += f"   {signed(difference.low)} to {signed(difference.high)}"
    if sure:
        return painted(line, sure, colour)
    return line


def signed(value: float) -> str:
    if abs(value) < 100:
        return f"{value:+.2f}"
    return f"{value:+,.0f}"


def _findings(diff: Diff, width: int, colour: bool) -> Iterator[str]:
    for word, style, finding in findings_rows(diff):
        text = f"{finding.id:<6}{finding.title}"
        lines = wrap(text, width, initial_indent=f"{word:<7}", subsequent_indent=" " * 13)
        yield painted(lines[0], style, colour)
        yield from lines[1:]
    if diff.findings is not None and not any(findings_rows(diff)):
        yield "no finding came or went"


def findings_rows(diff: Diff) -> list[tuple[str, str, Finding]]:
    """``new`` and ``gone`` findings, each with the style of the word."""
    if diff.findings is None:
        return []
    rows = [("new", finding.severity, finding) for finding in diff.findings.came]
    return rows + [("gone", "good", finding) for finding in diff.findings.went]


def _memory(diff: Diff, width: int, colour: bool) -> Iterator[str]:
    if not diff.memory:
        return
    yield painted(f"{'memory GiB':<15}{'A':>8}{'B':>8}{'change':>9}", "bold", colour)
    for peak in diff.memory:
        if peak.a_gib > 0:
            change = f"{100 * (peak.b_gib / peak.a_gib - 1):+.1f} %"
        else:
            change = MISSING
        yield f"{peak.name:<15}{peak.a_gib:>8.2f}{peak.b_gib:>8.2f}{change:>9}"


def _loss(diff: Diff, width: int, colour: bool) -> Iterator[str]:
    lines = loss_lines(diff)
    if lines:
        yield painted("loss", "bold", colour)
    for line in lines:
        yield from wrap(line, width)


def loss_lines(diff: Diff) -> list[str]:
    """Where the losses part and how far they are apart at the end; empty where none is known."""
    loss = diff.loss
    if loss is None:
        return []
    seeds = _reason(diff)
    if loss.first_step is None or loss.first_values is None:
        return [f"equal at all {counted(loss.compared, 'step')} that can be compared ({seeds})"]
    a, b = loss.first_values
    since = ""
    if loss.equal_until is not None:
        since = f", equal at step {loss.equal_until:,}"
    compared = counted(loss.compared, "step")
    lines = [
        f"differs at step {loss.first_step:,}{since}: {a:.8g} and {b:.8g} ({seeds}, "
        f"{compared} compared)"
    ]
    if loss.first_visible_step is None:
        lines.append("never by more than 0.1 %: rounding")
    elif loss.first_visible_step != loss.first_step:
        lines.append(f"by more than 0.1 % from step {loss.first_visible_step:,} on")
    last = f"{loss.last_values[0]:.6g} and {loss.last_values[1]:.6g}"
    return [*lines, f"at step {loss.last_step:,}: {last}"]


def _reason(diff: Diff) -> str:
    """Reasons why the losses may differ: never the seeds where the work differs."""
    subjects = []
    for caveat in diff.caveats:
        if caveat.what in ("model", "data", "batch", "precision"):
            subjects.append(caveat.what)
    if subjects:
        if subjects[0] != "data":
            return "another " + " and ".join(subjects)
        return "other " + " and ".join(subjects)
    seeds = {True: "same seed", False: "different seeds", None: "seed not known"}
    return seeds[diff.loss.same_seed if diff.loss else None]


def _changes(diff: Diff, width: int, colour: bool) -> Iterator[str]:
    if not diff.changes:
        yield "nothing that gputop knows of was set differently"
        return
    yield painted("set differently", "bold", colour)
    changes = telling(diff.changes)
    shown = changes[:CHANGES_SHOWN]
    names = min(max(len(change.name) for change in shown), max(24, width // 2 - 12))
    room = max(12, (width - names - 17) // 2)
    for change in shown:
        name = cut_middle(change.name, names)
        yield (
            f"  {GROUPS[change.group]:<9}{name:<{names}}  {_short(change.a, room)} -> "
            f"{_short(change.b, room)}"
        )
    if len(changes) > len(shown):
        yield f"  and {len(changes) - len(shown)} more (--json has them all)"


def _short(value: Any, room: int) -> str:
    if value is None:
        shown = "not set"
    else:
        shown = str(value)
    if len(shown) <= room:
        return shown
    return shown[: room - 3] + "..."
