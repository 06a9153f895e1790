"""``gputop launch``: the command and the files of a strategy, planned or given, for a launcher."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.notices import notice
from gputop.cli.parsing import Parser, split_at_dashes
from gputop.cli.split.plan_options import add_gpus, add_job, add_split, fleet_of, job_of, wanted_of

if TYPE_CHECKING:
    from gputop_analysis.launch.strategy import Launch, Strategy

_LEFT_TO_THE_SCRIPT = (
    "optimizer",
    "weights",
    "grad_dtype",
    "lora",
    "qlora",
    "lora_rank",
    "lora_targets",
    "compile",
)
"""Options of the job that change how it is split, and that a strategy has no place for."""
_USAGE = (
    "gputop launch --model NAME --gpu NAME --gpus N [--for LAUNCHER] [--slurm] [--write "
    "FOLDER] [-- train.py ARGS]"
)


def execute(words: list[str]) -> int:
    """Print the command, and the files that it needs."""
    option_words, script = split_at_dashes(words)
    options = parser().parse_args(option_words)
    from gputop_analysis.launch.emit import emit

    strategy = _strategy(options, script)
    _tell_unwritten(options)
    with cli_errors(ValueError, LookupError):
        launch = emit(strategy, options.launcher, options.slurm)
    if options.write:
        _write(launch, Path(options.write))
    if options.json:
        print(json.dumps(launch.to_json(), indent=2))
    else:
        _print(launch, written=bool(options.write))
    return 0


def parser() -> Parser:
    """Options of the command."""
    from gputop_analysis.launch.emit import LAUNCHERS

    parser = Parser("launch", "The command and the files of a strategy.", _USAGE)
    add_job(parser)
    add_gpus(parser)
    add_split(parser)
    parser.add_argument(
        "--for",
        dest="launcher",
        choices=tuple(LAUNCHERS),
        default="torchrun",
        help="default: torchrun",
    )
    parser.add_argument("--slurm", action="store_true", help="as an sbatch script")
    parser.add_argument("--write", metavar="FOLDER", help="write the files there")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _strategy(options, script: list[str]) -> Strategy:
    """The best split within what is pinned."""
    from gputop.cli.split.plan import solved
    from gputop_analysis.launch.emit import LAUNCHERS
    from gputop_analysis.launch.strategy import Strategy

    wanted, gpus = wanted_of(options, fleet_of())
    job = job_of(options, gpus)
    if options.replicas is None and not LAUNCHERS[options.launcher].replicas:
        options.replicas = 1  # the best of what it can start
    plan = solved(job, wanted, gpus, options=options, objective="throughput", hourly=None)
    row = plan.layouts.row(plan.pick)
    per_node = min(plan.cluster.gpus_per_node, gpus)
    if gpus % per_node:
        raise CliError(f"{gpus} GPUs do not divide over nodes of {per_node}: give --nodes")
    return Strategy.of_layout(
        row,
        gpus // per_node,
        per_node,
        global_batch=job.global_batch,
        seq=job.seq,
        dtype=job.dtype,
        model=job.model,
        script=script[0] if script else "train.py",
        arguments=tuple(script[1:]),
    )


def _tell_unwritten(options: argparse.Namespace) -> None:
    """Says on stderr what the split was chosen for, and no file or flag says."""
    given = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
        for name in _LEFT_TO_THE_SCRIPT
        if (value := getattr(options, name))
    ]
    if given:
        notice(f"the split is for {' '.join(given)}: that is not written here, set it yourself")


def _write(launch: Launch, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in launch.files.items():
            (folder / name).write_text(text, encoding="utf-8")
            print(f"wrote {folder / name}", file=sys.stderr)
    except OSError as error:
        raise CliError(f"cannot write to {folder}: {error.strerror}") from None


def _print(launch: Launch, written: bool) -> None:
    from gputop_analysis.launch.shell import folded

    print(folded(launch.command, width=min(100, shutil.get_terminal_size().columns - 2)))
    for name, text in {} if written else launch.files.items():
        print(f"\n# {name}\n{text}", end="")
    for note in launch.notes:
        notice(note)
