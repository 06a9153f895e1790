"""The overview of a run for header, breakdown and memory. Cheap enough for every refresh."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gputop_agent import wire
from gputop_analysis.command_steps import total_steps as command_total
from gputop_analysis.ending import ending
from gputop_analysis.hardware import gib, gpu_summaries, host_summaries
from gputop_analysis.model import PhaseStats, RankSummary
from gputop_analysis.overview import RunSummary
from gputop_analysis.sampled import own_cost, sampled
from gputop_analysis.series import RankSeries, tail_seconds
from gputop_analysis.silence import doing_since, silence_s
from gputop_analysis.stats import weighted_quantile
from gputop_analysis.view import RunView, once_per_view
from gputop_analysis.waits import hidden_wait_ms, mean_wait_ms
from gputop_probes.record.reader import RunRecord

Array = npt.NDArray[Any]

RATE_WINDOW_S = 10.0
SILENT_S = 15.0
"""The recorder samples its host every second; silent for so long, it is gone."""


def summarise(
    record: RunRecord, window_steps: int | None = None, now_ns: int | None = None
) -> RunSummary:
    """Summarise the last ``window_steps`` steps of a run, or all of it.

    Step counts are always over the whole run. Rates are over the last ten seconds while the run
    goes on, 0 while no step comes, and means over the whole window once it has ended. Quantiles
    count a record of n folded steps n times.
    """
    view = RunView(record, window_steps)
    now_ns = time.time_ns() if now_ns is None else now_ns
    state, exit_code, ended_ns = run_state(record, now_ns)
    silent_s = silence_s(view, now_ns) if state == "running" else 0.0
    running = state in ("running", "starting")
    rates = [
        _rates(rank_series, running) if not silent_s else (0.0, 0.0, 0.0)
        for rank_series in view.per_rank.values()
    ]
    walls, weights = _pooled(view)
    steps = _of_all(view)((steps_done(record, rank) for rank in view.ranks), default=0)
    totals = [h["total_steps"] for h in view.hellos.values() if h.get("total_steps")]
    if totals:
        total_steps = int(max(totals))
    else:
        total_steps = command_total(record.manifest.command, steps)
    return RunSummary(
        command=tuple(record.manifest.command),
        state=state,
        exit_code=exit_code,
        started_ns=_started_ns(record),
        ended_ns=ended_ns,
        now_ns=now_ns,
        world_size=view.world_size,
        steps=steps,
        total_steps=total_steps,
        steps_per_s=_of_all(view)((r[0] for r in rates), default=0.0),
        samples_per_s=sum(r[1] for r in rates),
        tokens_per_s=sum(r[2] for r in rates),
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
    )


def _unseen(event: dict[str, Any]) -> str:
    why = event.get("reason", "unknown")
    return f"process {event.get('pid', '?')}: " + (
        "no reason found" if why == "unknown" else str(why)
    )


def run_state(record: RunRecord, now_ns: int) -> tuple[Any, int | None, int | None]:
    """State, exit code and end of a run; ``lost`` when its recorder went without an end."""
    states = [host.state for host in record.hosts.values()]
    codes = [s.exit_code for s in states if s.exit_code is not None]
    exit_code = next((code for code in codes if code), codes[0] if codes else None)
    ends = [s.ended_ns for s in states if s.ended_ns is not None]
    if states and all(s.state == "ended" for s in states):
        return "ended", exit_code, max(ends, default=None)
    if states and any(s.state == "lost" for s in states):
        return "lost", exit_code, None
    last = last_sign_ns(record)
    if now_ns - last > SILENT_S * 1e9:
        return "lost", exit_code, last
    return ("running" if record.ranks() else "starting"), None, None


def last_sign_ns(record: RunRecord) -> int:
    """Time of the newest thing that the recorder wrote."""
    signs = [record.manifest.created_ns]
    for host in record.hosts.values():
        signs.append(host.state.started_ns)
        signs += [int(t.rows[-1]["t_ns"]) for t in (host.host, host.process) if len(t.rows)]
        if host.events.items:
            signs += [int(host.events.items[-1].get("t_ns", 0))]
    signs += [int(record.steps(rank)["t_end_ns"][-1]) for rank in record.ranks()]
    return max(signs)


def _of_all(view: RunView) -> Callable[..., Any]:
    """A group's ranks have done what its last has; of trainings apart, the most counts."""
    together = any(int(hello.get("world_size") or 0) > 1 for hello in view.hellos.values())
    return min if together or len(view.ranks) == 1 else max


def steps_done(record: RunRecord, rank: int) -> int:
    """Steps of a rank over the run without reading all: the last step of each attempt."""
    rows = record.steps(rank)
    ends = sorted({i for i in record.rank_starts(rank) if 0 < i < len(rows)} | {len(rows)})
    return sum(int(rows["step"][end - 1]) + 1 for end in ends if end)


def context(record: RunRecord) -> dict[str, Any]:
    """Run context of all hosts: one host's as it is, several by host name."""
    contexts = {
        name: host.state.context for name, host in record.hosts.items() if host.state.context
    }
    if len(contexts) == 1:
        return dict(next(iter(contexts.values())))
    return dict(contexts)


def _started_ns(record: RunRecord) -> int:
    started = [h.state.started_ns for h in record.hosts.values() if h.state.started_ns]
    return min(started, default=record.manifest.created_ns)


def _rates(series: RankSeries, running: bool) -> tuple[float, float, float]:
    """Steps, samples and tokens per second of one rank."""
    if running:
        rows = tail_seconds(series.rows, RATE_WINDOW_S)
    else:
        rows = series.rows
    if len(rows) == 0:
        return 0.0, 0.0, 0.0
    steady = rows[(rows["flags"] & wire.F_FIRST) == 0]
    rows = steady if len(steady) else rows
    seconds = max(float(rows["wall_ns"].sum()) / 1e9, 1e-9)
    steps, samples, tokens = (
        float(rows[c].sum(dtype=np.float64)) for c in ("n_steps", "samples", "tokens")
    )
    return steps / seconds, samples / seconds, tokens / seconds


def _pooled(view: RunView) -> tuple[Array, Array]:
    """Step times of all ranks and how many steps each stands for, over the steps of means."""
    series = list(view.per_rank.values())
    if not series:
        return np.zeros(0), np.zeros(0)
    walls = [s.wall_ms[s.averaged] for s in series]
    return np.concatenate(walls), np.concatenate([s.n_steps[s.averaged] for s in series])


def _phases(view: RunView, weights: Array) -> tuple[PhaseStats, ...]:
    series = list(view.per_rank.values())
    if not len(weights):
        return ()
    steps, wall_ns = (
        float(weights.sum()),
        sum(float(s.averaged_rows["wall_ns"].sum()) for s in series),
    )
    measured = np.concatenate([s.measured[s.averaged] for s in series])
    if not measured.any():
        measured[:] = True
    stats = []
    for name in wire.PHASES:
        values = np.concatenate([s.phase_ms(name)[s.averaged] for s in series])
        total_ms = float(values @ weights)
        if total_ms:
            p50, p95 = _two_quantiles(values[measured], weights[measured])
        else:
            p50, p95 = (0.0, 0.0)
        stats.append(
            PhaseStats(
                name, total_ms / steps, p50, p95, total_ms * 1e6 / wall_ns if wall_ns else 0.0
            )
        )
    return tuple(stats)


def _wait_in_backward_ms(view: RunView) -> float:
    waits = [(hidden_wait_ms(view, rank), s.averaged_steps) for rank, s in view.per_rank.items()]
    valid = [(wait, steps) for wait, steps in waits if wait == wait]
    total = sum(steps for _, steps in waits)
    if valid:
        return sum(wait * steps for wait, steps in valid) / max(total, 1)
    return float("nan")


def _two_quantiles(values: Array, weights: Array) -> tuple[float, float]:
    order = np.argsort(values)
    cumulated = np.cumsum(weights[order])
    at = np.searchsorted(cumulated, np.array((0.5, 0.95)) * cumulated[-1] * (1 - 1e-12))
    return float(values[order[at[0]]]), float(values[order[at[1]]])


def _rank_summary(view: RunView, rank: int) -> RankSummary:
    series, record, hello = view.per_rank[rank], view.record, view.hello(rank)
    rows = series.rows
    last = rows[-1]
    loss, grad_norm = _latest_scalars(rows, view.device(rank))
    p50, p95 = _two_quantiles(series.wall_ms[series.averaged], series.n_steps[series.averaged])
    return RankSummary(
        rank=rank,
        host=view.host_of(rank),
        steps=steps_done(record, rank),
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
        lr=_last_known(rows["lr"]),
        last_step_ns=int(last["t_end_ns"]),
        alive=_alive(view).get(rank, True),
        not_finite=_not_finite(rows, view.device(rank)),
    )


def _latest_scalars(rows: Array, device: Array) -> tuple[float, float]:
    """Loss and grad norm: of the device clock's late records if any, else of the steps."""
    loss, norm = _last_known(device["loss"]), _last_known(device["grad_norm"])
    return (
        loss if math.isfinite(loss) else _last_known(rows["loss"]),
        norm if math.isfinite(norm) else _last_known(rows["grad_norm"]),
    )


def _not_finite(rows: Array, device: Array) -> str:
    """The newest loss where it is no number; the device clock's late records come first."""
    for table in (device, rows):
        tail = table[-100:]
        known_losses = np.flatnonzero(
            np.isfinite(tail["loss"]) | ((tail["flags"] & wire.F_NONFINITE) != 0)
        )
        if len(known_losses):
            loss = float(tail["loss"][known_losses[-1]])
            if math.isfinite(loss):
                return ""
            if math.isinf(loss):
                return "inf"
            return "NaN"
    return ""


def _last_known(values: Array) -> float:
    tail = values[-100:]
    finite = tail[np.isfinite(tail)]
    return float(finite[-1]) if len(finite) else float("nan")


@once_per_view
def _alive(view: RunView) -> dict[int, bool]:
    """Whether the last that was heard of each rank is that it came."""
    events = view.record.events("rank_start", "hello", "rank_lost", "goodbye")
    return {
        event["rank"]: event["type"] in ("rank_start", "hello")
        for event in events
        if "rank" in event
    }
