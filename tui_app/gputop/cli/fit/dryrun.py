"""``gputop dryrun -- COMMAND``: a few real steps, to see what fails and what it takes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.named import gpu_named
from gputop.cli.parsing import Parser, refuse_below_one, split_command
from gputop.cli.working import working

if TYPE_CHECKING:
    from gputop.cli.fit.dryrun_watch import Limit
    from gputop_probes.launch import RunHandle

STEPS, STEPS_ON_CPU, LAYERS, TIMEOUT_S = 30, 10, 2, 600.0
"""30 steps are ten of warm-up and twenty that the planner can be corrected by."""
LEAST_STEPS = 3
_USAGE = (
    "gputop dryrun [--steps N] [--cpu] [--layers N] [--gpu NAME] [--json] [--] COMMAND [ARG ...]"
)
_WITH_VALUE = {"-n", "--steps", "--layers", "--gpu", "--timeout", "--run-dir", "--name"}
_HIDDEN_GPUS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def execute(words: list[str]) -> int:
    """Run the steps and print what they showed.

    Returns:
        0 where every rank made its steps, 1 where something failed, 130 after an interrupt.
    """
    ours, command = split_command(words, _WITH_VALUE)
    options = parser().parse_args(ours)
    if not command:
        raise CliError(
            "no command: say what to try, for example `gputop dryrun "
            "-- torchrun --nproc-per-node 2 train.py`"
        )
    if options.steps is None:
        options.steps = STEPS_ON_CPU if options.cpu else STEPS
    gpu = gpu_named(options.gpu).name if options.gpu else ""
    handle = _start(command, options)
    limit, code = _watch(handle, options)
    if handle.stopped_by_us and not limit.why:
        return 130
    return _conclude(handle, limit.why, code, gpu, options)


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "dryrun", "A few real steps of a training: what fails, what it takes.", usage=_USAGE
    )
    parser.add_argument(
        "-n",
        "--steps",
        type=int,
        metavar="N",
        help=f"optimizer steps (default {STEPS}, with --cpu {STEPS_ON_CPU})",
    )
    parser.add_argument(
        "--cpu", action="store_true", help=f"hide the GPUs, and cut the model to {LAYERS} layers"
    )
    parser.add_argument(
        "--layers", type=int, metavar="N", help="cut models of transformers to so many layers"
    )
    parser.add_argument(
        "--gpu", metavar="NAME", help="the GPU that is planned for, where it is not the one here"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=TIMEOUT_S,
        metavar="S",
        help="stop after so long (default 600)",
    )
    parser.add_argument("--run-dir", metavar="DIR", help="where the record goes")
    parser.add_argument("--name", help="name of the run")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON on stdout; the command's output goes to stderr",
    )
    return parser


def _start(command: list[str], options: argparse.Namespace) -> RunHandle:
    from pathlib import Path

    from gputop import __version__
    from gputop_agent import wire
    from gputop_probes.launch import RunSpec, StartError, start

    if options.layers is not None:
        layers = options.layers
    elif options.cpu:
        layers = LAYERS
    else:
        layers = 0
    if options.steps < LEAST_STEPS:
        raise CliError(f"--steps must be at least {LEAST_STEPS}: the first two only warm up")
    refuse_below_one("--layers", options.layers)
    if not 0 < options.timeout < float("inf"):
        raise CliError("--timeout is a positive number of seconds")
    os.environ[wire.ENV_DRYRUN_STEPS] = str(options.steps)  # the command inherits it
    if layers:
        os.environ[wire.ENV_DRYRUN_LAYERS] = str(layers)
    for name in _HIDDEN_GPUS if options.cpu else ():
        os.environ[name] = ""
    folder = Path(options.run_dir) if options.run_dir else None
    spec = RunSpec(
        command,
        folder,
        options.name,
        headless=True,
        output_to_stderr=options.json,
        gputop_version=__version__,
    )
    with cli_errors(StartError):
        return start(spec)


def _watch(handle: RunHandle, options: argparse.Namespace) -> tuple[Limit, int]:
    from gputop.cli.fit.dryrun_watch import Limit
    from gputop.cli.slow.headless import watch

    limit = Limit(handle, options.steps, options.timeout)
    with working(f"trying the command for {options.steps} steps", in_place=False):
        code = watch(handle, False, None, rule=limit)
    handle.release_signals()
    return limit, code


def _conclude(
    handle: RunHandle, stopped: str, code: int, gpu: str, options: argparse.Namespace
) -> int:
    from gputop.cli.fit.dryrun_data import as_data
    from gputop.cli.fit.dryrun_text import as_text
    from gputop_analysis.trial import trial_of
    from gputop_probes.record.reader import RecordError, RunRecord

    with cli_errors(RecordError):
        record = RunRecord.open(handle.run_dir)
    with working("reading what the steps showed"):
        data = as_data(
            trial_of(record), record, code=code, stopped=stopped, gpu=gpu, wanted=options.steps
        )
    if options.json:
        print(json.dumps(data, indent=2, allow_nan=False))
    else:
        sys.stdout.flush()
        print(as_text(data))
    return 0 if data["ok"] else 1
