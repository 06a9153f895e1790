"""``gputop init``: writes `.gputop.toml`, by asking or from what is given and found."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.parsing import Parser
from gputop.cli.printing import write_file
from gputop.fleet import (
    NAME,
    PRIORITIES,
    Fleet,
    FleetError,
    GpuGroup,
    as_text,
    from_text,
    parse_group,
)

_USAGE = (
    "gputop init [--yes] [--have 8xH100 ...] [--explore A100 ...] [--budget-hourly USD] "
    "[--budget-total USD]"
)


def execute(words: list[str]) -> int:
    """Write the file in this folder."""
    options = parser().parse_args(words)
    path = Path.cwd() / NAME
    if path.exists() and not options.force:
        raise CliError(f"{NAME} is here already: edit it, or replace it with --force")
    with cli_errors(FleetError):
        have = tuple(parse_group(group) for group in options.have) or _found_here()
        explore = tuple(parse_group(group).gpu for group in options.explore)
        fleet = Fleet(have, explore, options.budget_hourly, options.budget_total, options.priority)
        if not options.yes:
            fleet = _asked(fleet)
        from_text(as_text(fleet))  # a budget of -1 is refused before anything is written
    write_file(path, as_text(fleet))
    return 0


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "init",
        "Say once which GPUs you have, which you would rent, and what it may cost.",
        usage=_USAGE,
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="ask nothing: take what is given and what NVML finds here",
    )
    parser.add_argument(
        "--have", nargs="+", default=[], metavar="GPUS", help='as 8xH100 or "8xH100 x 2 nodes"'
    )
    parser.add_argument(
        "--explore", nargs="+", default=[], metavar="GPU", help="GPUs to compare with"
    )
    parser.add_argument(
        "--budget-hourly",
        type=float,
        metavar="USD",
        help="what an hour may cost, all GPUs together",
    )
    parser.add_argument(
        "--budget-total", type=float, metavar="USD", help="what a training may cost"
    )
    parser.add_argument(
        "--priority", choices=PRIORITIES, default="speed", help="what plans are sorted by"
    )
    parser.add_argument("--force", action="store_true", help=f"replace a {NAME} that is there")
    return parser


def _found_here() -> tuple[GpuGroup, ...]:
    """The GPUs of this machine that the catalog knows."""
    from collections import Counter

    from gputop_analysis.catalog import gpu
    from gputop_probes.samplers.nvml import Nvml, NvmlMissing

    try:
        nvml = Nvml()
    except NvmlMissing:
        return ()
    try:
        names = [nvml.name(device) for device in nvml.devices()]
    except Exception:
        return ()
    finally:
        nvml.close()
    counts: Counter[str] = Counter()
    for name in names:
        try:
            counts[gpu(name).name] += 1
        except LookupError:
            continue
    return tuple(GpuGroup(name, count) for name, count in counts.items())


def _asked(fleet: Fleet) -> Fleet:
    if not sys.stdin.isatty():
        raise CliError("no terminal to ask on: give --yes and the options (gputop init --help)")
    print("Enter takes what is in brackets.", file=sys.stderr)
    have = _ask("GPUs you have, as 8xH100, A100", ", ".join(map(str, fleet.have)))
    explore = _ask("GPUs you would rent", ", ".join(fleet.explore))
    hourly = _ask(
        "dollars an hour at most", "" if fleet.usd_per_hour is None else f"{fleet.usd_per_hour:g}"
    )
    total = _ask(
        "dollars in all at most", "" if fleet.usd_total is None else f"{fleet.usd_total:g}"
    )
    priority = _ask("priority, speed or cost", fleet.priority)
    return replace(
        fleet,
        have=tuple(parse_group(part) for part in _parts(have)),
        explore=tuple(parse_group(part).gpu for part in _parts(explore)),
        usd_per_hour=_amount(hourly),
        usd_total=_amount(total),
        priority=priority,
    )


def _ask(question: str, default: str) -> str:
    print(f"{question} [{default or 'none'}]: ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        raise CliError("no answer: nothing was written")
    return answer.strip() or default


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _amount(text: str) -> float | None:
    if not text:
        return None
    try:
        return float(text.lstrip("$"))
    except ValueError:
        raise CliError(f"{text!r} is no amount of dollars") from None
