"""What single changes would do to a configuration: a live run's, or a strategy's."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gputop_analysis.text import step_time

if TYPE_CHECKING:
    from gputop.feed.planning import Ask
    from gputop.feed.run_base import RunBase
    from gputop_analysis.planner.choices import Choice
    from gputop_analysis.planner.whatif import Change, Subject


class WhatIf(NamedTuple):
    """All changes of one configuration, and what it costs now."""

    title: str
    now: str
    """The configuration as it is, in a sentence that says whether it was measured."""
    changes: tuple[Change, ...]
    usd_per_million_tokens: float | None
    """Now; a change of the step moves it in proportion. None where no rent is known."""


def of_choice(ask: Ask, chosen: Choice, base: RunBase | None) -> WhatIf:
    """Of a configuration that was planned.

    Raises:
        LookupError: the catalog does not have the GPU.
    """
    subject = _subject(ask, chosen.layout, base)
    low, high = chosen.interval_s
    by = "corrected by the run" if subject.calibration.rows else "predicted"
    headline = (
        f"{by}: {step_time(chosen.step_s)} a step, {step_time(low)} to {step_time(high)} in 80 % "
        f"of cases, {chosen.reserved_gib:.1f} GiB"
    )
    return _answer(f"What if: {chosen.name}", headline, subject, chosen.step_s, ask)


def of_run(base: RunBase) -> WhatIf:
    """Of a run as it is: what was measured is where each change starts from.

    Raises:
        LookupError: the catalog does not have the GPU.
    """
    from dataclasses import replace

    from gputop_analysis.planner.measured import layout_of_setup

    subject = _subject(base.ask, layout_of_setup(base.setup).row(0), base)
    if not base.step_s:
        headline = (
            f"the run was not measured on a GPU: everything is predicted, on {base.ask.gpus} "
            f"x {base.ask.gpu}"
        )
        return _answer(f"What if: run {base.name}", headline, subject, 0.0, base.ask)
    peak = f", {base.peak_gib:.1f} GiB" if base.peak_gib else ""
    headline = (
        f"measured: {step_time(base.step_s)} a step{peak}, on {base.ask.gpus} x {base.ask.gpu}; "
        "changes are predicted from it"
    )
    measured = replace(subject, measured_s=base.step_s, measured_gib=base.peak_gib)
    return _answer(f"What if: run {base.name}", headline, measured, base.step_s, base.ask)


def _subject(ask: Ask, layout: dict[str, int | bool], base: RunBase | None) -> Subject:
    from gputop_analysis.planner.calibrate import Calibration
    from gputop_analysis.planner.hardware import cluster
    from gputop_analysis.planner.whatif import Subject

    if base is not None and base.calibration is not None:
        calibration = base.calibration
    else:
        calibration = Calibration()
    return Subject(ask.job, cluster(ask.gpu, ask.gpus), layout, calibration)


def _answer(title: str, now: str, subject: Subject, step_s: float, ask: Ask) -> WhatIf:
    from gputop.own_prices import usd_per_gpu_hour
    from gputop_analysis.planner.whatif import changes

    changes_ = changes(subject)
    step_s = step_s or next((change.before_s for change in changes_), 0.0)
    rent = usd_per_gpu_hour(subject.cluster.device.name)
    if rent is None:
        cost = None
    else:
        cost = rent / 3600 * ask.gpus * step_s / ask.job.tokens * 1e6
    return WhatIf(title, now, changes_, cost)
