"""``gputop plan``: how to split a training over GPUs, how fast that is, and what it costs."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.notices import notice
from gputop.cli.parsing import Parser
from gputop.cli.quantities import amount
from gputop.cli.split.plan_options import (
    PINNED,
    WHAT_IS_TRAINED,
    add_gpus,
    add_job,
    add_split,
    fleet_of,
    job_of,
    limits_of,
    tell_precision,
    wanted_of,
)
from gputop.cli.split.plan_run import against_now, calibration_by, changes_of_run, said_now
from gputop.cli.split.plan_workload import add_workload, cheapest, chosen, rlhf, served, told
from gputop.cli.working import working
from gputop.short_words import LEGEND
from gputop_analysis.text import wrap

if TYPE_CHECKING:
    from gputop.fleet import Fleet
    from gputop_analysis.planner.calibrate import Calibration
    from gputop_analysis.planner.job import Job
    from gputop_analysis.planner.questions import Wanted
    from gputop_analysis.planner.search import Plan

_USAGE = (
    "gputop plan --model NAME --gpu NAME --gpus N [--nodes N] [options] [--json]   "
    "(alone: the screen)"
)
PINS = (
    *PINNED,
    *("zero", "schedule", "recompute", "seq", "global_batch", "optimizer"),
    *("lora", "qlora", "lora_rank", "lora_targets"),
)
SERVED = ("inference-batch", "inference-streaming")
OBJECTIVES = ("throughput", "cost", "time", "memory", "fewest-gpus", "budget")


def execute(words: list[str]) -> int:
    """Print the best splits."""
    options = parser().parse_args(words)
    if not words:
        return _open_screen()
    _check(options)
    fleet = fleet_of()
    wanted, gpus = wanted_of(options, fleet)
    if options.probe:
        wanted = probed(wanted, options.python)
    workload = chosen(options, gpus)
    if workload is not None and workload.name in SERVED:
        return served(options, wanted, gpus)
    job = job_of(options, gpus)
    tell_precision(wanted.gpu, job.dtype)
    hourly = options.budget_hourly or fleet.usd_per_hour
    objective = options.objective or _objective(options, fleet)
    if workload is not None and workload.name == "rlhf":
        job = job.but(roles=workload.settings["roles"])
        plan = solved(job, wanted, gpus, options=options, objective=objective, hourly=hourly)
        return rlhf(plan, options, wanted)
    if workload is not None and workload.name == "cheapest":
        plan = cheapest(job, wanted, gpus, options)
    else:
        plan = solved(job, wanted, gpus, options=options, objective=objective, hourly=hourly)
    if options.json:
        print(json.dumps(as_data(plan, wanted, options), indent=2))
    else:
        _print(plan, wanted, options)
    return 0


def _objective(options: argparse.Namespace, fleet: Fleet) -> str:
    """What is best where the options do not say."""
    if options.budget_hourly:
        return "budget"
    return "cost" if fleet.priority == "cost" else "throughput"


def _print(plan: Plan, wanted: Wanted, options: argparse.Namespace) -> None:
    from gputop.cli.printing import report_width, wants_colour
    from gputop.cli.split.plan_text import as_text

    width = report_width()
    print(
        as_text(
            plan,
            wanted,
            top=options.top,
            tokens=options.tokens,
            width=width,
            colour=wants_colour(),
        )
    )
    measured_now = said_now(options.run, plan) if options.run else ""
    if measured_now:
        print("\n".join(wrap(measured_now, width)))
    if options.what_if:
        print("\n".join(["", *_what_if(plan, options, width)]))


def _what_if(plan: Plan, options: argparse.Namespace, width: int) -> list[str]:
    """What single changes would bring: to the run as it was measured, else to the first split."""
    from gputop.cli.split.whatif_text import table
    from gputop_analysis.planner.whatif import what_if

    changes = changes_of_run(options.run) if options.run else ()
    if changes:
        return table(changes, width, f"run {options.run} as measured")
    return table(what_if(plan, plan.pick), width, "the first of them")


def probed(wanted: Wanted, python: str) -> Wanted:
    """What is planned on, as the GPUs of this machine measure.

    Raises:
        CliError: they are not here, or are of another kind.
    """
    from dataclasses import replace

    from gputop.doctor.hardware import HardwareError, probe_here
    from gputop_analysis.catalog import gpu

    with cli_errors(HardwareError, LookupError), working("measuring GEMM, memory and links"):
        measured = probe_here(python)
        name = gpu(measured.gpu).name
    if name != gpu(wanted.gpu).name:
        raise CliError(f"the GPUs here are {name}, which says nothing of {wanted.gpu}")
    if measured.all_reduce_gbs:
        links = f", all-reduce {measured.all_reduce_gbs:.0f} GB/s"
    else:
        links = ""
    notice(
        f"measured on {name}: {measured.gemm_tflops:.0f} TFLOP/s in bf16, memory "
        f"{measured.memory_gbs:,.0f} GB/s{links}"
    )
    return replace(wanted, probed=measured)


def _check(options: argparse.Namespace) -> None:
    """What would be ignored is refused.

    Raises:
        CliError: a number that is none, or an option that the workload has no use for.
    """
    for name in ("top", "tokens", "budget_hourly"):
        value = getattr(options, name)
        if value is not None and not 0 < value < float("inf"):
            raise CliError(f"--{name.replace('_', '-')} must be above 0")
    if options.budget_hourly and options.objective not in (None, "budget"):
        raise CliError(f"--budget-hourly goes with --objective budget, not {options.objective}")
    unused = {
        "rlhf": ("what_if", "tokens", "calibrate", "objective"),
        "cheapest": ("budget_hourly",),
    }
    if options.workload in SERVED:
        names = (*unused["rlhf"], *PINS, "budget_hourly")
    else:
        names = unused.get(options.workload, ())
    for name in names:
        if getattr(options, name) not in (None, False):
            raise CliError(
                f"--{name.replace('_', '-')} has no meaning for --workload {options.workload}"
            )


def _open_screen() -> int:
    from gputop.cli.terminal import has_terminal

    if not has_terminal():
        raise CliError(WHAT_IS_TRAINED)
    from gputop.app.strategy import run_strategy

    run_strategy()
    return 0


def parser() -> Parser:
    """Options of the command."""
    about = "How to split a training over GPUs, how fast that is, and what it costs."
    parser = Parser("plan", about, _USAGE, epilog=LEGEND)
    add_job(parser)
    add_gpus(parser)
    add_split(parser)
    parser.add_argument(
        "--objective", choices=OBJECTIVES, help="what to rank by (default: throughput)"
    )
    parser.add_argument("--budget-hourly", type=float, metavar="USD", help="for --objective budget")
    parser.add_argument(
        "--calibrate", metavar="CSV", help="measured runs that correct the model (see the docs)"
    )
    parser.add_argument(
        "--probe",
        action="store_true",
        help="measure GEMM, memory and links of the GPUs here first (some minutes)",
    )
    parser.add_argument(
        "--python",
        default="python",
        metavar="PATH",
        help="for --probe: the interpreter that trains",
    )
    parser.add_argument(
        "--tokens",
        type=amount,
        metavar="N",
        help="of the whole training, as 100B, 15T or 1e12: days and dollars",
    )
    parser.add_argument(
        "--top", type=int, default=8, metavar="N", help="how many to print (default 8)"
    )
    add_workload(parser)
    parser.add_argument(
        "--what-if",
        action="store_true",
        help="what each optimisation would do to the first of them",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def solved(
    job: Job,
    wanted: Wanted,
    gpus: int,
    *,
    options: argparse.Namespace,
    objective: str,
    hourly: float | None,
) -> Plan:
    """The plan that answers the options.

    Raises:
        CliError: no split keeps the rules, or nothing fits; with the three nearest.
    """
    from gputop_analysis.planner.questions import NothingFits, best, fewest, within, would_fit

    limits, calibration = limits_of(options), calibration_of(options, wanted.gpu)
    if objective == "budget" and not hourly:
        raise CliError(
            "--objective budget needs --budget-hourly USD, or usd_per_hour in .gputop.toml"
        )
    try:
        with working("comparing the splits"):
            if objective == "fewest-gpus":
                plan = fewest(job, wanted, gpus, limits, calibration)
            elif objective == "budget" and hourly:
                plan = within(
                    job, wanted, hourly, most=gpus, limits=limits, calibration=calibration
                )
            else:
                plan = best(
                    job,
                    wanted,
                    gpus,
                    limits=limits,
                    objective=objective,
                    calibration=calibration,
                    unsure=not job.roles,
                )
        _tell_experimental(plan)
        return plan
    except NothingFits as error:
        would = would_fit(job, wanted, gpus, limits)
        raise CliError(
            f"{error}" + (f"; it would fit with {', or '.join(would)}" if would else "")
        ) from None
    except (ValueError, LookupError) as error:
        raise CliError(str(error)) from None


def _tell_experimental(plan: Plan) -> None:
    from gputop_analysis.experimental import of_split

    for sentence in of_split(plan.layouts.split(plan.pick), plan.job.model.layers):
        notice(f"experimental: {sentence}")


def calibration_of(options: argparse.Namespace, gpu: str) -> Calibration | None:
    """What measured runs say of the model: of a file, or the run that was named; None without them.

    Raises:
        CliError: the file cannot be read, or has no usable row.
    """
    if not getattr(options, "calibrate", None):
        return calibration_by(options.run, gpu) if options.run else None
    from pathlib import Path

    from gputop_analysis.planner.measured import from_csv

    try:
        return from_csv(Path(options.calibrate).read_text(encoding="utf-8"), options.calibrate)
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(
            f"cannot read {options.calibrate}: {getattr(error, 'strerror', None) or error}"
        ) from None
    except ValueError as error:
        raise CliError(str(error)) from None


def _of_run(options: argparse.Namespace) -> bool:
    return bool(options.run and options.what_if)


def as_data(plan: Plan, wanted: Wanted, options: argparse.Namespace) -> dict[str, Any]:
    """The plan with stable names."""
    from gputop.cli.split.plan_text import estimate_command
    from gputop_analysis.planner.choices import choice, choices, difference, ranked, why
    from gputop_analysis.planner.whatif import what_if

    pick = choice(plan, plan.pick, wanted.usd_per_gpu_hour)
    choices_ = ranked(plan, options.top, wanted.usd_per_gpu_hour)
    rows = [
        choice_.to_json() | {"name": choice_.name, "why": why(plan, choice_)}
        for choice_ in choices_
    ]
    for row, choice_ in zip(rows, choices_, strict=True):
        if choice_.index != pick.index:
            row["why_not"] = difference(pick, choice_)
    return {
        "model": plan.job.model.name,
        "gpu": plan.cluster.device.name,
        "gpus": plan.cluster.gpus,
        "gpus_per_node": plan.cluster.gpus_per_node,
        "seq": plan.job.seq,
        "global_batch": plan.job.global_batch,
        "dtype": plan.job.dtype,
        "usd_per_gpu_hour": wanted.usd_per_gpu_hour,
        "configurations": len(plan.layouts),
        "fitting": plan.fitting,
        "calibration": plan.calibration.to_json(),
        "against_run": against_now(options.run, plan) if options.run else None,
        "pick": pick.to_json()
        | {
            "name": pick.name,
            "why": why(plan, pick),
            "never_calibrated": list(plan.never_calibrated(pick.index)),
            "estimate": estimate_command(plan, pick.index),
        },
        "strategies": rows,
        "pareto": [
            choice_.to_json() for choice_ in choices(plan, plan.pareto, wanted.usd_per_gpu_hour)
        ],
        **told(options),
        **(
            {"what_if": [choice_.to_json() for choice_ in what_if(plan, plan.pick)]}
            if options.what_if
            else {}
        ),
        **(
            {"what_if_of_run": [choice_.to_json() for choice_ in changes_of_run(options.run)]}
            if _of_run(options)
            else {}
        ),
    }
