"""Host and Python: every so many steps one takes far longer than the others."""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma

import numpy as np

from gputop_agent import wire
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.rollouts import are_rollouts, calls_modules, is_the_world
from gputop_analysis.findings.shares import ENOUGH_RECORDS
from gputop_analysis.findings.site import Site, named
from gputop_analysis.findings.sites import top_site
from gputop_analysis.model import Finding, Input, Proof, Severity
from gputop_analysis.series import RankSeries, picked
from gputop_analysis.stats import MAD_TO_SIGMA, weighted_quantile
from gputop_analysis.text import percent
from gputop_analysis.view import Array, RunView

SLOW_SIGMAS, SLOW_FACTOR, SLOW_MS = 8.0, 1.5, 2.0
"""A slow step lies so far above the median of its rank, in all three ways."""
AT_LEAST = 5
"""Periods that must have been seen."""
REGULAR = 0.7
"""Part of the expected occurrences that must be slow."""
SURE = 0.001
ASKED_PART = 0.05
"""Of what slow steps take longer, in forwards without a backward: from there on these may be what
the steps are for.
"""
AT_MOST_SLOW = 400
LOOK_AT = 32
"""Ranks among which the one is looked for that the others wait for."""
WAITING = ("data", "comm")
"""Periodic waits for data have other findings; in a collective the cause is on another rank."""


@dataclass(frozen=True)
class SlowRhythm:
    """Slow steps of one rank that come at equal distances."""

    rank: int
    period: int
    """In steps."""
    count: int
    expected: float
    p: float
    """Chance that as many slow steps fall into one rhythm if they come at random."""
    slow_ms: float
    usual_ms: float
    excess_ms: float
    """Per step of the run, over all of them."""
    phase: str
    phase_part: float
    """Of all the time of that phase, what lies in the slow steps' excess, 0 to 1."""
    asks_model: bool
    """Whether the forwards without a backward are in them: a policy that acts, a model that draws
    samples to train on.
    """


@finding(
    id="HO15",
    name="periodic stall",
    family="host",
    cause="host",
    trigger=f"slow steps ({SLOW_SIGMAS:g} robust standard deviations, {SLOW_FACTOR:g} times and "
    f"{SLOW_MS:g} ms above the median) at equal distances: at least {AT_LEAST}, "
    f"{percent(REGULAR)} of those expected, p < {SURE:g}, together over 1 % of the time",
    fix="do what runs at that step less often or in the background",
    explains=("HO06",),
    no_use="where what runs at that step is needed as often",
    reads="steps.wall_ns of slow steps by their index",
    silent=(
        "fewer than 5 periods; steps that hold an eval, a checkpoint or a compile, and those "
        "after them; waits for data or in collectives; only an info where no line was seen, or "
        "where the model is asked in them without being trained, as in rollouts"
    ),
    traps="work whose rhythm is intended: the finding says where it is, not that it is wrong",
    seen_on=CPU,
)
def periodic_stall(view: RunView, spec: Spec) -> Finding | None:
    """Something runs every k steps: logging, a metric, an image drawn, a file synced."""
    worst = _at_its_source(view)
    if worst is None or worst.phase in WAITING or worst.excess_ms <= 0.01 * worst.usual_ms:
        return None
    if worst.phase_part >= 0.5:
        site = top_site(view, worst.phase, rank=worst.rank)
    else:
        site = None
    where = named(site, ": {}") or f", in {worst.phase}"
    asks = worst.asks_model or (
        site is not None
        and (is_the_world(view, worst.rank, site) or are_rollouts(view, worst.rank, site))
    )
    return spec.make(
        severity=_severity(view, worst, site, is_vague=asks or not named(site)),
        title=f"every {_ordinal(worst.period)} step takes "
        f"{worst.slow_ms / worst.usual_ms:.1f} times as long{where}",
        evidence=f"{worst.count} of {worst.expected:.0f} such steps took {worst.slow_ms:.1f} ms "
        f"instead of {worst.usual_ms:.1f} ms (p = {worst.p:.1g} by chance), the time lies in "
        f"{worst.phase}" + (f", {site.words}" if site else ""),
        fix=f"look for what runs every {worst.period} steps"
        + named(site, " at {}")
        + ": run it less often, in a background process, or not at all",
        rank=worst.rank,
        site=site.site if site else None,
        confidence=0.9 if named(site) else 0.8,
        recoverable_ms_per_step=worst.excess_ms,
        proof=_proof(worst),
    )


def _severity(view: RunView, worst: SlowRhythm, site: Site | None, *, is_vague: bool) -> Severity:
    """Without a line, or with the model's answers in it, it may be the training's own work, such as
    the rollouts between updates: what a line of those takes, HO06 says. Time in forwards is theirs
    where the line is one that calls the model, or no phase holds most of it, as a world answers.
    """
    if worst.phase == "other" and is_vague:
        return "info"
    is_of_rollouts = site is None or calls_modules(view, worst.rank, site)
    if worst.phase == "forward" and worst.asks_model and is_of_rollouts:
        return "info"
    return "high" if worst.excess_ms > 0.25 * worst.usual_ms else "medium"


def _at_its_source(view: RunView) -> SlowRhythm | None:
    """The first rank's rhythm, as ranks go in step; where it only waits, the awaited rank's."""
    first = rhythm(view.per_rank[view.ranks[0]]) if view.ranks else None
    if first is None or len(view.ranks) == 1 or first.phase not in (*WAITING, "backward"):
        return first
    rhythms = (rhythm(view.per_rank[rank]) for rank in view.ranks[1:LOOK_AT])
    return next(
        (other for other in rhythms if other and other.phase not in (*WAITING, "backward")),
        None,
    )


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        ending = "th"
    else:
        ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return "second" if number == 2 else f"{number}{ending}"


def _proof(rhythm: SlowRhythm) -> Proof:
    read = f"steps.wall_max_ns, rank {rhythm.rank}"
    return Proof(
        statistic=f"chance of {rhythm.count} slow steps in one rhythm",
        value=rhythm.p,
        threshold=SURE,
        unit="",
        formula="p = number of rhythms tried x binomial tail of the slow steps that share a "
        "remainder of step / period; recoverable = mean(slow step - median step) / period, times "
        "the part of the expected ones that are slow",
        inputs=(
            Input("period", rhythm.period, "steps", read),
            Input("slow steps in this rhythm", rhythm.count, "", read),
            Input("expected in the window", rhythm.expected, "", "steps of the window / period"),
            Input("median step", rhythm.usual_ms, "ms", read),
            Input("median of the slow steps", rhythm.slow_ms, "ms", read),
        ),
    )


def rhythm(series: RankSeries) -> SlowRhythm | None:
    """The strongest rhythm of a rank's slow steps; None if there is none.

    Steps right after an evaluation, a checkpoint or a compilation are not looked at: they find cold
    caches. Pauses of the garbage collector are taken off.
    """
    usable = series.steady.copy()
    usable[1:] &= (series.rows["flags"][:-1] & wire.F_UNSTEADY) == 0
    rows, counts = picked(series.rows, usable), series.n_steps[usable]
    if len(rows) < ENOUGH_RECORDS or counts.sum() < 2 * ENOUGH_RECORDS:
        return None  # short steps are folded: 200 of a millisecond, ten slow ones, are 18 records
    longest_ms = np.maximum(rows["wall_max_ns"] - rows["gc_ns"], 0) / 1e6
    usual, sigma = _usual(longest_ms, (rows["wall_ns"] - rows["gc_ns"]) / 1e6, counts)
    slow = longest_ms > max(usual + SLOW_SIGMAS * sigma, SLOW_FACTOR * usual, usual + SLOW_MS)
    if not AT_LEAST <= np.count_nonzero(slow) <= AT_MOST_SLOW:
        return None
    steps = rows["step"].astype(np.int64)
    period, members, p = strongest_period(steps[slow], _width(rows[slow], longest_ms[slow]))
    span = float(steps[-1] - steps[0] + 1)
    if not period or len(members) < max(AT_LEAST, REGULAR * span / period) or p >= SURE:
        return None
    chosen = np.flatnonzero(slow)[members]
    phase, part = _where(rows, counts, chosen)
    excess = (
        float((longest_ms[chosen] - usual).mean()) * min(1.0, len(members) * period / span) / period
    )
    slow_ms = float(np.median(longest_ms[chosen]))
    return SlowRhythm(
        rank=series.rank,
        period=period,
        count=len(members),
        expected=span / period,
        p=p,
        slow_ms=slow_ms,
        usual_ms=usual,
        excess_ms=excess,
        phase=phase,
        phase_part=part,
        asks_model=_asks_model(rows, counts, chosen),
    )


def _asks_model(rows: Array, counts: Array, slow: Array) -> bool:
    """Whether the slow records hold forwards that the others do not, and no backward of theirs."""
    wall, forward, evaluation, backward = (
        _excess_ns(rows[f"{name}_ns"], counts, slow)
        for name in ("wall", "forward", "eval", "backward")
    )
    return forward + evaluation > max(ASKED_PART * wall, 2 * backward)


def _width(slow: Array, longest_ms: Array) -> int:
    """By how many steps the place of a slow step may be off, in records each of which has one.

    A record ends with the first step after so much time, hence a step that took as long is its
    last one. Between windows steps end with their update, else where the next one begins.
    """
    estimated = (slow["flags"] & wire.F_ESTIMATED) != 0
    is_last = longest_ms * 1e6 >= np.where(estimated, wire.BOOK_NS, wire.FOLD_NS)
    places = np.where(is_last, 1, np.maximum(slow["n_steps"].astype(np.int64), 1))
    ends_vary = (slow["flags"] & (wire.F_WINDOW | wire.F_ESTIMATED)).any()
    return int(np.median(places)) + int(ends_vary)


def _usual(longest_ms: Array, total_ms: Array, counts: Array) -> tuple[float, float]:
    """Median step and robust standard deviation of one, milliseconds.

    Of folded steps the longest is known and the mean of the others. So a fast loop that stalls in
    every second record has the usual step of those in between.
    """
    other_counts = np.maximum(counts - 1, 1)
    others_ms = np.maximum(total_ms - longest_ms, 0.0) / other_counts
    values = np.concatenate([longest_ms, others_ms])
    weights = np.concatenate([np.ones(len(counts)), counts - 1])
    usual = weighted_quantile(values, weights, 0.5)
    # of one step, from a mean
    spread = np.concatenate([np.ones(len(counts)), np.sqrt(other_counts)])
    deviations = np.abs(values - usual) * spread
    return usual, MAD_TO_SIGMA * weighted_quantile(deviations, weights, 0.5)


def strongest_period(at: Array, width: int = 1) -> tuple[int, Array, float]:
    """The period at which most of the steps ``at`` lie, which of them do, and how likely that is by
    chance.

    Every distance of neighbours and of second neighbours is tried as a period; ``width`` is how
    many steps a position may be off. Returns ``(0, [], 1.0)`` where no period is longer than three
    widths.
    """
    gaps = np.concatenate([np.diff(at), at[2:] - at[:-2]])
    periods = np.unique(gaps[gaps > 3 * max(width, 1)])[:32]
    best = 0, np.zeros(0, np.int64), 1.0
    for period in periods:
        remainders = at % period
        around = np.sort(remainders)
        around = np.concatenate([around, around + period])
        within = np.searchsorted(around, around[: len(at)] + width) - np.arange(len(at))
        first = around[int(within.argmax())]
        members = np.flatnonzero((remainders - first) % period < width)
        p = min(
            1.0,
            len(periods) * len(at) * _binomial_tail(len(at) - 1, width / period, len(members) - 1),
        )
        if p < best[2]:
            best = int(period), members, p
    return best


def _binomial_tail(n: int, probability: float, at_least: int) -> float:
    """P(X >= at_least) for X binomial, summed in logarithms."""
    k = np.arange(at_least, n + 1)
    choose = np.array([lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) for i in k])
    return float(np.exp(choose + k * np.log(probability) + (n - k) * np.log1p(-probability)).sum())


def _where(rows: Array, counts: Array, slow: Array) -> tuple[str, float]:
    """The phase in which slow records spend more than others, and what part of its time."""
    best, largest_excess, part = "other", 0.0, 0.0
    for name in wire.PHASES:
        excess = _excess_ns(rows[f"{name}_ns"], counts, slow)
        if excess > largest_excess:
            best, largest_excess = name, excess
            part = excess / float(rows[f"{name}_ns"].sum())
    return best, part


def _excess_ns(spent_ns: Array, counts: Array, slow: Array) -> float:
    """What slow records spend beyond as many usual steps."""
    spent = spent_ns.astype(np.float64)
    usual = float(np.median(spent / counts))
    return float((spent[slow] - usual * counts[slow]).sum())
