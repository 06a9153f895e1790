"""Phrases that all forms of the report share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gputop_analysis.budget import LINES, OF_ALL_STEPS, Budget
from gputop_analysis.findings.registry import CATALOGUE
from gputop_analysis.model import Finding, PhaseStats, RankSummary
from gputop_analysis.overview import GPUS_ADDED, RATE_WINDOW_S, OwnCost, RunSummary
from gputop_analysis.own_work import OwnWork
from gputop_analysis.rank_table import RankTable
from gputop_analysis.step_parts import WAIT
from gputop_analysis.text import MISSING, counted, duration, ms, rate
from gputop_analysis.win import mean_step_ms
from gputop_probes.record.reader import RunRecord

if TYPE_CHECKING:
    from gputop_analysis.report.build import Report

ADDED_NOT_MEASURED = f"{GPUS_ADDED} to the recording, not measured"
HEALTH_STYLE = {
    "waiting": "info",
    "looking": "info",
    "healthy": "good",
    "ended": "good",
    "stopped": "info",
    "attention": "medium",
    "critical": "critical",
    "failed": "critical",
}

BUDGET_STYLE = {
    "useful_compute": "backward",
    "compute_overhead": "forward",
    "data_stall": "data",
    "host": "other",
    "core_wait": "high",
    "communication": "comm",
    "straggler_wait": "critical",
    "checkpoint": "checkpoint",
    "eval": "eval",
    "compile": "compile",
    "other": "dim",
}


def done(s: RunSummary) -> str:
    """``1,200 of 5,000``."""
    if s.total_steps:
        return f"{s.steps:,} of {s.total_steps:,}"
    return f"{s.steps:,}"


def size(s: RunSummary) -> str:
    """``8 ranks``, or ``6 of 8 ranks`` where the others wrote no step."""
    reporting = ""
    if 0 < len(s.ranks) < s.world_size:
        reporting = f"{len(s.ranks)} of "
    return f"{reporting}{counted(s.world_size, 'rank')}"


MANY_BACKWARDS = 50
"""Of a step, from which on they say more of how a training goes on than its steps do."""


def many_backwards(record: RunRecord) -> str:
    """``1,402 backwards a step, 95.2 ms each``, where an optimizer such as LBFGS asks its closure
    so often that a run has a few steps only; else empty.
    """
    ranks = record.ranks()
    if not ranks:
        return ""
    rows = record.steps(ranks[0])
    steps = int(rows["n_steps"].sum())
    backwards = float(rows["micro_batches"].sum(dtype=float))
    if backwards < MANY_BACKWARDS * max(steps, 1):
        return ""
    each_ms = float(rows["wall_ns"].sum(dtype=float)) / 1e6 / backwards
    return f"{backwards / steps:,.0f} backwards a step, {ms(each_ms)} ms each"


def speed(s: RunSummary) -> str:
    """``10.9 steps/s, 350 samples/s, mean past the first 10 steps``; standing: ``no step for 4 min
    6 s``.
    """
    if s.silent_s:
        return f"{s.doing or 'no step'} for {duration(s.silent_s)}"
    if not s.steps_per_s:
        return MISSING
    rates = [f"{s.steps_per_s:.4g} steps/s"]
    if s.steps_per_s >= 1000:
        rates = [f"{s.steps_per_s:,.0f} steps/s"]
    if s.samples_per_s:
        rates += [f"{rate(s.samples_per_s)} samples/s"]
    if s.tokens_per_s:
        rates += [f"{rate(s.tokens_per_s)} tokens/s{s.of_padding}"]
    period = f"mean {s.averaged_over}"
    if s.state == "running":
        period = f"over the last {RATE_WINDOW_S:.0f} s"
    return ", ".join([*rates, period])


def step_time(s: RunSummary) -> str:
    """``mean 37.7 ms, p50 34.8 ms, p95 63.0 ms, past the first 10 steps``."""
    figures = [f"mean {ms(mean_step_ms(s))} ms"]
    figures += [f"p50 {ms(s.step_time_p50_ms)} ms", f"p95 {ms(s.step_time_p95_ms)} ms"]
    return ", ".join([*figures, s.averaged_over])


def output_notes(record: RunRecord) -> list[str]:
    """Notes on output missing in the record; a line for each host with one."""
    return [host.state.output_note for host in record.hosts.values() if host.state.output_note]


def own_share(cost: OwnCost) -> str:
    """``0.3 % of a step, 0.2 to 0.4; its thread 1.1 % of a core``."""
    if cost.thread_share is None:
        return cost.words
    return f"{cost.words}; its thread {100 * cost.thread_share:.1f} % of a core"


def own_work(work: OwnWork | None) -> str:
    """``its own set-up took 83.8 ms, once, and 2.90 ms later``; empty where it took none."""
    if work is None or sum(work) < 0.005:
        return ""
    if work.later_ms >= 0.005:
        later = f", and {ms(work.later_ms)} ms later"
    else:
        later = ""
    return f"its own set-up took {ms(work.set_up_ms)} ms, once{later}"


def wait_note(parts: Sequence[PhaseStats]) -> str:
    """What the part ``wait`` is; empty where there is none."""
    if any(part.name == WAIT for part in parts):
        return "wait is in collectives, and by DDP's timers in backward"
    return ""


def confidence(value: float) -> str:
    """``95 %``; never a whole 100 for what is an estimate and not a fact."""
    if value >= 1.0:
        return "100 %"
    return f"{min(99, math.floor(100 * value)):d} %"


def recoverable(finding: Finding) -> str:
    """``15.9 ms a step (95 % interval 15.8 to 16.0), 0.40 h over the rest of the run``; empty where
    nothing is.
    """
    if finding.recoverable_ms_per_step is None:
        return ""
    gain = f"{ms(finding.recoverable_ms_per_step)} ms a step"
    if finding.since:
        gain += f" since step {finding.since.step:,}"
    if finding.interval_ms_per_step:
        low, high = finding.interval_ms_per_step
        gain += f" (95 % interval {ms(low)} to {ms(high)})"
    if finding.recoverable_hours and finding.recoverable_hours >= 0.01:
        gain += f", {finding.recoverable_hours:.2f} h over the rest of the run"
        if finding.recoverable_usd and finding.recoverable_usd >= 0.01:
            gain += f", ${finding.recoverable_usd:,.2f} of rent"
    return gain


def figure(value: float) -> str:
    """A number of any size with four significant digits, or a dash."""
    if not math.isfinite(value):
        return MISSING
    if abs(value) >= 1e4:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def measured(value: float, unit: str) -> str:
    """A number with its unit: milliseconds in the digits that count, others in four."""
    if not unit.startswith("ms"):
        digits = figure(value)
    else:
        if abs(value) < 1:
            digits = f"{value:.3f}"
        else:
            digits = ms(value)
    return f"{digits} {_singular(unit) if value == 1 else unit}".rstrip()


def _singular(unit: str) -> str:
    """``step`` of ``steps``; seconds and shares stay."""
    many = len(unit) > 2 and unit.endswith("s") and " " not in unit
    if many:
        return unit.removesuffix("es" if unit.endswith("sses") else "s")
    return unit


def covered(finding: Finding) -> str:
    """``exit code (HC09), host work (HO06)``: what this finding explains, or empty."""
    return ", ".join(
        f"{CATALOGUE[id].name} ({id})" if id in CATALOGUE else id for id in finding.absorbed
    )


def ranks_to_show(ranks: tuple[RankSummary, ...], at_most: int) -> tuple[list[RankSummary], str]:
    """All ranks, or of too many those that wait least (and hold others up), with a note."""
    if len(ranks) <= at_most:
        return list(ranks), ""
    by_wait = sorted(
        ranks, key=lambda r: (not math.isfinite(r.wait_mean_ms), r.wait_mean_ms, r.rank)
    )
    if math.isfinite(by_wait[0].wait_mean_ms):
        reason = "that wait least"
    else:
        reason = "with the lowest numbers"
    return by_wait[
        :at_most
    ], f"the {at_most} of {counted(len(ranks), 'rank')} {reason}; --json lists them all"


class PeakMemory(NamedTuple):
    """What a table of ranks says of memory: of the device where one told, else of the process."""

    head: str
    gib: Callable[[RankSummary], float]


def peak_memory(ranks: Iterable[RankSummary]) -> PeakMemory:
    """The column of memory for a table of these ranks."""
    if any(math.isfinite(rank.peak_allocated_gib) for rank in ranks):
        return PeakMemory("peak GiB", lambda rank: rank.peak_allocated_gib)
    return PeakMemory("RSS GiB", lambda rank: rank.peak_rss_gib)


def told_lines(budget: Budget) -> list[str]:
    """Lines of the budget that are more than nothing in a column of tenths of a percent."""
    return [name for name in LINES if budget.share(name) >= 0.0005]


def utilisation(budget: Budget) -> list[str]:
    """``MFU 41.2 %``, ``HFU 50.3 %``; those that are known."""
    shares = {"MFU": budget.mfu, "HFU": budget.hfu}
    return [f"{name} {100 * share:.1f} %" for name, share in shares.items() if share is not None]


def budget_notes(report: Report) -> list[str]:
    """What stands below the lines of the budget."""
    notes = [OF_ALL_STEPS, *utilisation(report.budget)]
    if report.goodput is not None:
        notes.append(report.goodput.told())
    if report.budget.not_told_apart:
        notes.append(report.budget.not_told_apart)
    return notes


def balance(table: RankTable | None) -> str:
    """``rank 17 sets 98 % of the steps, 12.0 ms longer in backward than the median rank``; empty
    for no such rank.
    """
    if table is None or not table.source:
        return ""
    exposed = ms(table.exposed_comm_ms)
    imbalance = f"load imbalance {100 * table.load_imbalance:.1f} %"
    sentences = [f"{imbalance}, communication exposed {exposed} ms a step"]
    if table.culprit is not None:
        row = table.ranks.index(table.culprit)
        share = f"{100 * float(table.slowest_share[row]):.0f} %"
        phase, reference = table.cause, "median"
        if phase == "other":
            phase = "host code"
        if len(table) == 2:
            reference = "other"
        longer = ""
        if phase:
            excess = ms(float(table.excess_ms[row]))
            longer = f", {excess} ms longer in {phase} than the {reference} rank"
        sentences.insert(0, f"rank {table.culprit} sets {share} of the steps{longer}")
    elif table.pattern == "rotating":
        sentences.insert(0, "the ranks take turns in being slow")
    return "; ".join(sentences)
