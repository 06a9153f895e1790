"""``gputop runs``: what has been recorded, newest first."""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import TYPE_CHECKING

from gputop.cli.parsing import Parser
from gputop.cli.working import working
from gputop.render.rows import shorten_middle

if TYPE_CHECKING:
    from gputop_probes.runs import RunInfo


def execute(words: list[str]) -> int:
    """List the runs of the runs directory."""
    options = parser().parse_args(words)
    from gputop_probes.runs import list_runs, runs_dir

    with working("reading the runs"):
        infos = list_runs()
    if options.n > 0:
        infos = infos[: options.n]
    if options.json:
        print(json.dumps([run.as_dict() for run in infos], indent=2))
        return 0
    if not infos:
        print(f"no runs in {runs_dir()} yet: start one with `gputop run python train.py`")
        return 0
    width = max(len(run.name) for run in infos)
    print(f"{'run':<{width}}  {'when':<11} {'state':<10} {'steps':>9}  command")
    for run in infos:
        state = _state(run)
        called = f"[{run.given_name}] " if run.given_name else ""
        called += "[damaged] " if run.damaged and run.state != "damaged" else ""
        start = f"{run.name:<{width}}  {_ago(run.started_ns):<11} {state:<10} {run.steps:>9,}  "
        print(start + _fitted(called + " ".join(run.command), len(start)))
    return 0


def parser() -> Parser:
    """Options of the command."""
    parser = Parser("runs", "List the runs, newest first.", usage="gputop runs [-n N] [--json]")
    parser.add_argument(
        "-n", type=int, default=20, metavar="N", help="how many (default 20; 0: all)"
    )
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    return parser


def _state(run: RunInfo) -> str:
    if run.stopped_by:
        return "stopped" if run.stopped_by == "you" else run.stopped_by
    return run.state if run.exit_code is None else f"exit {run.exit_code}"


def _fitted(command: str, used: int) -> str:
    """The command in what is left of a terminal's line; whole where it goes to a file or a pipe."""
    if not sys.stdout.isatty():
        return command
    return shorten_middle(command, max(shutil.get_terminal_size().columns - used, 20))


def _ago(then_ns: int) -> str:
    seconds = max(0, time.time_ns() - then_ns) // 10**9
    for unit, size in (("day", 86400), ("hour", 3600), ("min", 60)):
        if seconds >= size:
            count = seconds // size
            return f"{count} {unit}{'s' if count > 1 and unit != 'min' else ''} ago"
    return "just now"
