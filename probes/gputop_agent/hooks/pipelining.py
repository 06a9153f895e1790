"""torch.distributed.pipelining: a step's micro-batches, and a stage's waits for neighbours."""

from gputop_agent.hooks import collectives
from gputop_agent.runtime import finder, guard
from gputop_agent.runtime.session import session


def install(torch):
    """Wrap the schedules when they are imported."""
    finder.after_import("torch.distributed.pipelining.schedules", _wrap)


def _wrap(module):
    guard.patch(
        module,
        "_wait_batch_p2p",  # on a GPU the host goes on at once and next to nothing is booked
        guard.around(module._wait_batch_p2p, collectives.before, collectives.after),
    )
    for name in ("PipelineScheduleSingle", "PipelineScheduleMulti"):
        schedule = getattr(module, name)
        guard.patch(schedule, "step", guard.around(schedule.step, before_step, after_step))


def before_step(args, kwargs):
    """Note the schedule once: the hello tells it."""
    if session.pipeline is None:
        session.pipeline, session.engine_seen = describe(args[0]), True


def after_step(token, args, result):
    """Nothing to do: ``before_step`` gives no token."""


def describe(schedule):
    """Stages of the whole pipeline, those of this rank, and micro-batches a step."""
    several = getattr(schedule, "_stages", None)
    stages = list(several) if several is not None else [schedule._stage]
    return {
        "schedule": type(schedule).__name__,
        "ranks": int(stages[0].group_size),
        "stages": int(stages[0].num_stages),
        "here": [int(stage.stage_index) for stage in stages],
        "micro_batches": int(schedule._n_microbatches),
    }
