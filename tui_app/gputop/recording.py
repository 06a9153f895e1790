"""The run that this process takes part in: the one of ``gputop run``, or one with a recorder of its
own.

What trains is never disturbed: where no recorder can be had, one line says so and everything here
does nothing.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gputop_agent import wire

if TYPE_CHECKING:
    from gputop_probes.in_process import Joined

PREFIX = "gputop/"
"""Of what goes into a framework's own log."""
_AGENT = "gputop_agent.api"


class Recording:
    """What a callback has of the run."""

    def __init__(self, joined: Joined | None = None):
        self.joined = joined
        """The run whose recorder was started from here; None for one of ``gputop run``, or none."""
        self._reader: Any = None

    @property
    def run_dir(self) -> Path | None:
        """Where the record is, if it was begun from here."""
        return self.joined.run_dir if self.joined else None

    def values(self) -> dict[str, float]:
        """``{"gputop/step_ms": ...}``: means over the steps since the last call, or empty."""
        figures = self.figures()
        figures.pop("step", None)
        return {PREFIX + name: round(value, 6) for name, value in figures.items()}

    def figures(self) -> dict[str, float]:
        """The same under their bare names, with ``step``, the number of steps so far."""
        self._reader = self._reader or self._ask("reader")
        try:
            return self._reader.values() if self._reader is not None else {}
        except Exception:  # nothing of ours may reach the training
            return {}

    def log(self, values: Mapping[str, Any]) -> None:
        """Put the framework's scalars beside the steps; what is no number, or ours, is left out."""
        numbers = {}
        for name, value in values.items():
            if not name.startswith(PREFIX) and not isinstance(value, (str, bytes, bool)):
                numbers[name] = value
        if numbers:
            self._ask("log", numbers)

    def timed(self, name: str, elapsed_ns: int) -> None:
        """Count time that the framework measured, under its own name."""
        self._ask("timed", name, elapsed_ns)

    def raised(self, error: BaseException, traceback: TracebackType | None) -> None:
        """Tell of an exception that ends the training and not the process."""
        self._ask("raised", error, traceback)

    def finish(self, exit_code: int = 0) -> None:
        """End a run that was begun here, though the process lives on; its record is whole."""
        joined, self.joined = self.joined, None
        if joined is None:
            return
        from gputop_agent.injection import in_process
        from gputop_probes.in_process import finish

        in_process.leave()
        joined.take_out_of(os.environ)
        finish(joined, exit_code)

    def _ask(self, function: str, *arguments: Any) -> Any:
        agent = sys.modules.get(_AGENT)
        try:
            if agent is not None:
                return getattr(agent, function)(*arguments)
            return None
        except Exception:  # nothing of ours may reach the training
            return None


def begin(name: str = "", run_dir: str | os.PathLike[str] | None = None) -> Recording:
    """Find the run that this process is in; where there is none, start a recorder for it.

    Args:
        name: what people call a run that is begun here.
        run_dir: where its record goes; None: a new directory under the runs directory.
    """
    if os.environ.get(wire.ENV_DISABLE) == "1":
        return Recording()
    try:
        return _begin(name, Path(run_dir) if run_dir is not None else None)
    except Exception as error:
        warnings.warn(f"gputop: not recorded: {error}", stacklevel=3)
        return Recording()


def _begin(name: str, run_dir: Path | None) -> Recording:
    joined = None
    if not os.environ.get(wire.ENV_SOCKET):
        from gputop_probes.in_process import join

        joined = join(_command(), run_dir, name, sys.modules["gputop"].__version__)
        joined.put_into(os.environ)
    importlib.import_module("gputop_agent.injection.in_process").load()
    return Recording(joined)


def _command() -> list[str]:
    """As it would be typed."""
    words = list(getattr(sys, "orig_argv", None) or [sys.executable, *sys.argv])
    return [Path(words[0]).name, *words[1:]]
