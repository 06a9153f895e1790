"""``gputop doctor``: what works here, and how to mend what does not."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from gputop.cli.errors import ENVIRONMENT, CliError, cli_errors
from gputop.cli.parsing import Parser
from gputop.cli.working import working
from gputop.doctor import Check, run_checks

_GLYPHS = {"ok": "✓", "note": "·", "warn": "!", "fail": "✗"}


def execute(words: list[str]) -> int:
    """Run every check, print a line each; 3 when something indispensable is missing."""
    options = parser().parse_args(words)
    if options.nodes is not None and not options.hardware:
        raise CliError("--nodes belongs to --hardware")
    checks: list[Check] = []
    upcoming, subject = run_checks(options.python), "checking the installation"
    if options.hardware:
        upcoming, subject = _hardware(options), "measuring the hardware"
    with nullcontext() if sys.stderr.isatty() else working(subject):  # said once in a log
        while True:
            with working(subject):
                check = next(upcoming, None)
            if check is None:
                break
            checks.append(check)
            if not options.json:
                _print(check)
    if options.json:
        print(json.dumps({"checks": [check.as_dict() for check in checks]}, indent=2))
    if any(check.status == "fail" for check in checks):
        return ENVIRONMENT
    return 0


def parser() -> Parser:
    """Options of the command."""
    usage = "gputop doctor [--hardware [--nodes FILE]] [--python PATH] [--json]"
    parser = Parser(
        "doctor", "Check what works here, and what to do about what does not.", usage=usage
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="the interpreter that runs your training (default: python on PATH)",
    )
    parser.add_argument(
        "--hardware",
        action="store_true",
        help="measure devices, memory, disk, loader and links against peers and the catalog",
    )
    parser.add_argument(
        "--nodes",
        type=Path,
        metavar="FILE",
        help="with --hardware: hosts to measure by ssh, one a line",
    )
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")
    return parser


def _hardware(options: argparse.Namespace) -> Iterator[Check]:
    from gputop.doctor.hardware import HardwareError, run_hardware
    from gputop.doctor.injection import find_python

    python = options.python or "python"
    if options.nodes is None:
        python = find_python(options.python) or ""
    if not python:
        raise CliError("no such Python interpreter: name the one that trains with --python")
    with cli_errors(HardwareError):
        yield from run_hardware(python, options.nodes)


def _print(check: Check) -> None:
    if "utf" in (sys.stdout.encoding or "").lower():
        glyph = _GLYPHS[check.status]
    else:
        glyph = check.status
    print(f"{glyph} {check.name:<10} {check.detail}", flush=True)
    if check.fix:
        print(f"  {'':<10} -> {check.fix}", flush=True)
