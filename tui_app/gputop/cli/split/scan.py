"""``gputop scan``: one training on several GPUs: which is fastest, which is cheapest."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, Any

from gputop.cli.named import gpu_named, refuse_uneven
from gputop.cli.notices import notice
from gputop.cli.parsing import Parser, refuse_below_one
from gputop.cli.split.plan_options import (
    add_job,
    add_nodes,
    add_split,
    check_network,
    fleet_of,
    job_of,
    limits_of,
)
from gputop.own_prices import usd_per_gpu_hour
from gputop_analysis.text import whole_percent

if TYPE_CHECKING:
    from gputop_analysis.planner.calibrate import Calibration
    from gputop_analysis.planner.job import Job
    from gputop_analysis.planner.questions import Wanted
    from gputop_analysis.planner.space import Limits

_USAGE = "gputop scan --model NAME --gpus N [--over H100 A100 ...] [--sort time|cost] [--json]"
COMMON = ("A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "L40S", "MI300X")
"""Looked at where nothing else is said."""


def execute(words: list[str]) -> int:
    """Print one line a GPU."""
    options = parser().parse_args(words)
    fleet = fleet_of()
    if options.gpus is not None:
        gpus = options.gpus
    else:
        gpus = next((group.count for group in fleet.have), 8)
    refuse_below_one("--gpus", gpus)
    refuse_uneven(gpus, options.nodes)
    check_network(options.network)
    names = (
        options.over
        or [*dict.fromkeys([g.gpu for g in fleet.have] + list(fleet.explore))]
        or list(COMMON)
    )
    from gputop_analysis.planner.questions import Wanted

    job, limits = job_of(options, gpus), limits_of(options)
    from gputop.cli.split.plan import calibration_of

    per_node = gpus // options.nodes if options.nodes else 0
    rows = []
    for name in _known(names):
        wanted = Wanted(name, per_node, options.network, usd_per_gpu_hour(name))
        rows.append(_row(job, wanted, gpus, limits, calibration_of(options, wanted.gpu)))
    by_cost = (options.sort or ("cost" if fleet.priority == "cost" else "time")) == "cost"
    rows.sort(
        key=lambda row: (
            row["step_time_s"] is None,
            (row["usd_per_million_tokens"] if by_cost else row["step_time_s"]) or 1e30,
        )
    )
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        _print(rows, gpus)
    return 0


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is no number: how many, as in --gpus "
            "8; of which kinds, with --over H100 A100"
        ) from None


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "scan", "One training on several GPUs: which is fastest, which is cheapest.", _USAGE
    )
    add_job(parser)
    parser.add_argument("--gpus", type=_count, metavar="N", help="how many in all of each kind")
    add_nodes(parser)
    add_split(parser)
    parser.add_argument(
        "--over",
        "--gpu",
        nargs="+",
        default=[],
        metavar="GPU",
        help="default: .gputop.toml, else common ones",
    )
    parser.add_argument(
        "--sort", choices=("time", "cost"), help="default: the priority of .gputop.toml, else time"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _known(names: list[str]) -> list[str]:
    return list(dict.fromkeys(gpu_named(name).name for name in names))


def _row(
    job: Job, wanted: Wanted, gpus: int, limits: Limits, calibration: Calibration | None
) -> dict[str, Any]:
    from gputop_analysis.planner.choices import choice
    from gputop_analysis.planner.questions import best

    empty = dict.fromkeys(
        ("strategy", "step_time_s", "tokens_per_s", "mfu", "headroom_gib", "usd_per_million_tokens")
    )
    row: dict[str, Any] = {
        "gpu": wanted.gpu,
        "gpus": gpus,
        "usd_per_gpu_hour": wanted.usd_per_gpu_hour,
        **empty,
        "reason": None,
    }
    try:
        plan = best(job, wanted, gpus, limits=limits, calibration=calibration)
    except (ValueError, LookupError) as error:
        return row | {"reason": str(error)}
    chosen = choice(plan, plan.pick, wanted.usd_per_gpu_hour)
    data = chosen.to_json()
    return row | {key: data[key] for key in empty if key in data} | {"strategy": chosen.name}


def _print(rows: list[dict[str, Any]], gpus: int) -> None:
    width = max(len(row["gpu"]) for row in rows)
    print(
        f"{f'{gpus} x':<{width}} {'step s':>8} {'tokens/s':>10} {'MFU':>5} {'free GiB':>8} "
        f"{'$/Mtok':>8}  strategy"
    )
    for row in rows:
        if row["step_time_s"] is None:
            print(f"{row['gpu']:<{width}} {row['reason']}")
            continue
        if row["usd_per_million_tokens"] is None:
            rent = "-"
        else:
            rent = f"{row['usd_per_million_tokens']:.3f}"
        print(
            f"{row['gpu']:<{width}} {row['step_time_s']:>8.2f} {row['tokens_per_s']:>10,.0f} "
            f"{whole_percent(row['mfu']):>5} {row['headroom_gib']:>8.1f} {rent:>8}  "
            f"{row['strategy']}"
        )
    if any(row["usd_per_gpu_hour"] is None for row in rows):
        notice("GPUs without a known rent have no $/Mtok: gputop catalog import FILE adds yours")
