"""``Trainer(profiler=gputop.lightning.GputopProfiler(),
callbacks=[gputop.lightning.GputopCallback()])``.

The profiler puts Lightning's actions into the record as named phases; the callback puts the logged
metrics there, and step time, phases and memory into Lightning's log as ``gputop/...``. Each works
alone.
"""

from __future__ import annotations

import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from gputop.recording import Recording, begin

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from lightning.pytorch.profilers import Profiler
else:
    try:
        if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
            from pytorch_lightning import Callback
            from pytorch_lightning.profilers import Profiler
        else:
            from lightning.pytorch import Callback
            from lightning.pytorch.profilers import Profiler
    except ImportError as error:
        raise ImportError(
            f"gputop.lightning needs lightning ({error}): pip install lightning"
        ) from None

_KIND = re.compile(r"^\[[^\]]*\]")
_SETTINGS = re.compile(r"\{.*\}")
_SHOWN = 12


class GputopProfiler(Profiler):
    """Times Lightning's actions beside the phases that gputop sees; never changes those."""

    def __init__(self, name: str = "", run_dir: str | os.PathLike[str] | None = None):
        super().__init__()
        self.recording = Recording()
        self._name, self._run_dir = name, run_dir
        self._began_ns: dict[str, int] = {}
        self._totals: dict[str, list[int]] = {}

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        super().setup(stage, local_rank, log_dir)
        if stage == "fit" and self.recording.joined is None:
            self.recording = begin(self._name, self._run_dir)

    def start(self, action_name: str) -> None:
        self._began_ns[action_name] = time.monotonic_ns()

    def stop(self, action_name: str) -> None:
        began_ns = self._began_ns.pop(action_name, None)
        if began_ns is None:
            return
        elapsed_ns = time.monotonic_ns() - began_ns
        name = short_name(action_name)
        total = self._totals.setdefault(name, [0, 0])
        total[0] += elapsed_ns
        total[1] += 1
        if total[1] > 1:  # what happens once is no part of a step
            self.recording.timed(name, elapsed_ns)

    def summary(self) -> str:
        rows = sorted(self._totals.items(), key=lambda item: -item[1][0])[:_SHOWN]
        lines = [f"{'action':<48}{'calls':>8}{'ms a call':>12}{'s in all':>10}"]
        for name, (total_ns, calls) in rows:
            lines.append(
                f"{name:<48}{calls:>8}{total_ns / calls / 1e6:>12.3f}{total_ns / 1e9:>10.2f}"
            )
        if self.recording.run_dir is not None:
            lines.append(f"gputop report {self.recording.run_dir.name}")
        return "\n".join(["", *lines, ""])


class GputopCallback(Callback):
    """Lightning's metrics into the record, gputop's values into Lightning's log."""

    def __init__(self, name: str = "", run_dir: str | os.PathLike[str] | None = None):
        self.recording = Recording()
        self._name, self._run_dir = name, run_dir

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if self.recording.joined is None:
            self.recording = begin(self._name, self._run_dir)
        self.recording.values()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (trainer.fit_loop.epoch_loop._batches_that_stepped) % trainer.log_every_n_steps:
            return
        self.recording.log(trainer.callback_metrics)
        values = self.recording.values()
        if values:
            pl_module.log_dict(values, on_step=True, on_epoch=False, logger=True)


def short_name(action: str) -> str:
    """``[Callback]EarlyStopping{...}.on_fit_start`` as ``EarlyStopping.on_fit_start``."""
    return _SETTINGS.sub("", _KIND.sub("", action)).lstrip(".")
