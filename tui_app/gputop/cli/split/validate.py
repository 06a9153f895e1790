"""``gputop validate``: a configuration or launch command against rules and memory."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.fit.estimate_options import add_options
from gputop.cli.named import gpu_named
from gputop.cli.parsing import Parser, refuse_below_one, split_at_dashes
from gputop.cli.split.validate_memory import memory_of_command, memory_of_text

_USAGE = (
    "gputop validate FILE... [--gpus N] "
    "[--gpu NAME --model NAME [options of gputop estimate]] [--json]\n"
    "       gputop validate [--gpus N] [--gpu NAME] [--json] -- COMMAND ..."
)


STARTERS = ("torchrun", "accelerate", "deepspeed", "python", "python3", "srun")
"""What a command begins with, which nobody's configuration is called."""
CHECKED = ("torchrun", "accelerate", "deepspeed", "megatron")
"""Kinds of configurations and commands that have rules."""


def execute(words: list[str]) -> int:
    """Print what is wrong; exit code 1 for an error."""
    if words and words[0] in STARTERS and not Path(words[0]).exists():
        words = ["--", *words]
    option_words, command = split_at_dashes(words)
    options = parser().parse_args(option_words)
    if bool(options.files) == bool(command):
        raise CliError(
            "give a file, or a command after --: gputop validate ds_config.json, gputop validate "
            "-- torchrun ..."
        )
    refuse_below_one("--gpus", options.gpus)
    if options.gpu:
        gpu_named(options.gpu)  # a name that nobody knows is told before anything is checked
    results = [_of_file(file, options) for file in options.files] or [_of_command(command, options)]
    if options.json:
        data = [
            {**result, "problems": [p._asdict() for p in result["problems"]]} for result in results
        ]
        print(json.dumps(data, indent=2))
    else:
        for result in results:
            _print(result)
    return int(any(p.severity == "error" for result in results for p in result["problems"]))


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "validate",
        "Check a configuration or a launch command before it costs GPU hours.",
        usage=_USAGE,
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="DeepSpeed JSON or accelerate YAML"
    )
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="number of GPUs in all, for the rules that need it"
    )
    parser.add_argument(
        "--gpu", metavar="NAME", help="check the memory too: whether the training fits on this GPU"
    )
    parser.add_argument(
        "--model", metavar="NAME|PATH", help="what is trained, where the file does not tell"
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    add_options(parser)
    return parser


def _of_file(file: str, options: argparse.Namespace) -> dict[str, Any]:
    from gputop_analysis.launch.texts import UnknownFormatError
    from gputop_analysis.launch.validate import check_text

    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from None
    with cli_errors(UnknownFormatError):
        file_kind, problems = check_text(text, file, options.gpus)
    if options.gpu:
        more, memory = memory_of_text(text, file, options)
    else:
        more, memory = ([], None)
    return {
        "name": file,
        "kind": file_kind,
        "problems": [*problems, *more],
        **({"memory": memory} if options.gpu else {}),
    }


def _of_command(words: list[str], options: argparse.Namespace) -> dict[str, Any]:
    from gputop_analysis.launch.validate import check_command, world_of

    command_kind, problems = check_command(words, options.gpus)
    more, memory = [], None
    if options.gpu and command_kind == "megatron":
        more, memory = memory_of_command(words, options.gpus or world_of(words), options)
    return {
        "name": " ".join(words)[:60],
        "kind": command_kind,
        "problems": [*problems, *more],
        **({"memory": memory} if options.gpu else {}),
    }


def _print(one: dict) -> None:
    problems, memory = one["problems"], one.get("memory")
    if memory and memory["fits"]:
        sizes = (
            f"{memory['device_total_gib']:.1f} of {memory['usable_gib']:.1f} GiB on {memory['gpu']}"
        )
        batch = f"{memory['micro_batch']} x {memory['seq']} tokens"
        print(f"memory: {sizes} for {memory['model']}, {batch} ({memory['tier']} tier)")
    if not problems and one["kind"] not in CHECKED:
        print(
            f"{one['name']} ({one['kind']}): no rules are "
            f"known for it; {', '.join(CHECKED)} have some"
        )
        return
    if not problems:
        print(f"{one['name']} ({one['kind']}): keeps all rules that are known")
        return
    print(f"{one['name']} ({one['kind']}):")
    for problem in problems:
        print(f"  {problem.severity:<8} {problem.where}: {problem.text}")
