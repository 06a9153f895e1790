"""``--run RUN`` of the planner's commands: the measured run that a plan starts from."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gputop.cli.notices import notice

if TYPE_CHECKING:
    from gputop_analysis.planner.calibrate import Calibration
    from gputop_analysis.planner.measured import MeasuredRun
    from gputop_analysis.planner.search import Plan
    from gputop_analysis.planner.whatif import Change


@lru_cache
def measured_of(name: str) -> MeasuredRun | None:
    """What a recorded run measured; None for one without GPUs or a known model, or too short.

    Raises:
        CliError: no such run.
    """
    from gputop.cli.records import open_record
    from gputop_analysis.planner.measured import measured_run
    from gputop_analysis.view import RunView

    return measured_run(RunView(open_record(name)))


def gpus_of(name: str) -> tuple[str, int] | None:
    """The GPU of the run and how many; None where that is not known."""
    from gputop_analysis.catalog import gpu

    run = measured_of(name)
    try:
        if run:
            return (gpu(run.gpu).name, run.setup.parallel.world)
        return None
    except LookupError:
        return None


def calibration_by(name: str, gpu: str) -> Calibration | None:
    """The correction by a run for plans on ``gpu``; says on stderr why there is none."""
    from gputop_analysis.planner.measured import from_run

    run, gpus = measured_of(name), gpus_of(name)
    if run is None or gpus is None:
        return _uncorrected(f"run {name} was not measured on a GPU of the catalog")
    if gpus[0] != gpu:
        return _uncorrected(f"run {name} was on {gpus[0]}, which says nothing of {gpu}")
    return from_run(run)


def _uncorrected(why: str) -> None:
    notice(f"{why}: predicted without a correction")


def against_now(name: str, plan: Plan) -> dict[str, Any] | None:
    """The pick against the run as it is; None where the run was not measured."""
    run = measured_of(name)
    if run is None or run.setup.parallel.world < 1:
        return None
    tokens = run.setup.micro_batch * run.setup.accumulation * run.setup.parallel.dp * run.setup.seq
    tokens_per_s = tokens / run.step_s
    low, high = plan.interval(plan.pick)
    speedup = plan.job.tokens / float(plan.seconds[plan.pick]) / tokens_per_s
    return {
        "run": name,
        "gpu": run.gpu,
        "gpus": run.setup.parallel.world,
        "measured_step_time_s": run.step_s,
        "measured_tokens_per_s": tokens_per_s,
        "pick_speedup": speedup,
        "pick_speedup_interval": [speedup / high, speedup / low],
    }


def said_now(name: str, plan: Plan) -> str:
    """The same as a line; empty where the run was not measured."""
    rates = against_now(name, plan)
    if rates is None:
        return ""
    low, high = rates["pick_speedup_interval"]
    return (
        f"run {name} measured {1e3 * rates['measured_step_time_s']:,.0f} ms a step, "
        f"{rates['measured_tokens_per_s']:,.0f} tokens/s on {rates['gpus']} x {rates['gpu']}: the "
        f"pick is predicted x{rates['pick_speedup']:.2f} of now (x{low:.2f} to x{high:.2f} in 80 "
        "% of cases)"
    )


def changes_of_run(name: str) -> tuple[Change, ...]:
    """What each change would do to the run as it is; none if not measured on a known GPU."""
    from gputop.feed.run_base import base_of
    from gputop.feed.whatif import of_run

    run = measured_of(name)
    if run and gpus_of(name):
        return of_run(base_of(run.setup, run, name)).changes
    return ()
