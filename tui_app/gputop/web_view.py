"""One viewer of ``gputop serve``: the app of a run, drawn for a browser."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from textual.actions import ActionParseResult
from textual.dom import DOMNode

from gputop.app.application import GputopApp
from gputop.app.source import Source

_NICE = 10
_WRITING = frozenset(("change", "export", "save"))
"""Actions that write files where the server runs: of settings, pictures, plans."""


class ViewerApp(GputopApp):
    """Looks on: what would change the run or write a file is off."""

    read_only = True

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Every key, click and command of every screen comes through here."""
        if self.read_only and _name(action) in _WRITING:
            self.notify("read-only: nothing is written", severity="warning")
            return True
        return await super().run_action(action, default_namespace, namespaces)


def _name(action: str | ActionParseResult) -> str:
    """``save`` of ``screen.save`` and ``app.save(1)``."""
    if isinstance(action, str):
        return action.partition("(")[0].rpartition(".")[2]
    return action[1]


def source_of(run_dir: Path, control: bool) -> Source:
    """A run that goes on is followed; with ``control`` it can be stopped and profiled too."""
    from gputop_probes.runs import read_run

    info = read_run(run_dir)
    if info is None or info.state != "running":
        return Source(run_dir, "replay", None)
    if not control:
        return Source(run_dir, "live", None)
    from gputop.control import RunControl
    from gputop_probes.launch import attach

    return Source(run_dir, "live", RunControl(attach(run_dir)))


def main(words: list[str]) -> None:
    """Draw until the viewer leaves; the training goes first on a busy machine."""
    os.nice(_NICE)
    control = "--control" in words
    app = ViewerApp(source_of(Path(words[0]), control))
    app.read_only = not control
    app.run()


if __name__ == "__main__":
    main(sys.argv[1:])
