"""What a run is asked to be."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class RunSpec(NamedTuple):
    """What to run and how to record it."""

    command: list[str]
    run_dir: Path | None = None
    """Where the record goes; None: a new directory under the runs directory."""
    name: str | None = None
    """What people call the run; None: the name of its directory."""
    headless: bool = False
    """Whether the front passes the output on; otherwise a screen shows it and owns the terminal."""
    quiet: bool = False
    """Without a screen too, keep the output out of our own streams."""
    output_to_stderr: bool = False
    """Pass the command's stdout on to stderr, so that our stdout is free for a report."""
    log_mb: int | None = None
    """How long a log may become before its oldest part is given up, MiB; None: ``$GPUTOP_LOG_MB``
    or 1024.
    """
    pty: bool = False
    """Give the command a pseudo-terminal of its own."""
    separate_stderr: bool | None = None
    """Keep stderr apart from stdout; None: when gputop's own go to different places."""
    hang_s: float | None = None
    """Silence of a rank that counts as a hang; None: ``$GPUTOP_HANG_S`` or 30."""
    gputop_version: str = ""
