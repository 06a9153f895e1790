"""``Trainer(callbacks=[gputop.transformers.GputopCallback()])``.

The Trainer's scalars go into the record, and step time, phases and memory into the Trainer's own
log as ``gputop/...``.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from gputop.recording import Recording, begin

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import CallbackHandler
except ImportError as error:
    raise ImportError(
        f"gputop.transformers needs transformers ({error}): pip install transformers"
    ) from None


class GputopCallback(TrainerCallback):
    """Sees to it that the run is recorded, and that either log has the other's values."""

    def __init__(self, name: str = "", run_dir: str | os.PathLike[str] | None = None):
        self._name, self._run_dir = name, run_dir
        self.recording = Recording()

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        _go_first(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.recording.joined is None:
            self.recording = begin(self._name or (args.run_name or ""), self._run_dir)
        self.recording.values()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        logs = logs if logs is not None else {}
        self.recording.log(logs)
        values = self.recording.values()
        logs.update(values)
        if state.log_history:  # the Trainer has put its copy there already
            state.log_history[-1].update(values)


def _go_first(callback: GputopCallback) -> None:
    """Stand before the callbacks that write logs: the one that calls us holds the list."""
    handler = sys._getframe(2).f_locals.get("self")
    if isinstance(handler, CallbackHandler) and callback in handler.callbacks:
        other_callbacks = [other for other in handler.callbacks if other is not callback]
        handler.callbacks = [callback, *other_callbacks]
