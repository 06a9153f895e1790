"""Which configurations of a job keep the rules of ``gputop_analysis.parallelism.rules``."""

from __future__ import annotations

import numpy as np

from gputop_analysis.parallelism.rules import (
    SPLIT_RULES,
    STEP_RULES,
    UNEVEN_STAGES,
    SplitRule,
    StepOfSplit,
    Training,
)
from gputop_analysis.parallelism.rules import broken as broken_by
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Bools, Layouts

RULES = (*SPLIT_RULES, *STEP_RULES)


def training_of(job: Job, gpus: int) -> Training:
    """What the rules ask of a job on so many GPUs."""
    uneven = job.recipe in UNEVEN_STAGES
    return Training.of(
        job.model, seq=job.seq, uneven_stages=uneven, gpus=gpus, global_batch=job.global_batch
    )


def allowed(job: Job, layouts: Layouts, gpus: int) -> Bools:
    """Which configurations keep every rule."""
    return np.logical_and.reduce(_kept(job, layouts, gpus))


def broken(job: Job, layouts: Layouts, gpus: int) -> list[tuple[SplitRule, str]]:
    """The rules that the first of ``layouts`` breaks, each with its reason."""
    row = StepOfSplit(layouts.split(0), int(layouts.micro_batch[0]))
    return broken_by(training_of(job, gpus), row, RULES)


def nearest_reasons(job: Job, layouts: Layouts, gpus: int) -> list[str]:
    """Why the configuration that breaks the fewest rules is not allowed; empty where one is."""
    fitting = _kept(job, layouts, gpus)
    nearest = int(np.argmax(fitting.sum(axis=0)))
    return [why for _, why in broken(job, layouts.take([nearest]), gpus)]


def _kept(job: Job, layouts: Layouts, gpus: int) -> Bools:
    """Truth values, rules by configurations."""
    training = training_of(job, gpus)
    return np.stack(
        [np.broadcast_to(rule.holds(training, layouts), layouts.tp.shape) for rule in RULES]
    )
