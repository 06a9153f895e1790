"""What the front settles before it forks the recorder."""

from __future__ import annotations

from typing import NamedTuple

from gputop_probes.fate import Fate
from gputop_probes.inherited import Inherited
from gputop_probes.run_spec import RunSpec
from gputop_probes.rundir import RunDir
from gputop_probes.streams import Opened


class LaunchPlan(NamedTuple):
    """What the recorder has to know, settled before the fork."""

    spec: RunSpec
    run: RunDir
    opened: Opened
    terminal: tuple[int, int] | None
    """Columns and lines of the terminal that shows the output."""
    cwd: str
    """Where the command starts; empty where that directory is gone."""
    inherited: Inherited
    """What the command is to find as in a bare start."""
    fate: Fate
