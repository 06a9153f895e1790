"""Host and Python: torch.compile that compiles again and again, or gives up midway."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gputop_analysis.findings.advice import Fix, Option
from gputop_analysis.findings.host.launches import launch_bound
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import STEP_TIME, phases
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import Share, everybody, only_on, share_of_all, worst
from gputop_analysis.mend import ByArguments
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import percent
from gputop_analysis.view import RunView

SETTLED_STEPS = 50
"""By then everything that a training needs is compiled."""
MANY = 3
"""A new phase, such as the first evaluation, compiles once or twice; more than this is a habit."""


COMPILING = 0.02
"""Share of the time that recompilations take."""


@finding(
    id="HO09",
    name="recompile storm",
    family="host",
    cause="host",
    trigger=f"more than {MANY} recompilations after step {SETTLED_STEPS}, or 2 that take over "
    f"{percent(COMPILING)} of the time since (lower end of the 95 % interval)",
    fix="torch._dynamo.mark_dynamic, dynamic=True, or inputs of a few lengths only",
    explains=("CE10", "CE11", "ME05"),
    no_use="mark_dynamic: where it is not a size that changes",
    reads="compile events, steps.compile_ns",
    silent="no torch.compile",
    traps="a new phase that must compile once, as the first eval",
    seen_on=CPU,
    pictures=(
        phases("compile"),
        STEP_TIME,
    ),
)
def recompile_storm(view: RunView, spec: Spec) -> Finding | None:
    """Inputs change in a way that the compiled code was not made for."""
    recompiled = {
        rank: events for rank in view.ranks if len(events := _recompilations(view, rank)) >= 2
    }
    shares = [_compiling(view, rank) for rank in recompiled]
    spent = worst(shares)
    if spent is None or spent.mean_ms <= 0:
        return None
    events = recompiled[spent.rank]
    if len(events) <= MANY and not spent.surely_above(COMPILING):
        return None
    site, function, reason = _most_often(events)
    times = Counter(event.get("site") for event in events)[site]
    ends = ""
    if times >= 7:
        ends = "; after 8 recompilations dynamo gives up and runs the function uncompiled"
    return spec.make(
        severity="high" if spent.share.low > 0.20 else "medium",
        title=f"torch.compile compiled {function} again {len(events)} times since step "
        f"{SETTLED_STEPS}",
        evidence=f"{spent.ms.value:.1f} ms of {spent.wall_ms:.1f} ms a step since step "
        f"{SETTLED_STEPS}: {spent.percent}; {times} times {site} {function}, last because: "
        f"{reason}{ends}",
        fix=_remedy(reason, function),
        rank=only_on(spent, shares) if len(shares) == len(view.ranks) else spent.rank,
        site=f"{site} {function}".strip(),
        recoverable_ms_per_step=spent.ms.value,
        interval_ms_per_step=(spent.ms.low, spent.ms.high),
        proof=_storm_proof(spent, len(events)),
    )


def _storm_proof(spent: Share, count: int) -> Proof:
    return Proof(
        statistic=f"recompilations after step {SETTLED_STEPS}",
        value=count,
        threshold=MANY,
        unit="",
        formula=f"recoverable = sum(compile) / steps = {spent.mean_ms:.3f} ms per step",
        inputs=(
            Input("recompilations", count, "", f"compile events with a reason, rank {spent.rank}"),
            Input(
                "compile time per step",
                spent.mean_ms,
                "ms",
                f"steps.compile_ns, {spent.steps:,} steps",
            ),
            Input(
                "lower end of its share",
                100 * spent.share.low,
                "%",
                "block bootstrap, judged against 2 %",
            ),
        ),
    )


def _recompilations(view: RunView, rank: int) -> list[dict[str, Any]]:
    """Compile events after the warm-up in which the number of recompilations grew."""
    recompilations, seen_count = [], 0
    for event in view.record.events("compile"):
        if event.get("rank") == rank:
            count, step = int(event.get("recompiles") or 0), int(event.get("step") or 0)
            if (
                count > seen_count
                and step >= SETTLED_STEPS
                and event.get("t_ns", 0) >= view.from_ns
            ):
                recompilations.append(event)
            seen_count = count
    return recompilations


def _compiling(view: RunView, rank: int) -> Share | None:
    series = view.per_rank[rank]
    mask = series.steps - series.n_steps + 1 >= SETTLED_STEPS
    mask[: series.attempt_start] = False
    return share_of_all(series, mask, lambda rows: rows["compile_ns"])


def _most_often(events: list[dict[str, Any]]) -> tuple[str, str, str]:
    """Place and function that are compiled again most often, and why the last time."""
    site = Counter(str(event.get("site") or "") for event in events).most_common(1)[0][0]
    last = [event for event in events if str(event.get("site") or "") == site][-1]
    return site, str(last.get("function") or "the model"), str(last.get("reason") or "not told")


def _remedy(reason: str, function: str) -> Fix:
    if "size mismatch" in reason or "stride mismatch" in reason:
        name = reason.partition("tensor ")[2].partition(" ")[0].strip("'") or "x"
        index = reason.partition("at index ")[2].partition(".")[0].strip() or "0"
        return Option(
            f"call torch._dynamo.mark_dynamic({name}, {index}) before {function}, or "
            "torch.compile(..., dynamic=True), or pad the inputs to a few lengths",
            mend=ByArguments("torch.compile", {"dynamic": True}, had={"dynamic": False}),
        )
    if "grad_mode" in reason or "GLOBAL_STATE" in reason:
        return (
            f"call {function} under the same grad mode and autocast each time, or compile a copy "
            "for evaluation"
        )
    return (
        f"keep what {function} depends on the same from call to call: pass a number that changes "
        f"as a tensor (the guard that failed: {reason})"
    )


@finding(
    id="HO10",
    name="graph breaks",
    family="host",
    cause="host",
    trigger="torch.compile splits the model at one place or more; medium where the GPU waits "
    "for launches (HO01)",
    fix="take out what dynamo cannot trace: print, .item(), data-dependent branches, "
    "unsupported calls",
    no_use="where the break lies in code that runs seldom",
    reads="hello.compile: graphs and graph breaks, with their reasons",
    silent="no torch.compile; only an info unless the GPU waits for launches (HO01)",
    traps="breaks in code that runs rarely",
    seen_on=CPU,
)
def graph_breaks(view: RunView, spec: Spec) -> Finding | None:
    """Between two graphs Python runs as without torch.compile, and nothing is fused across."""
    reports = (view.hello(rank).get("compile") or {} for rank in view.ranks)
    compiled = next((report for report in reports if report.get("graph_breaks")), None)
    if compiled is None:
        return None
    count, graphs = int(compiled["graph_breaks"]), int(compiled.get("graphs") or 0)
    places = [report for report in compiled.get("breaks") or () if report.get("site")]
    first, where = None, ""
    if places:
        first = f"{places[0]['site']} {places[0].get('function') or ''}".strip()
        where = f" at {first}"
    if len(places) > 1:
        where += f" and {len(places) - 1} more places"
    reasons = "".join(f"; {place['site']}: {place.get('reason') or ''}" for place in places)
    sites = ", ".join(str(place["site"]) for place in places) or "places not told by this torch"
    bound = any(launch_bound(view, rank) for rank in view.ranks)
    return spec.make(
        severity="medium" if bound else "info",
        title=f"torch.compile breaks the model{where}",
        evidence=f"{count} graph breaks, {graphs} graphs{reasons}",
        fix="move it out of the compiled function, or find all of them with "
        f"torch._dynamo.explain(model)(batch): {sites}",
        rank=everybody(view),
        site=first,
        proof=Proof(
            statistic="graph breaks",
            value=count,
            threshold=0,
            unit="",
            formula="no time is claimed: what a break costs depends on what could have "
            "been fused across it",
            inputs=(
                Input(
                    "graph breaks",
                    count,
                    "",
                    "hello.compile.graph_breaks, counted by torch._dynamo",
                ),
                Input("graphs", graphs, "", "hello.compile.graphs"),
                Input("places", len(places), "", "hello.compile.breaks, at most 8"),
            ),
        ),
    )
