"""The overview of a run for header, breakdown and memory. Cheap enough for every refresh."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gputop_agent import wire
from gputop_analysis.command_steps import total_steps as command_total
from gputop_analysis.ending import ending
from gputop_analysis.hangs.silence import doing_since, silence_s
from gputop_analysis.hardware import gib, gpu_summaries, host_summaries
from gputop_analysis.model import PhaseStats, RankSummary
from gputop_analysis.overview import RATE_WINDOW_S, RunSummary
from gputop_analysis.padded import padded_share
from gputop_analysis.sampled import own_cost, sampled
from gputop_analysis.series import tail_seconds
from gputop_analysis.stages import rate_over_ranks
from gputop_analysis.stats import weighted_quantile
from gputop_analysis.text import MISSING
from gputop_analysis.view import RunView, once_per_view
from gputop_analysis.waits import hidden_wait_ms, mean_wait_ms
from gputop_probes.record.reader import RunRecord

Array = npt.NDArray[Any]

SILENT_S = 15.0
"""The recorder samples its host every second; silent for so long, it is gone."""


def summarise(
    record: RunRecord, window_steps: int | None = None, now_ns: int | None = None
) -> RunSummary:
    """Summarise the last ``window_steps`` steps of a run, or all of it.

    Step counts are always over the whole run. Rates are over the last ten seconds while the run
    goes on, 0 while no step comes, and over the same steps as the mean step once it has ended.
    Quantiles count a record of n folded steps n times.
    """
    view = RunView(record, window_steps)
    now_ns = time.time_ns() if now_ns is None else now_ns
    state, exit_code, ended_ns = run_state(record, now_ns)
    silent_s = silence_s(view, now_ns) if state == "running" else 0.0
    rates = _rates(view, state, silent_s)
    walls, weights = _pooled(view)
    steps = _of_all(view)((steps_done(record, rank) for rank in view.ranks), default=0)
    return RunSummary(
        command=tuple(record.manifest.command),
        state=state,
        exit_code=exit_code,
        started_ns=_started_ns(record),
        ended_ns=ended_ns,
        now_ns=now_ns,
        world_size=view.world_size,
        steps=steps,
        total_steps=_total_steps(view, steps),
        steps_per_s=_of_all(view)((rate.steps for rate in rates), default=0.0),
        samples_per_s=rate_over_ranks(view, [rate.samples for rate in rates]),
        tokens_per_s=rate_over_ranks(view, [rate.tokens for rate in rates]),
        step_time_p50_ms=weighted_quantile(walls, weights, 0.5),
        step_time_p95_ms=weighted_quantile(walls, weights, 0.95),
        phases=_phases(view, weights),
        ranks=tuple(_rank_summary(view, rank) for rank in view.ranks),
        gpus=gpu_summaries(record, view.from_ns),
        hosts=host_summaries(record),
        context=context(record),
        unseen=tuple(_unseen(event) for event in record.events("no_agent")),
        ending=ending(record, state, exit_code),
        wait_in_backward_ms=_wait_in_backward_ms(view),
        silent_s=silent_s,
        doing=doing_since(record, now_ns - int(1e9 * silent_s)) if silent_s else "",
        sampled=sampled(view),
        own_cost=own_cost(view),
        steps_left_out=max((s.steps_left_out for s in view.per_rank.values()), default=0),
        padded_share=padded_share(view),
    )


def _total_steps(view: RunView, steps: int) -> int | None:
    """How long the run is to be: what its ranks say, else its command; None where nothing does."""
    totals = [hello["total_steps"] for hello in view.hellos.values() if hello.get("total_steps")]
    if totals:
        return int(max(totals))
    return command_total(view.record.manifest.command, steps)


def _unseen(event: dict[str, Any]) -> str:
    reason = str(event.get("reason", "unknown"))
    if reason == "unknown":
        reason = "no reason found"
    return f"process {event.get('pid', MISSING)}: {reason}"


def run_state(record: RunRecord, now_ns: int) -> tuple[Any, int | None, int | None]:
    """State, exit code and end of a run; ``lost`` when its recorder went without an end."""
    states = [host.state for host in record.hosts.values()]
    exit_code = _exit_code(record)
    if states and all(state.state == "ended" for state in states):
        ends = [state.ended_ns for state in states if state.ended_ns is not None]
        return "ended", exit_code, max(ends, default=None)
    if any(state.state == "lost" for state in states):
        return "lost", exit_code, None
    last_ns = last_sign_ns(record)
    if now_ns - last_ns > SILENT_S * 1e9:
        return "lost", exit_code, last_ns
    return ("running" if record.ranks() else "starting"), None, None


def _exit_code(record: RunRecord) -> int | None:
    """The first that is not 0 of all hosts; None where none is known."""
    codes = [host.state.exit_code for host in record.hosts.values()]
    known_codes = [code for code in codes if code is not None]
    if not known_codes:
        return None
    return next((code for code in known_codes if code), 0)


def last_sign_ns(record: RunRecord) -> int:
    """Time of the newest thing that the recorder wrote."""
    signs = [record.manifest.created_ns]
    for host in record.hosts.values():
        signs.append(host.state.started_ns)
        for samples in (host.host, host.process):
            if len(samples.rows):
                signs.append(int(samples.rows[-1]["t_ns"]))
        if host.events.items:
            signs.append(int(host.events.items[-1].get("t_ns", 0)))
    for rank in record.ranks():
        signs.append(int(record.steps(rank)["t_end_ns"][-1]))
    return max(signs)


def _of_all(view: RunView) -> Callable[..., Any]:
    """A group's ranks have done what its last has; of trainings apart, the most counts."""
    together = any(int(hello.get("world_size") or 0) > 1 for hello in view.hellos.values())
    return min if together or len(view.ranks) == 1 else max


def steps_done(record: RunRecord, rank: int) -> int:
    """Steps of a rank over the run without reading all: the last step of each attempt."""
    rows = record.steps(rank)
    starts = {start for start in record.rank_starts(rank) if 0 < start < len(rows)}
    ends = starts | {len(rows)}  # an attempt ends where the next one starts
    return sum(int(rows["step"][end - 1]) + 1 for end in ends if end)


def steps_at(record: RunRecord, event: dict[str, Any]) -> int | None:
    """Steps that a rank had done when it told of an event, as it counts those it does now; None
    where the event names no step.

    A step stays open until the next one begins: an exception between the two is told of a step
    that was done.
    """
    step, rank = event.get("step"), event.get("rank")
    if step is None:
        return None
    if rank in record.ranks() and int(record.steps(rank)["step"][-1]) == step:
        return int(step) + 1
    return int(step)


def context(record: RunRecord) -> dict[str, Any]:
    """Run context of all hosts: one host's as it is, several by host name."""
    contexts = {
        name: host.state.context for name, host in record.hosts.items() if host.state.context
    }
    if len(contexts) == 1:
        return dict(next(iter(contexts.values())))
    return dict(contexts)


def _started_ns(record: RunRecord) -> int:
    starts = [host.state.started_ns for host in record.hosts.values()]
    return min(filter(None, starts), default=record.manifest.created_ns)


class _Rates(NamedTuple):
    """Of one rank, a second."""

    steps: float
    samples: float
    tokens: float


def _rates(view: RunView, state: str, silent_s: float) -> list[_Rates]:
    """The rates of each rank: of the last seconds while the run goes on, else of the steps that
    means are over.
    """
    nothing = _Rates(0.0, 0.0, 0.0)
    if silent_s:
        return [nothing] * len(view.per_rank)
    rates = []
    for series in view.per_rank.values():
        rows = series.averaged_rows
        if state in ("running", "starting"):
            rows = _without_first(tail_seconds(series.rows, RATE_WINDOW_S))
        rates.append(_rates_of(rows) if len(rows) else nothing)
    return rates


def _without_first(rows: Array) -> Array:
    """The records without those of a process's first step, where there are others."""
    later = rows[(rows["flags"] & wire.F_FIRST) == 0]
    if len(later):
        return later
    return rows


def _rates_of(rows: Array) -> _Rates:
    seconds = max(float(rows["wall_ns"].sum()) / 1e9, 1e-9)
    # as floats: sums of 32-bit counts would wrap around
    steps, samples, tokens = (
        float(rows[column].sum(dtype=np.float64)) for column in ("n_steps", "samples", "tokens")
    )
    return _Rates(steps / seconds, samples / seconds, tokens / seconds)


def _pooled(view: RunView) -> tuple[Array, Array]:
    """Step times of all ranks and how many steps each stands for, over the steps of means."""
    walls, weights = [np.zeros(0)], [np.zeros(0)]
    for series in view.per_rank.values():
        walls.append(series.wall_ms[series.averaged])
        weights.append(series.n_steps[series.averaged])
    return np.concatenate(walls), np.concatenate(weights)


def _phases(view: RunView, weights: Array) -> tuple[PhaseStats, ...]:
    """Means over all steps and quantiles over measured ones; all where none was measured."""
    if not len(weights):
        return ()
    ranks = list(view.per_rank.values())
    steps = float(weights.sum())
    wall_ns = sum(float(series.averaged_rows["wall_ns"].sum()) for series in ranks)
    measured = np.concatenate([series.measured[series.averaged] for series in ranks])
    if not measured.any():
        measured[:] = True
    phases = []
    for name in wire.PHASES:
        times_ns = np.concatenate([series.averaged_rows[f"{name}_ns"] for series in ranks])
        values = times_ns / (1e6 * weights)
        total_ms = float(values @ weights)
        p50, p95 = 0.0, 0.0
        if total_ms:
            p50, p95 = _two_quantiles(values[measured], weights[measured])
        share = total_ms * 1e6 / wall_ns if wall_ns else 0.0
        phases.append(PhaseStats(name, total_ms / steps, p50, p95, share))
    return tuple(phases)


def _wait_in_backward_ms(view: RunView) -> float:
    """The mean over the steps of all ranks; NaN where no rank's wait is known."""
    steps, wait_ms, is_known = 0, 0.0, False
    for rank, series in view.per_rank.items():
        steps += series.averaged_steps
        rank_wait_ms = hidden_wait_ms(view, rank)
        if not math.isnan(rank_wait_ms):
            is_known = True
            wait_ms += rank_wait_ms * series.averaged_steps
    return wait_ms / max(steps, 1) if is_known else math.nan


def _two_quantiles(values: Array, weights: Array) -> tuple[float, float]:
    """The 50th and 95th percentile, as ``weighted_quantile`` has them, in one sort."""
    order = np.argsort(values)
    cumulated = np.cumsum(weights[order])
    at = np.searchsorted(cumulated, np.array((0.5, 0.95)) * cumulated[-1] * (1 - 1e-12))
    return float(values[order[at[0]]]), float(values[order[at[1]]])


def _rank_summary(view: RunView, rank: int) -> RankSummary:
    series, hello = view.per_rank[rank], view.hello(rank)
    rows = series.rows
    last = rows[-1]
    loss, grad_norm = _latest_scalars(rows, view.device(rank))
    p50, p95 = _two_quantiles(series.wall_ms[series.averaged], series.n_steps[series.averaged])
    return RankSummary(
        rank=rank,
        host=view.host_of(rank),
        steps=steps_done(view.record, rank),
        step_time_p50_ms=p50,
        step_time_p95_ms=p95,
        step_time_mean_ms=series.mean_ms("wall_ns"),
        phases_mean_ms={name: series.mean_ms(f"{name}_ns") for name in wire.PHASES},
        wait_mean_ms=mean_wait_ms(view, rank),
        peak_allocated_gib=gib(int(rows["peak_allocated_bytes"].max())),
        peak_reserved_gib=gib(int(rows["reserved_bytes"].max())),
        peak_rss_gib=gib(int(rows["rss_bytes"].max())),
        allocated_gib=gib(int(last["allocated_bytes"])),
        reserved_gib=gib(int(last["reserved_bytes"])),
        rss_gib=gib(int(last["rss_bytes"])),
        dropped_records=int(last["dropped"]),
        device=str(hello.get("device_name") or hello.get("device") or ""),
        loss=loss,
        grad_norm=grad_norm,
        lr=_last_finite(rows["lr"]),
        last_step_ns=int(last["t_end_ns"]),
        alive=_alive(view).get(rank, True),
        not_finite=_not_finite(rows, view.device(rank)),
    )


def _latest_scalars(rows: Array, device: Array) -> tuple[float, float]:
    """Loss and grad norm: of the device clock's late records if any, else of the steps."""
    loss, norm = _last_finite(device["loss"]), _last_finite(device["grad_norm"])
    if math.isnan(loss):
        loss = _last_finite(rows["loss"])
    if math.isnan(norm):
        norm = _last_finite(rows["grad_norm"])
    return loss, norm


def _not_finite(rows: Array, device: Array) -> str:
    """The newest loss where it is no number; the device clock's late records come first."""
    for table in (device, rows):
        tail = table[-100:]
        is_read = np.isfinite(tail["loss"]) | ((tail["flags"] & wire.F_NONFINITE) != 0)
        losses = tail["loss"][is_read]
        if len(losses):
            newest = float(losses[-1])
            if math.isfinite(newest):
                return ""
            return "inf" if math.isinf(newest) else "NaN"
    return ""


def _last_finite(values: Array) -> float:
    """The newest finite value of the last hundred; NaN for none."""
    tail = values[-100:]
    finite = tail[np.isfinite(tail)]
    return float(finite[-1]) if len(finite) else math.nan


@once_per_view
def _alive(view: RunView) -> dict[int, bool]:
    """Whether the last that was heard of each rank is that it came."""
    alive = {}
    for event in view.record.events("rank_start", "hello", "rank_lost", "goodbye"):
        if "rank" in event:
            alive[event["rank"]] = event["type"] in ("rank_start", "hello")
    return alive
