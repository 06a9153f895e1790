"""``gputop doctor``: what works here, and how to mend what does not."""

from __future__ import annotations

import json
import sys

from gputop.cli.errors import ENVIRONMENT
from gputop.cli.parsing import Parser
from gputop.cli.working import working
from gputop.doctor import Check, run_checks

_GLYPHS = {"ok": "✓", "note": "·", "warn": "!", "fail": "✗"}


def execute(words: list[str]) -> int:
    """Run every check, print a line each; 3 when something that gputop cannot do without is missing."""
    options = parser().parse_args(words)
    checks: list[Check] = []
    upcoming = run_checks(options.python)
    while True:
        with working("checking the installation"):
            check = next(upcoming, None)
        if check is None:
            break
        checks.append(check)
        if not options.json:
            _print(check)
    if options.json:
        print(json.dumps({"checks": [check.as_dict() for check in checks]}, indent=2))
    return ENVIRONMENT if any(check.status == "fail" for check in checks) else 0


def parser() -> Parser:
    """Options of the command."""
    usage = "gputop doctor [--python PATH] [--json]"
    parser = Parser(
        "doctor", "Check what works here, and what to do about what does not.", usage=usage
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="the interpreter that runs your training (default: python on PATH)",
    )
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")
    return parser


def _print(check: Check) -> None:
    glyph = _GLYPHS[check.status] if "utf" in (sys.stdout.encoding or "").lower() else check.status
    print(f"{glyph} {check.name:<10} {check.detail}", flush=True)
    if check.fix:
        print(f"  {'':<10} -> {check.fix}", flush=True)
