"""The comparison for a terminal or a pipe: verdict, speed by phase and rank, memory, loss, what was set differently."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from gputop_analysis.diff.model import JUDGEMENTS, Diff, Judgement, SpeedDiff
from gputop_analysis.diff.settings import telling
from gputop_analysis.stats import Interval
from gputop_analysis.text import MISSING, counted, cut_middle, ms, painted, plain_ascii, times

_STYLE: dict[Judgement, str] = {
    "regression": "critical",
    "slower": "medium",
    "faster": "good",
    "no difference": "good",
    "too few steps": "info",
    "not comparable": "medium",
}
CHANGES_SHOWN = 30
RANKS_SHOWN = 16
_GROUPS = {"code": "code", "environment": "machine", "config": "config"}


def diff_text(diff: Diff, width: int = 80, colour: bool = False) -> str:
    """At most ``width`` columns wide (at least 60); plain ASCII without ``colour``."""
    width = max(60, width)
    sections = (_verdict, _phases, _ranks, _memory, _loss, _changes)
    parts = [list(section(diff, width, colour)) for section in sections]
    text = "\n\n".join("\n".join(part) for part in parts if part)
    return text if colour else plain_ascii(text)


def _verdict(diff: Diff, width: int, colour: bool) -> Iterator[str]:
    style = "critical" if diff.is_regression else _STYLE[diff.judgement]
    for line in textwrap.wrap(headline(diff), width):
        yield painted(line, style, colour)
    yield f"{'A':<10} {diff.a_name}, {counted(diff.a_steps, 'step')}"[:width]
    yield f"{'B':<10} {diff.b_name}, {counted(diff.b_steps, 'step')}"[:width]
    speed = diff.speed
    if speed is None:
        return
    said = f"{ms(speed.a_ms)} -> {ms(speed.b_ms)} ms a {speed.unit}"
    said += ", not compared" if diff.judgement == "not comparable" else f", {_percent(speed.slower)}"
    yield from textwrap.wrap(said, width, initial_indent=f"{'speed':<10} ", subsequent_indent=" " * 11)
    yield f"{'compared':<10} {speed.steps[0]:,} and {speed.steps[1]:,} steps past the warm-up"
    if max(speed.foreign_ms) >= 0.005 * max(speed.a_ms, speed.b_ms):
        of_a, of_b = (ms(value) for value in speed.foreign_ms)
        said = f"other programs kept cores from A for {of_a} ms a step, from B for {of_b}: taken off before judging"
        yield from textwrap.wrap(said, width, initial_indent=f"{'load':<10} ", subsequent_indent=" " * 11)


def headline(diff: Diff) -> str:
    """What is said first, then the judgement with the figure and the place. No winner is named over a caveat."""
    first = "; ".join(one.text for one in diff.caveats)
    if diff.judgement == "not comparable":
        head = "regression: " if diff.loss_broke else ""
        return f"{head}{first}: speeds are not comparable"
    if not first:
        return _judged(diff)
    return f"{first}; {_judged(diff, name_winner=False)}"


def _judged(diff: Diff, name_winner: bool = True) -> str:
    speed = diff.speed
    if speed is None:
        return JUDGEMENTS["too few steps"]
    if not name_winner and not diff.is_regression:
        return f"B takes {ms(speed.b_ms)} ms a {speed.unit}, A {ms(speed.a_ms)} ({_percent(speed.slower)})"
    if diff.judgement in ("no difference", "faster"):
        said = f"B takes {ms(speed.b_ms)} ms a {speed.unit}, A {ms(speed.a_ms)}"
        return f"{JUDGEMENTS[diff.judgement]}: {said} ({_percent(speed.slower)})"
    limit = f"threshold {100 * diff.threshold:g} %"
    head = "regression" if diff.is_regression else f"slower, not surely beyond the {limit}"
    limit = f"; {limit}" if diff.is_regression else ""
    return f"{head}: B is {_percent(speed.slower)}{_where(speed)}{limit}"


def _where(speed: SpeedDiff) -> str:
    rank = next((one for one in speed.ranks if one.rank == speed.culprit), None)
    if rank is not None:
        return f", on rank {rank.rank} in {_name(rank.phase)}"
    return f", in {_name(speed.phase)}" if speed.phase else ""


def _name(phase: str) -> str:
    return {"other": "host code", "data": "waiting for data", "wait": "waiting for other ranks"}.get(phase, phase)


def _percent(slower: Interval) -> str:
    """``18.7 % faster (95 % interval 9.5 to 27.0 %)``; from twice on as a factor."""
    if slower.value >= 1:
        return f"{times(1 + slower.value)} slower (95 % interval {times(1 + slower.low)} to {times(1 + slower.high)})"
    if slower.value <= -0.5:
        value, low, high = (1 / max(1 + x, 1e-9) for x in (slower.value, slower.high, slower.low))
        return f"{times(value)} faster (95 % interval {times(low)} to {times(high)})"
    word = "slower" if slower.value >= 0 else "faster"
    value, low, high = (100 * x for x in slower)
    if slower.value < 0:
        value, low, high = -value, -high, -low
    return f"{value:.1f} % {word} (95 % interval {low:.1f} to {high:.1f} %)"


def _phases(diff: Diff, width: int, colour: bool) -> Iterator[str]:
    if diff.speed is None:
        return
    yield painted(f"{'ms a step':<12}{'A':>10}{'B':>10}{'B - A':>10}   95 % interval", "bold", colour)
    for one in diff.speed.phases:
        yield _row(_label(one.name), one.a_ms, one.b_ms, one.difference_ms, colour)


def _ranks(diff: Diff, width: int, colour: bool) -> Iterator[str]:
    ranks = diff.speed.ranks if diff.speed else ()
    if len(ranks) < 2:
        return
    yield painted(f"{'own work':<12}{'A':>10}{'B':>10}{'B - A':>10}   95 % interval", "bold", colour)
    shown = sorted(ranks, key=lambda one: -one.difference_ms.value)[:RANKS_SHOWN]
    for one in sorted(shown, key=lambda one: one.rank):
        yield _row(f"rank {one.rank}", one.a_ms, one.b_ms, one.difference_ms, colour)
    if len(ranks) > len(shown):
        yield f"and {len(ranks) - len(shown)} ranks that grew less"


def _row(label: str, a: float, b: float, difference: Interval, colour: bool) -> str:
    sure = "high" if difference.low > 0 else "good" if difference.high < 0 else ""
    line = f"{label:<12}{ms(a):>10}{ms(b):>10}{_signed(difference.value):>10}"
    line += f"   {_signed(difference.low)} to {_signed(difference.high)}"
    return painted(line, sure, colour) if sure else line


def _signed(value: float) -> str:
    return f"{value:+.2f}" if abs(value) < 100 else f"{value:+,.0f}"


def _label(phase: str) -> str:
    return "exp. wait" if phase == "wait" else phase


def _memory(diff: Diff, width: int, colour: bool) -> Iterator[str]:
    if not diff.memory:
        return
    yield painted(f"{'memory GiB':<15}{'A':>8}{'B':>8}{'change':>9}", "bold", colour)
    for one in diff.memory:
        change = f"{100 * (one.b_gib / one.a_gib - 1):+.1f} %" if one.a_gib > 0 else MISSING
        yield f"{one.name:<15}{one.a_gib:>8.2f}{one.b_gib:>8.2f}{change:>9}"


def _loss(diff: Diff, width: int, colour: bool) -> Iterator[str]:
    loss = diff.loss
    if loss is None:
        return
    yield painted("loss", "bold", colour)
    seeds = _reason(diff)
    if loss.first_step is None or loss.first_values is None:
        yield f"equal at all {counted(loss.compared, 'step')} that can be compared ({seeds})"
        return
    a, b = loss.first_values
    since = f", equal at step {loss.equal_until:,}" if loss.equal_until is not None else ""
    compared = counted(loss.compared, "step")
    said = f"differs at step {loss.first_step:,}{since}: {a:.8g} and {b:.8g} ({seeds}, {compared} compared)"
    yield from textwrap.wrap(said, width)
    if loss.first_visible_step is None:
        yield "never by more than 0.1 %: rounding"
    elif loss.first_visible_step != loss.first_step:
        yield f"by more than 0.1 % from step {loss.first_visible_step:,} on"
    yield f"at step {loss.last_step:,}: {loss.last_values[0]:.6g} and {loss.last_values[1]:.6g}"


def _reason(diff: Diff) -> str:
    """What the losses may differ by: never the seeds where the work differs."""
    others = [one.what for one in diff.caveats if one.what in ("model", "data", "batch", "precision")]
    if others:
        return "another " + " and ".join(others) if others[0] != "data" else "other " + " and ".join(others)
    seeds = {True: "same seed", False: "different seeds", None: "seed not known"}
    return seeds[diff.loss.same_seed if diff.loss else None]


def _changes(diff: Diff, width: int, colour: bool) -> Iterator[str]:
    if not diff.changes:
        yield "nothing that gputop knows of was set differently"
        return
    yield painted("set differently", "bold", colour)
    changes = telling(diff.changes)
    shown = changes[:CHANGES_SHOWN]
    names = min(max(len(one.name) for one in shown), max(24, width // 2 - 12))
    room = max(12, (width - names - 17) // 2)
    for one in shown:
        name = cut_middle(one.name, names)
        yield f"  {_GROUPS[one.group]:<9}{name:<{names}}  {_short(one.a, room)} -> {_short(one.b, room)}"
    if len(changes) > len(shown):
        yield f"  and {len(changes) - len(shown)} more (--json has them all)"


def _short(value: Any, room: int) -> str:
    said = "not set" if value is None else str(value)
    return said if len(said) <= room else said[: room - 3] + "..."
