"""A live run as base line of the planner's question: what it trains, its step time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gputop.feed.planning import Ask
from gputop.feed.plots import Trouble
from gputop.feed.snapshot import Snapshot
from gputop.feed.unknown_run import Unknown, unknown
from gputop_analysis.units import GIB

if TYPE_CHECKING:
    from gputop_analysis.planner.calibrate import Calibration
    from gputop_analysis.planner.measured import MeasuredRun
    from gputop_analysis.vram.setup import Setup
    from gputop_probes.record.reader import RunRecord


@dataclass(frozen=True, slots=True)
class RunBase:
    """A live run as the base line: what it trains, and how long its step takes."""

    ask: Ask
    step_s: float
    setup: Setup
    name: str
    calibration: Calibration | None = None
    peak_gib: float = 0.0
    """Measured, with the context; 0 where it was not."""

    @property
    def source(self) -> str:
        """Where the planner's figures start from."""
        if not self.step_s:
            return f"run {self.name}, not measured on a GPU"
        return f"run {self.name}, {1e3 * self.step_s:,.0f} ms a step"


@dataclass(frozen=True)
class RunBaseLoader:
    """Reads the base line from the live run's record; ``example``: asked for unknown models."""

    example: Ask | None = None

    def __call__(self, record: RunRecord, snapshot: Snapshot) -> RunBase | Unknown | Trouble:
        from gputop_analysis.planner.measured import measured_run
        from gputop_analysis.view import RunView
        from gputop_analysis.vram.from_run import setup_of

        view = RunView(record, window_steps=200)
        setup = setup_of(view)
        if setup is None:
            trouble = Trouble("The run does not tell its model's architecture.")
            return unknown(view, self.example) if self.example else trouble
        return base_of(setup, measured_run(view), snapshot.name)


def base_of(setup: Setup, run: MeasuredRun | None, name: str) -> RunBase:
    """The question that a run answers itself; what it measured corrects the plan where it runs on a
    GPU of the catalog, and is None where there is none.
    """
    import numpy as np

    from gputop_analysis.planner import memory
    from gputop_analysis.planner.measured import from_run, job_of_setup

    job = job_of_setup(setup)
    chip = run.gpu if run else "H100"
    ask = Ask(
        job.model, job.seq, job.global_batch, job.dtype, job.optimizer, chip, setup.parallel.world
    )
    ask = replace(ask, lora=setup.lora is not None)
    try:
        calibration = from_run(run) if run else None
    except (ValueError, LookupError):
        calibration = None
    allocated_bytes = run.allocated_bytes if run else 0.0
    if allocated_bytes:
        peak = float(memory.reserved_bytes(np.array(allocated_bytes))) / GIB
    else:
        peak = 0.0
    return RunBase(ask, run.step_s if run else 0.0, setup, name, calibration, peak)
