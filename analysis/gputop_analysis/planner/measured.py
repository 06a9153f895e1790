"""Measured runs to correct the planner: benchmark rows of a CSV file, or a recorded run."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace

from gputop_analysis import run_tables
from gputop_analysis.parallelism.split import RECOMPUTES
from gputop_analysis.planner import memory
from gputop_analysis.planner.answers import answers
from gputop_analysis.planner.calibrate import Calibration, by_phases, calibrate, with_memory
from gputop_analysis.planner.cost import Cost, cost
from gputop_analysis.planner.hardware import Cluster, cluster
from gputop_analysis.planner.job import Job, trainable_share
from gputop_analysis.planner.layout import Layouts
from gputop_analysis.planner.rows import Unreadable, read
from gputop_analysis.series import ENOUGH_STEPS
from gputop_analysis.split import split_of
from gputop_analysis.view import RunView
from gputop_analysis.vram.comparison import measured as measured_memory
from gputop_analysis.vram.from_run import setup_of
from gputop_analysis.vram.setup import Setup

COLUMNS = (
    "model, gpu_model, gpus, seq, global_batch, micro_batch, tp, pp, dp, and step_time_s "
    "or tokens_per_s_per_gpu"
)


def from_csv(text: str, name: str = "runs.csv") -> Calibration:
    """The correction that the rows of a CSV text ask for.

    Raises:
        ValueError: no row of it can be predicted; the message gives the first reason.
    """
    cases, reasons = [], []
    table = run_tables.read(io.StringIO(text, newline=""))
    for number, row in enumerate(table.rows, 2):
        try:
            case = read(row)
        except Unreadable as error:
            reasons.append(f"line {number}: {error}")
            continue
        if case.ran and case.step_s:
            cases.append(case)
    if not cases:
        reason = reasons[0] if reasons else f"no row; it needs the columns {COLUMNS}"
        raise ValueError(f"{name}: nothing to calibrate by: {reason}")
    predicted = answers(cases)
    calibrated = calibrate([answer.parts for answer in predicted], [case.step_s for case in cases])
    pairs = [
        (answer.allocated_gib, case.peak_gib)
        for answer, case in zip(predicted, cases, strict=True)
        if case.peak_gib
    ]
    return with_memory(
        calibrated, [predicted_gib for predicted_gib, _ in pairs], [peak for _, peak in pairs]
    )


def job_of_setup(setup: Setup) -> Job:
    """What a setup of the estimator trains, as the planner has it."""
    batch = setup.micro_batch * setup.accumulation * setup.parallel.dp
    share = trainable_share(setup.lora is not None)
    return Job(setup.model, setup.seq, batch, setup.dtype, setup.optimizer, trainable_share=share)


def layout_of_setup(setup: Setup) -> Layouts:
    """How it is split."""
    split = setup.parallel
    return Layouts.of(
        tp=split.tp,
        pp=split.pp,
        vpp=split.vpp,
        cp=split.cp,
        ep=split.ep,
        dp=split.dp,
        micro_batch=setup.micro_batch,
        zero=split.stage,
        recompute=RECOMPUTES.index(setup.checkpointing),
        replicas=split.replicas,
        sequence_parallel=split.sequence_parallel,
    )


def predicted(setup: Setup, hardware: Cluster) -> Cost:
    """The step of a run as it is, in parts."""
    return cost(job_of_setup(setup), hardware, layout_of_setup(setup))


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """What a record says of one run; seconds are means of a steady step of a rank."""

    setup: Setup
    gpu: str
    step_s: float
    input_s: float = 0.0
    """Waiting for data and copying it to the device."""
    communication_s: float = 0.0
    """Exposed."""
    allocated_bytes: float = 0.0
    """Highest of the ranks; 0 where it was not measured."""


def measured_run(view: RunView) -> MeasuredRun | None:
    """None for a run without GPUs or a known architecture, and before ``ENOUGH_STEPS`` steady
    steps.
    """
    setup = setup_of(view)
    gpus = [
        info.name for host in view.record.hosts.values() for info in host.state.gpus if info.ours
    ]
    steady = [rank_series for rank_series in view.per_rank.values() if rank_series.steady.any()]
    steps = sum(int(rank_series.n_steps[rank_series.steady].sum()) for rank_series in steady)
    if setup is None or not gpus or steps < ENOUGH_STEPS:
        return None
    step_s = (
        sum(float(rank_series.steady_rows["wall_ns"].sum()) for rank_series in steady) / steps / 1e9
    )
    splits = [split_of(view, rank_series.rank) for rank_series in steady]
    total_wall = sum(split.wall for split in splits) or 1
    peaks = measured_memory(view)
    return MeasuredRun(
        setup,
        gpus[0],
        step_s,
        input_s=step_s * sum(split.data + split.h2d for split in splits) / total_wall,
        communication_s=step_s * sum(split.comm for split in splits) / total_wall,
        allocated_bytes=float(peaks.allocated) if peaks else 0.0,
    )


def from_run(run: MeasuredRun, gpus_per_node: int = 0) -> Calibration:
    """The correction by one measured run: for its model, GPU and cluster.

    The wait for data is taken off and goes with the samples of a rank; communication, where there
    is enough of it, corrects the links apart from the GPU; the peak of memory corrects the estimate
    of memory.

    Raises:
        ValueError: the step took no time.
        LookupError: the catalog does not have the GPU.
    """
    if not run.step_s > 0:
        raise ValueError("a run without a measured step says nothing")
    hardware = cluster(run.gpu, run.setup.parallel.world, gpus_per_node)
    job, layouts = job_of_setup(run.setup), layout_of_setup(run.setup)
    calibrated = by_phases(
        cost(job, hardware, layouts), max(run.step_s - run.input_s, 1e-9), run.communication_s
    )
    samples = job.global_batch / run.setup.parallel.dp
    calibrated = replace(calibrated, input_s_per_sample=run.input_s / samples)
    if not run.allocated_bytes:
        return calibrated
    return with_memory(
        calibrated, memory.allocated_bytes(job, layouts).tolist(), [run.allocated_bytes]
    )
