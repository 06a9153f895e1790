"""The recorder's part in the output: a keeper is always at work, and what is lost is told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gputop_probes.output import Losses, OutputHolder
from gputop_probes.recorder.journal import Journal

if TYPE_CHECKING:
    from gputop_probes.recorder.loop import Recorder

_SETTLE_S = 2.0
_LOOK_S = 1.0


class OutputWatch:
    """Tends the output of the recorder's command."""

    def __init__(self, output: OutputHolder, journal: Journal):
        self._output = output
        self._journal = journal
        self._told = Losses(0, 0, 0)
        self._next = 0.0

    def attach_to(self, recorder: Recorder) -> None:
        """Tend it on every tick, and wait at the end until the log is whole."""
        recorder.chores.append(("output", self.tend))
        recorder.farewells.insert(0, ("output", self.finish))

    def tend(self) -> None:
        """One look; losses are told once a second."""
        self._output.tend()
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LOOK_S
            self._tell()

    def finish(self) -> None:
        """Wait until what the command wrote is in the log."""
        self._output.settle(_SETTLE_S)
        self._tell()

    def _tell(self) -> None:
        losses = self._output.losses()
        if losses.missing > self._told.missing or (losses.given_up and not self._told.given_up):
            self._journal.event("output_lost", **losses._asdict())
        if losses != self._told:
            self._journal.save_state(output_losses=losses._asdict(), output_note=_note(losses))
        self._told = losses


def _note(losses: Losses) -> str:
    parts = []
    if losses.given_up:
        parts.append(
            f"the oldest {_size(losses.given_up)} were given up (by --log-mb, or for want of room)"
        )
    if losses.missing:
        parts.append(f"{_size(losses.missing)} are missing: the disk took no more")
    if losses.not_passed_on:
        parts.append(f"{_size(losses.not_passed_on)} could not be written to gputop's own output")
    return "; ".join(parts)


def _size(count: int) -> str:
    if count >= 1e6:
        return f"{count / 1e6:,.1f} MB"
    return f"{count:,} bytes"
