"""``gputop pareto``: splits none beats in both step time and memory; or best by GPUs."""

from __future__ import annotations

import json
from typing import Any

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.parsing import Parser
from gputop.cli.split.plan_options import (
    add_gpus,
    add_job,
    add_split,
    fleet_of,
    job_of,
    limits_of,
    tell_precision,
    wanted_of,
)
from gputop_analysis.text import whole_percent

_USAGE = "gputop pareto --model NAME --gpu NAME --gpus N [--scaling] [--json]"


def execute(words: list[str]) -> int:
    """Print the front."""
    options = parser().parse_args(words)
    wanted, gpus = wanted_of(options, fleet_of())
    job, limits = job_of(options, gpus), limits_of(options)
    tell_precision(wanted.gpu, job.dtype)
    from gputop.cli.split.plan import calibration_of
    from gputop_analysis.planner.questions import best

    calibration = calibration_of(options, wanted.gpu)
    with cli_errors(ValueError, LookupError):
        if options.scaling:
            return _scaling(
                job, wanted, gpus, limits=limits, calibration=calibration, as_json=options.json
            )
        plan = best(job, wanted, gpus, limits=limits, calibration=calibration)
    from gputop.cli.printing import report_width
    from gputop.cli.split.plan_text import table
    from gputop_analysis.planner.choices import choices

    choices_ = choices(plan, plan.pareto, wanted.usd_per_gpu_hour)
    if options.json:
        print(
            json.dumps([choice.to_json() | {"name": choice.name} for choice in choices_], indent=2)
        )
    else:
        print("\n".join(table(choices_, report_width())))
    return 0


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "pareto", "The splits that no other beats in both step time and memory.", _USAGE
    )
    add_job(parser)
    add_gpus(parser)
    add_split(parser)
    parser.add_argument(
        "--scaling", action="store_true", help="the best split from one GPU up to --gpus instead"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _scaling(
    job: Any, wanted: Any, gpus_at_most: int, *, limits: Any, calibration: Any, as_json: bool
) -> int:
    """One line a number of GPUs; efficiency: tokens/s a GPU over that of the fewest that fit."""
    from gputop_analysis.planner.choices import choice
    from gputop_analysis.planner.hardware import cluster
    from gputop_analysis.planner.questions import best, counts_up_to

    rows: list[dict[str, Any]] = []
    for gpus in counts_up_to(gpus_at_most, cluster(wanted.gpu, gpus_at_most).gpus_per_node):
        try:
            plan = best(job, wanted, gpus, limits=limits, calibration=calibration)
        except ValueError:
            continue
        chosen = choice(plan, plan.pick, wanted.usd_per_gpu_hour)
        per_gpu = chosen.tokens_per_s / gpus
        first = rows[0]["tokens_per_s_per_gpu"] if rows else per_gpu
        rows.append(
            {
                "gpus": gpus,
                "name": chosen.name,
                "tokens_per_s_per_gpu": per_gpu,
                "efficiency": per_gpu / first,
                **chosen.to_json(),
            }
        )
    if not rows:
        raise CliError(f"nothing fits on up to {gpus_at_most} GPUs")
    if as_json:
        print(json.dumps(rows, indent=2))
        return 0
    print(f"{'GPUs':>5} {'tokens/s':>12} {'a GPU':>8} {'efficiency':>10} {'MFU':>5}  strategy")
    for row in rows:
        print(
            f"{row['gpus']:>5} {row['tokens_per_s']:>12,.0f} {row['tokens_per_s_per_gpu']:>8,.0f} "
            f"{whole_percent(row['efficiency']):>10} {whole_percent(row['mfu']):>5}  {row['name']}"
        )
    return 0
