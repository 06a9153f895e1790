"""``gputop publish RUN``: figures for Prometheus, OTLP, W&B, MLflow, TensorBoard, Trackio."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gputop.cli.errors import CliError
from gputop.cli.notices import notice
from gputop.cli.parsing import Parser
from gputop.cli.records import open_record
from gputop.publish.table import PUBLISHERS

if TYPE_CHECKING:
    from gputop.publish.follow import Asked

_USAGE = "gputop publish [RUN] --prometheus :9400 | --otlp URL | --wandb PROJECT | ..."
_NICE = 10


def execute(words: list[str]) -> int:
    """Publish a run until it is over, or at once. Returns 1 where a publisher failed."""
    options = parser().parse_args(words)
    requests = _asked(options)
    record = open_record(options.run)
    from gputop.publish.follow import follow

    os.nice(_NICE)
    if options.beside:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the run's end is ours
    taken = follow(record, requests, _say)
    if not options.beside:
        for request in taken:
            _say_where(request)
    sys.stderr.flush()
    # threads of libraries may hang on a dead server for ever
    os._exit(0 if len(taken) == len(requests) else 1)


def _say_where(request: Asked) -> None:
    """Name what was written; of an address, which may hold a password, only whose it is."""
    kind, target = request.entry.name, request.target
    if kind in ("prometheus", "tensorboard"):
        if Path(target).exists():
            print(f"wrote {target}", file=sys.stderr)
    elif kind in ("wandb", "trackio"):
        print(f"published to {kind}: project {target}", file=sys.stderr)
    else:
        print(f"published to {kind}", file=sys.stderr)


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "publish",
        "Hand a run's figures to other programs: live while it goes on, or all of them afterwards.",
        usage=_USAGE,
    )
    parser.add_run()
    for entry in PUBLISHERS:
        parser.add_argument(
            f"--{entry.name}",
            action="append",
            default=[],
            metavar=entry.target,
            help=entry.summary,
        )
    parser.add_argument(
        "--beside", action="store_true", help="started beside a run: signals to it are not for us"
    )
    return parser


def _asked(options: argparse.Namespace) -> list[Asked]:
    from gputop.publish.follow import Asked
    from gputop.publish.targets import refused

    requests = []
    for entry in PUBLISHERS:
        targets = getattr(options, entry.name)
        if targets and (why := entry.missing()):
            raise CliError(why)
        for target in targets:
            if not options.beside and (why := refused(entry.name, target)):
                raise CliError(f"--{entry.name} {target}: {why}")
        requests += [Asked(entry, target) for target in targets]
    if not requests:
        names = ", ".join(f"--{entry.name}" for entry in PUBLISHERS)
        raise CliError(f"publish where to? Give one of {names}")
    return requests


def _say(line: str) -> None:
    notice(f"publish: {line}")
