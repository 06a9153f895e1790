"""Phrases that all forms of the report share."""

from __future__ import annotations

import math

from gputop_analysis.findings.registry import CATALOGUE
from gputop_analysis.model import Finding, RankSummary
from gputop_analysis.overview import RunSummary
from gputop_analysis.own_work import OwnWork
from gputop_analysis.rank_table import RankTable
from gputop_analysis.text import MISSING, counted, duration, ms
from gputop_probes.record.reader import RunRecord

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
    return f"{s.steps:,} of {s.total_steps:,}" if s.total_steps else f"{s.steps:,}"


def size(s: RunSummary) -> str:
    """``8 ranks``, or ``6 of 8 ranks`` where the others wrote no step."""
    seen = f"{len(s.ranks)} of " if 0 < len(s.ranks) < s.world_size else ""
    return f"{seen}{counted(s.world_size, 'rank')}"


def speed(s: RunSummary) -> str:
    """``10.9 steps/s, 350 samples/s, mean over the run``; ``no step for 4 min 6 s`` while it stands still."""
    if s.silent_s:
        return f"{s.doing or 'no step'} for {duration(s.silent_s)}"
    if not s.steps_per_s:
        return MISSING
    rates = [f"{s.steps_per_s:,.0f} steps/s" if s.steps_per_s >= 1000 else f"{s.steps_per_s:.4g} steps/s"]
    rates += [f"{s.samples_per_s:,.0f} samples/s"] if s.samples_per_s else []
    rates += [f"{s.tokens_per_s:,.0f} tokens/s"] if s.tokens_per_s else []
    return ", ".join([*rates, "over the last 10 s" if s.state == "running" else "mean over the run"])


def output_notes(record: RunRecord) -> list[str]:
    """What of the command's output is not in the record, in words; a line for each host that has something to say."""
    return [host.state.output_note for host in record.hosts.values() if host.state.output_note]


def own_work(work: OwnWork | None) -> str:
    """``its own set-up took 83.8 ms, once, and 2.90 ms later``; empty where it took none."""
    if work is None or sum(work) < 0.005:
        return ""
    later = f", and {ms(work.later_ms)} ms later" if work.later_ms >= 0.005 else ""
    return f"its own set-up took {ms(work.set_up_ms)} ms, once{later}"


def hidden_wait(s: RunSummary) -> str:
    """``9.20 ms of backward is waiting for other ranks``; empty where nothing tells, or there is none."""
    wait = s.wait_in_backward_ms
    return f"{ms(wait)} ms of backward is waiting for other ranks" if wait >= 0.005 else ""


def confidence(value: float) -> str:
    """``95 %``; never a whole 100 for what is an estimate and not a fact."""
    return "100 %" if value >= 1.0 else f"{min(99, math.floor(100 * value)):d} %"


def recoverable(one: Finding) -> str:
    """``15.9 ms a step (95 % interval 15.8 to 16.0), 0.40 h over the rest of the run``; empty where nothing is."""
    if one.recoverable_ms_per_step is None:
        return ""
    said = f"{ms(one.recoverable_ms_per_step)} ms a step"
    if one.interval_ms_per_step:
        low, high = one.interval_ms_per_step
        said += f" (95 % interval {ms(low)} to {ms(high)})"
    if one.recoverable_hours and one.recoverable_hours >= 0.01:
        said += f", {one.recoverable_hours:.2f} h over the rest of the run"
        said += f", ${one.recoverable_usd:,.2f} of rent" if one.recoverable_usd and one.recoverable_usd >= 0.01 else ""
    return said


def figure(value: float) -> str:
    """A number of any size with four significant digits, or a dash."""
    if not math.isfinite(value):
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def measured(value: float, unit: str) -> str:
    """A number with its unit: times in milliseconds with the digits that mean something, others with four."""
    if not unit.startswith("ms"):
        said = figure(value)
    else:
        said = f"{value:.3f}" if abs(value) < 1 else ms(value)
    return f"{said} {_one(unit) if value == 1 else unit}".rstrip()


def _one(unit: str) -> str:
    """``step`` of ``steps``; seconds and shares stay."""
    many = len(unit) > 2 and unit.endswith("s") and " " not in unit
    return unit.removesuffix("es" if unit.endswith("sses") else "s") if many else unit


def covered(one: Finding) -> str:
    """``exit code (HC09), host work (HO06)``: the findings that this one explains; empty for none."""
    return ", ".join(f"{CATALOGUE[id].name} ({id})" if id in CATALOGUE else id for id in one.absorbed)


def ranks_to_show(ranks: tuple[RankSummary, ...], at_most: int) -> tuple[list[RankSummary], str]:
    """All ranks, or of too many those that wait least (they hold the others up), and a line that says so."""
    if len(ranks) <= at_most:
        return list(ranks), ""
    by_wait = sorted(ranks, key=lambda r: (not math.isfinite(r.wait_mean_ms), r.wait_mean_ms, r.rank))
    said = "that wait least" if math.isfinite(by_wait[0].wait_mean_ms) else "with the lowest numbers"
    return by_wait[:at_most], f"the {at_most} of {counted(len(ranks), 'rank')} {said}; --json lists them all"


def balance(table: RankTable | None) -> str:
    """``rank 17 sets 98 % of the steps, 12.0 ms longer in backward than the median rank``; empty for no such rank."""
    if table is None or not table.source:
        return ""
    exposed = ms(table.exposed_comm_ms)
    said = [f"load imbalance {100 * table.load_imbalance:.1f} %, communication exposed {exposed} ms a step"]
    if table.culprit is not None:
        row = table.ranks.index(table.culprit)
        share = f"{100 * float(table.slowest_share[row]):.0f} %"
        phase, than = "host code" if table.cause == "other" else table.cause, "other" if len(table) == 2 else "median"
        longer = f", {ms(float(table.excess_ms[row]))} ms longer in {phase} than the {than} rank" if phase else ""
        said.insert(0, f"rank {table.culprit} sets {share} of the steps{longer}")
    elif table.pattern == "rotating":
        said.insert(0, "the ranks take turns in being slow")
    return "; ".join(said)
