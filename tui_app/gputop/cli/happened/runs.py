"""``gputop runs``: what has been recorded, newest first."""

from __future__ import annotations

import json
import shutil
import sys
import time
from argparse import ArgumentTypeError

from gputop.cli.parsing import Parser
from gputop.cli.working import working
from gputop.feed.runs import state_of
from gputop.render.numbers import ago
from gputop.render.rows import shorten_middle


def execute(words: list[str]) -> int:
    """List the runs of the runs directory."""
    options = parser().parse_args(words)
    from gputop_probes.runs import list_runs, no_runs_yet

    with working("reading the runs"):
        infos = list_runs()
    if options.n > 0:
        infos = infos[: options.n]
    if options.json:
        print(json.dumps([run.as_dict() for run in infos], indent=2))
        return 0
    if not infos:
        print(no_runs_yet())
        return 0
    width = max(len(run.name) for run in infos)
    print(f"{'run':<{width}}  {'when':<11} {'state':<10} {'steps':>9}  command")
    for run in infos:
        state = state_of(run)
        called = f"[{run.given_name}] " if run.given_name else ""
        if run.damaged and run.state != "damaged":
            called += "[damaged] "
        when = ago((time.time_ns() - run.started_ns) / 1e9)
        start = f"{run.name:<{width}}  {when:<11} {state:<10} {run.steps:>9,}  "
        print(start + _fitted(called + " ".join(run.command), len(start)))
    return 0


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is no number of runs: 0 for all")
    return int(text)


def parser() -> Parser:
    """Options of the command."""
    parser = Parser("runs", "List the runs, newest first.", usage="gputop runs [-n N] [--json]")
    parser.add_argument(
        "-n", type=_count, default=20, metavar="N", help="how many (default 20; 0: all)"
    )
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    return parser


def _fitted(command: str, used: int) -> str:
    """The command in what is left of a terminal's line; whole where it goes to a file or a pipe."""
    if not sys.stdout.isatty():
        return command
    return shorten_middle(command, max(shutil.get_terminal_size().columns - used, 20))
