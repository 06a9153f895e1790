"""The memory that was estimated for the run that is being watched, beside what it measures."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from gputop_analysis.units import GIB

if TYPE_CHECKING:
    from gputop_analysis.vram.estimate import Estimate
    from gputop_analysis.vram.setup import Setup
    from gputop_probes.record.reader import RunRecord

Refine = Callable[["Setup", Callable[["Estimate"], None]], None]
"""Begins a trace of a setup and returns at once; the function is called with its estimate."""


class Prediction(NamedTuple):
    """Sizes in GiB; what could not be said is None."""

    allocated_gib: float
    device_total_gib: float
    tier: str
    calibrated: bool = False
    measured_gib: float | None = None
    """Peak allocated of the rank that has most; None on a CPU and before the second step."""
    quick: str = ""
    """The tier that answered before a trace did; the sizes that it said follow."""
    quick_allocated_gib: float = 0.0
    quick_total_gib: float = 0.0

    @property
    def off_pct(self) -> float | None:
        """Measured against predicted."""
        if self.measured_gib is None:
            return None
        return 100 * (self.measured_gib / self.allocated_gib - 1)


class Predictor:
    """Estimates anew only when what the first rank said of itself has changed; a trace refines the
    quick answer where there is one to make it.
    """

    def __init__(self, refine: Refine | None = None) -> None:
        self._key = ""
        self._found: Prediction | None = None
        self._refine = refine

    def of(self, record: RunRecord) -> Prediction | None:
        """The prediction for a record; None while it is not known what is trained. Never raises."""
        ranks = record.ranks()
        if not ranks:
            return None
        hello = record.hello(ranks[0]) or {}
        key = json.dumps({name: hello.get(name) for name in _MATTERS}, sort_keys=True, default=repr)
        try:
            if key != self._key:
                self._key, self._found = key, self._quick(record, key)
            return _with_measured(record, self._found)
        except Exception:  # a prediction is worth no trouble to the screen
            return None

    def _quick(self, record: RunRecord, key: str) -> Prediction | None:
        setup = _setup(record)
        if setup is None:
            return None
        quick = _predict(setup)
        if self._refine is not None and quick.tier != "trace":
            self._refine(setup, lambda traced: self._take(key, quick, traced))
        return quick

    def _take(self, key: str, quick: Prediction, traced: Estimate) -> None:
        """Show the trace of the setup that is still trained; called from another thread."""
        if key == self._key:
            self._found = _prediction(traced)._replace(
                quick=quick.tier,
                quick_allocated_gib=quick.allocated_gib,
                quick_total_gib=quick.device_total_gib,
            )


_MATTERS = (
    "model",
    "optimizer",
    "amp",
    "batch",
    "shapes",
    "parallel",
    "checkpointing",
    "clip",
    "world_size",
)


def _setup(record: RunRecord) -> Setup | None:
    from gputop_analysis.view import RunView
    from gputop_analysis.vram.from_run import setup_of

    return setup_of(RunView(record, window_steps=100))


def _predict(setup: Setup) -> Prediction:
    from gputop.api import answer

    return _prediction(answer(setup, advice=False))


def _prediction(estimated: Estimate) -> Prediction:
    is_calibrated = any(note.startswith("calibrated") for note in estimated.notes)
    return Prediction(
        estimated.peak.allocated / GIB,
        estimated.device_total / GIB,
        estimated.peak.tier,
        is_calibrated,
    )


def _with_measured(record: RunRecord, prediction: Prediction | None) -> Prediction | None:
    from gputop_analysis.view import RunView
    from gputop_analysis.vram.comparison import measured

    if prediction is not None and _on_gpu(record):
        measured_sizes = measured(RunView(record, window_steps=2000))
    else:
        measured_sizes = None
    if prediction is not None and measured_sizes is not None:
        return prediction._replace(measured_gib=measured_sizes.allocated / GIB)
    return prediction


def _on_gpu(record: RunRecord) -> bool:
    return any(
        str((record.hello(rank) or {}).get("device", "")).startswith("cuda")
        for rank in record.ranks()
    )


def remember_run(record: RunRecord) -> str:
    """Store what an ended run measured against its estimate; a line that says so, empty where there
    is nothing to say.

    Raises:
        OSError: the store cannot be written.
    """
    from gputop.calibration import remember
    from gputop_analysis.view import RunView
    from gputop_analysis.vram.comparison import compare

    view = RunView(record)
    comparison = compare(view)
    if comparison is None or any(_is_oom(event) for event in record.events("exception")):
        return ""
    t_ns = max(
        (int(rows.rows["t_end_ns"][-1]) for rows in view.per_rank.values() if len(rows.rows)),
        default=0,
    )
    remember(comparison.record(record.name, t_ns))
    sizes = (
        f"predicted {comparison.estimated / GIB:.2f} GiB, measured "
        f"{comparison.measured.allocated / GIB:.2f} GiB"
    )
    return (
        f"GPU memory: {sizes} ({100 * (comparison.ratio - 1):+.1f} %); estimates of "
        f"{comparison.setup.model.name} start from it"
    )


def _is_oom(event: dict[str, Any]) -> bool:
    return "out of memory" in str(event.get("message") or "").lower()
