"""Measured runs that correct the planner: benchmark rows of a CSV file, or a run that gputop recorded."""

from __future__ import annotations

import csv
import io

from gputop_analysis.planner.answers import answers
from gputop_analysis.planner.calibrate import Calibration, calibrate
from gputop_analysis.planner.cost import Cost, cost
from gputop_analysis.planner.hardware import Cluster, cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Layouts
from gputop_analysis.planner.rows import Unreadable, read
from gputop_analysis.vram.setup import Setup

COLUMNS = "model, gpu_model, gpus, seq, global_batch, micro_batch, tp, pp, dp, and step_time_s or tokens_per_s_per_gpu"
_ZERO = {"none": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp1": 3, "fsdp2": 3, "hsdp": 3}
_RECOMPUTE = {"none": 0, "selective": 1, "full": 2}


def from_csv(text: str, name: str = "runs.csv") -> Calibration:
    """The correction that the rows of a CSV text ask for.

    Raises:
        ValueError: no row of it can be predicted; the message gives the first reason.
    """
    cases, reasons = [], []
    for number, row in enumerate(csv.DictReader(io.StringIO(text, newline="")), 2):
        try:
            case = read({(key or "").strip(): value or "" for key, value in row.items()})
        except Unreadable as error:
            reasons.append(f"line {number}: {error}")
            continue
        if case.ran and case.step_s:
            cases.append(case)
    if not cases:
        said = reasons[0] if reasons else f"no row; it needs the columns {COLUMNS}"
        raise ValueError(f"{name}: nothing to calibrate by: {said}")
    return calibrate([answer.parts for answer in answers(cases)], [case.step_s for case in cases])


def job_of_setup(setup: Setup) -> Job:
    """What a setup of the estimator trains, as the planner has it."""
    batch = setup.micro_batch * setup.accumulation * setup.parallel.dp
    share = 0.01 if setup.lora else 1.0
    return Job(setup.model, setup.seq, batch, setup.dtype, setup.optimizer, trainable_share=share)


def layout_of_setup(setup: Setup) -> Layouts:
    """How it is split."""
    p = setup.parallel
    return Layouts.of(
        tp=p.tp,
        pp=p.pp,
        vpp=p.vpp,
        cp=p.cp,
        ep=p.ep,
        dp=p.dp,
        micro_batch=setup.micro_batch,
        zero=_ZERO[p.sharding],
        recompute=_RECOMPUTE[setup.checkpointing],
        sequence_parallel=p.sequence_parallel,
    )


def predicted(setup: Setup, hardware: Cluster) -> Cost:
    """The step of a run as it is, in parts."""
    return cost(job_of_setup(setup), hardware, layout_of_setup(setup))


def from_run(setup: Setup, gpu: str, step_s: float, gpus_per_node: int = 0) -> Calibration:
    """The correction by one measured run: for its model, GPU and cluster.

    Raises:
        ValueError: the step took no time.
        LookupError: the catalog does not have the GPU.
    """
    if not step_s > 0:
        raise ValueError("a run without a measured step says nothing")
    hardware = cluster(gpu, setup.parallel.world, gpus_per_node)
    return calibrate([predicted(setup, hardware)], [step_s])
