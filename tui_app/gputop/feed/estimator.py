"""Computes the estimator screen's contents in a worker thread; reads what a live run trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gputop.feed.plots import Trouble
from gputop.feed.snapshot import Snapshot

if TYPE_CHECKING:
    from gputop.feed.form import Form
    from gputop_analysis.vram.estimate import Estimate
    from gputop_analysis.vram.setup import Setup
    from gputop_probes.record.reader import RunRecord

Tracer = Callable[["Setup", str, Callable[[str], None]], "Estimate"]
"""(setup, GPU, told of the progress) -> the estimate of a trace."""
_KEPT = 64
NOT_TOLD = (
    "The run's model has no configuration that says its architecture, or its batches "
    "have no sequence length."
)


@dataclass(frozen=True, slots=True)
class RunSetup:
    """What the live run trains."""

    setup: Setup
    name: str


@dataclass(frozen=True)
class RunSetupLoader:
    """Reads it out of the record."""

    def __call__(self, record: RunRecord, snapshot: Snapshot) -> RunSetup | Trouble:
        from gputop_analysis.view import RunView
        from gputop_analysis.vram.from_run import setup_of

        setup = setup_of(RunView(record, window_steps=200))
        if setup is not None:
            return RunSetup(setup, record.name)
        return Trouble(NOT_TOLD)


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one form."""

    form: Form
    estimate: Estimate | None = None
    base: Estimate | None = None
    problem: str = ""
    quick: Estimate | None = None
    """What was answered before a trace of the same setup."""


class Estimator:
    """Answers forms; what was traced or asked before is remembered."""

    def __init__(self, tracer: Tracer | None = None):
        self._tracer = tracer or trace
        self._traced: dict[tuple[Setup, str], Estimate] = {}
        self._known: dict[tuple[Setup, str], Estimate] = {}

    def answer(self, form: Form) -> Result:
        """By a trace if this setup was traced, else by profile or formula. Never raises."""
        if form.base is not None:
            base = self._of(form.base, form.gpu)[0]
        else:
            base = None
        estimated, problem = self._of(form.setup, form.gpu)
        is_traced = (form.setup, form.gpu) in self._traced
        if is_traced:
            quick = self._known.get((form.setup, form.gpu))
        else:
            quick = None
        return Result(form, estimated, base, problem, quick)

    def trace(self, form: Form, progress: Callable[[str], None]) -> Result:
        """Trace the form's setup, and answer by that. Never raises."""
        try:
            self._traced[form.setup, form.gpu] = self._tracer(form.setup, form.gpu, progress)
        except Exception as error:
            result = self.answer(form)
            if result.estimate:
                tier = f"; the {result.estimate.peak.tier} tier answers"
            else:
                tier = ""
            return Result(form, result.estimate, result.base, f"no trace: {_said(error)}{tier}")
        return self.answer(form)

    def _of(self, setup: Setup, gpu: str) -> tuple[Estimate | None, str]:
        key = setup, gpu
        if key in self._traced:
            return self._traced[key], ""
        if key not in self._known:
            from gputop.api import answer

            try:
                self._known[key] = answer(setup, gpu=gpu)
            except (ValueError, LookupError) as error:
                return None, str(error)
            except Exception as error:  # a fault of ours: the screen says so and goes on
                return None, f"this could not be estimated: {_said(error)}"
            for old in list(self._known)[:-_KEPT]:
                del self._known[old]
        return self._known[key], ""


def trace(setup: Setup, gpu: str, progress: Callable[[str], None]) -> Estimate:
    """The estimate of a trace in this interpreter."""
    from gputop.api import answer

    return answer(setup, "trace", gpu, progress=progress)


def _said(error: Exception) -> str:
    if str(error).strip():
        return str(error).strip().splitlines()[-1]
    return type(error).__name__
