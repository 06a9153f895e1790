"""``gputop validate``: a DeepSpeed or accelerate file, or a launch command, against the rules that it must keep."""

from __future__ import annotations

import json
from pathlib import Path

from gputop.cli.errors import CliError
from gputop.cli.parsing import Parser

_USAGE = "gputop validate FILE... [--gpus N] [--json]   or   gputop validate [--gpus N] [--json] -- COMMAND ..."


def execute(words: list[str]) -> int:
    """Print what is wrong; exit code 1 for an error."""
    own, command = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    parser = Parser("validate", "Check a configuration or a launch command before it costs GPU hours.", usage=_USAGE)
    parser.add_argument("files", nargs="*", metavar="FILE", help="DeepSpeed JSON or accelerate YAML")
    parser.add_argument("--gpus", type=int, metavar="N", help="number of GPUs in all, for the rules that need it")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    options = parser.parse_args(own)
    if bool(options.files) == bool(command):
        raise CliError(f"give a file, or a command after --: {_USAGE}")
    if options.gpus is not None and options.gpus < 1:
        raise CliError("--gpus must be at least 1")
    found = [_of_file(file, options.gpus) for file in options.files] or [_of_command(command, options.gpus)]
    if options.json:
        print(json.dumps([{**one, "problems": [p._asdict() for p in one["problems"]]} for one in found], indent=2))
    else:
        for one in found:
            _print(one)
    return int(any(p.severity == "error" for one in found for p in one["problems"]))


def _of_file(file: str, gpus: int | None) -> dict:
    from gputop_analysis.launch.validate import UnknownFormatError, check_text

    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from None
    try:
        kind, problems = check_text(text, file, gpus)
    except UnknownFormatError as error:
        raise CliError(str(error)) from None
    return {"name": file, "kind": kind, "problems": problems}


def _of_command(words: list[str], gpus: int | None) -> dict:
    from gputop_analysis.launch.validate import check_command

    kind, problems = check_command(words, gpus)
    return {"name": " ".join(words)[:60], "kind": kind, "problems": problems}


def _print(one: dict) -> None:
    problems = one["problems"]
    if not problems:
        print(f"{one['name']} ({one['kind']}): keeps all rules that are known")
        return
    print(f"{one['name']} ({one['kind']}):")
    for problem in problems:
        print(f"  {problem.severity:<8} {problem.where}: {problem.text}")
