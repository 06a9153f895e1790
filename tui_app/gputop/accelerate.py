"""``Accelerator(log_with=gputop.accelerate.GputopTracker())``.

What the script logs goes into the record. ``follow(accelerator)`` puts step time, phases and memory
as ``gputop/...`` into the trackers beside it; ``values()`` returns them for a script that logs by
itself.
"""

from __future__ import annotations

import os
from typing import Any

from gputop.recording import Recording, begin

try:
    from accelerate.tracking import GeneralTracker
except ImportError as error:
    raise ImportError(
        f"gputop.accelerate needs accelerate ({error}): pip install accelerate"
    ) from None


class GputopTracker(GeneralTracker):
    """A tracker of Accelerate whose store is the run's record."""

    name = "gputop"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run_name: str = "", run_dir: str | os.PathLike[str] | None = None):
        super().__init__()
        self.recording = begin(run_name, run_dir)
        self._beside: list[GeneralTracker] = []

    @property
    def tracker(self) -> Recording:
        """The run, as Accelerate hands it out."""
        return self.recording

    def follow(self, accelerator: Any) -> None:
        """The accelerator's other trackers get our values from now on, with each script's log."""
        trackers = [tracker for tracker in accelerator.trackers if tracker is not self]
        self._beside = trackers if accelerator.is_main_process else []
        self.recording.values()

    def values(self) -> dict[str, float]:
        """Means over the steps since the last call."""
        return self.recording.values()

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Settings are in the record's hello; nothing of the script's is copied."""

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Put the script's numbers beside the steps."""
        self.recording.log(values)
        figures = self.recording.values() if self._beside else {}
        for tracker in self._beside if figures else []:
            tracker.log(figures, step=step)

    def finish(self) -> None:
        """Close the run where it was begun here."""
        self.recording.finish()
