"""``gputop status``: where a run stands, in one line that is made quickly enough for a status bar.

No NumPy and no findings: the newest records of each rank, the state of its hosts, and the severity
of what needs no more to be seen: a loss that is no number, steps that do not come, a failed end.
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gputop import palette
from gputop.cli.parsing import Parser

if TYPE_CHECKING:
    from gputop_probes.runs import RunInfo

_ROWS = 64
"""Of the slowest rank, over which the step time is taken."""
_SILENT_STEPS, _SILENT_S = 10, 5.0
"""No step for so many times the usual, and at least so long, is said."""
_STAYS_BAD = 3
"""Newest records of a rank without a finite loss, from which on it is critical."""
_TAIL_BYTES = 4 << 20
"""Events of a host in which to look for a suspected hang: the stacks of its ranks follow it."""


class RunStanding(NamedTuple):
    """What the line is made of."""

    name: str
    state: str
    exit_code: int | None
    script: str
    steps: int
    step_ms: float
    """Mean of the newest steps; NaN before the first."""
    loss: float
    """The newest; NaN where none is known or it is no number."""
    loss_is_bad: bool
    silent_s: float
    """Since the newest step, while that is longer than usual; else 0."""
    severity: str = ""
    """A health of the palette's: ``critical``, ``attention``, ``failed``, ``stopped``, ``ended``;
    empty while the run goes on and nothing of it is wrong that can be seen without judging it.
    """

    def short(self) -> str:
        """``train.py 600 21.0 ms loss 1.74``, ``✖ critical train.py 80 NO STEP 4:06``."""
        parts = [self.script]
        if self.severity:
            mark = palette.HEALTH[self.severity]
            parts = [mark.glyph, mark.word, self.script]
        if self.state == "running":
            parts.append(f"{self.steps:,}" if self.steps else "starting")
        else:
            parts.append(self.state if self.exit_code is None else f"exit {self.exit_code}")
        if self.silent_s:
            minutes, seconds = divmod(round(self.silent_s), 60)
            parts.append(f"NO STEP {minutes}:{seconds:02}")
        elif math.isfinite(self.step_ms) and self.state == "running":
            parts.append(_step_time(self.step_ms))
        if self.loss_is_bad:
            parts.append("loss NaN")
        elif math.isfinite(self.loss):
            parts.append(f"loss {self.loss:.4g}")
        return " ".join(parts)

    def data(self) -> dict[str, Any]:
        """For JSON: what is not known is null."""
        data_ = self._asdict()
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in data_.items()
        }


def execute(words: list[str]) -> int:
    """Print the line. Returns 3 where there is no such run."""
    options = parser().parse_args(words)
    from gputop.cli.errors import CliError
    from gputop_probes.runs import RunNotFound, find_run, read_run

    try:
        run = read_run(find_run(options.run))
    except RunNotFound as error:
        if options.short:  # a status bar shows nothing where nothing runs
            return 3
        raise CliError(str(error), 3) from None
    if run is None or run.state == "damaged":
        if options.short:
            return 3
        raise CliError(f"the record of {options.run} cannot be read", 3)
    standing = standing_of(run, time.time_ns())
    if options.json:
        print(json.dumps(standing.data()))
    elif options.short:
        print(standing.short())
    else:
        state = "" if standing.severity == standing.state else f"{standing.state}, "
        print(f"{standing.name}: {state}{standing.short()}")
    return 0


def parser() -> Parser:
    """Options of the command."""
    parser = Parser("status", "Where a run stands, in one line; made in milliseconds.")
    parser.add_run()
    parser.add_argument(
        "--short",
        action="store_true",
        help="the line alone, and nothing where there is no run: for tmux and prompts",
    )
    parser.add_argument("--json", action="store_true", help="the same as one JSON object")
    return parser


def standing_of(run: RunInfo, now_ns: int) -> RunStanding:
    """The standing of a run at a moment."""
    from gputop_probes.record.files import rank_files

    newest = [rows for _, file in rank_files(run.path / "steps") if (rows := _newest(file))]
    slowest = min(newest, key=lambda rows: rows[-1]["step"], default=[])
    steps = sum(row["n_steps"] for row in slowest)
    if steps:
        step_ms = sum(row["wall_ns"] for row in slowest) / 1e6 / steps
    else:
        step_ms = math.nan
    losses = [row["loss"] for row in slowest if math.isfinite(row["loss"])]
    bad_records = max(map(_newest_bad, newest), default=0)
    is_bad = bad_records > 0
    silent_s = 0.0
    if slowest and run.state == "running":
        since_s = (now_ns - max(rows[-1]["t_end_ns"] for rows in newest)) / 1e9
        if since_s > max(_SILENT_S, _SILENT_STEPS * step_ms / 1e3):
            silent_s = since_s
    return RunStanding(
        name=run.name,
        state=run.state,
        exit_code=run.exit_code,
        script=_script(run.command),
        steps=run.steps,
        step_ms=step_ms,
        loss=losses[-1] if losses and not is_bad else math.nan,
        loss_is_bad=is_bad,
        silent_s=silent_s,
        severity=_severity(run, bad_records, silent_s),
    )


def _severity(run: RunInfo, bad_records: int, silent_s: float) -> str:
    """The health that facts alone tell; see ``RunStanding.severity``."""
    if run.state == "lost" or (run.exit_code and not run.stopped_by):
        return "failed"
    if bad_records >= _STAYS_BAD or (silent_s and _is_suspected_to_hang(run.path)):
        return "critical"
    if run.state == "ended":
        return "stopped" if run.stopped_by else "ended"
    if silent_s or bad_records:
        return "attention"
    return ""


def _is_suspected_to_hang(run_dir: Path) -> bool:
    """Whether a host suspects a hang that is not over."""
    from gputop_probes.record import layout
    from gputop_probes.record.files import host_folders, read_tail

    for folder in host_folders(run_dir):
        text = read_tail(folder / layout.EVENTS_FILE, _TAIL_BYTES)
        if text.rfind(b'"hang_suspected"') > text.rfind(b'"hang_over"'):
            return True
    return False


def _newest(file: Path) -> list[dict[str, Any]]:
    """The newest records of a rank that can be true."""
    from gputop_probes.record.one_row import last_rows, row_is_sound

    try:
        return [row for row in last_rows(file, _ROWS) if row_is_sound(row)]
    except OSError:
        return []


def _newest_bad(rows: list[dict[str, Any]]) -> int:
    """Newest records of a rank whose loss is no number, without a gap."""
    from gputop_agent.wire import F_NONFINITE

    count = 0
    for row in reversed(rows):
        if not row["flags"] & F_NONFINITE:
            break
        count += 1
    return count


def _script(command: list[str]) -> str:
    scripts = [word for word in command if word.endswith(".py")]
    return os.path.basename((scripts or command or ["run"])[0])


def _step_time(step_ms: float) -> str:
    if step_ms >= 1000:
        return f"{step_ms / 1000:.2f} s"
    return f"{step_ms:.0f} ms" if step_ms >= 100 else f"{step_ms:.1f} ms"
