"""``gputop plan --workload``: a preset's settings as defaults; answers that are no plan."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.notices import notice
from gputop.cli.parsing import Parser, refuse_below_one

if TYPE_CHECKING:
    from gputop_analysis.planner.job import Job
    from gputop_analysis.planner.questions import Wanted
    from gputop_analysis.planner.search import Plan
    from gputop_analysis.workloads.presets import Workload


def told(options: argparse.Namespace) -> dict[str, Any]:
    """The preset and its settings for JSON; nothing without one."""
    if options.workload is None:
        return {}
    return {"workload": options.workload, "settings": options.workload_settings}


def add_workload(parser: Parser) -> None:
    """The options of a workload."""
    from gputop_analysis.workloads.presets import WORKLOADS

    names = ", ".join(workload.name for workload in WORKLOADS)
    parser.add_argument("--workload", metavar="NAME", help=f"preset settings: {names}")
    parser.add_argument(
        "--prompt", type=int, metavar="TOKENS", help="that come in with a request (inference, rlhf)"
    )
    parser.add_argument("--output", type=int, metavar="TOKENS", help="that are generated for it")
    parser.add_argument(
        "--first-token-ms", type=float, metavar="MS", help="inference: longest wait for an answer"
    )
    parser.add_argument(
        "--token-ms", type=float, metavar="MS", help="inference: longest time between two tokens"
    )


def chosen(options: argparse.Namespace, gpus: int) -> Workload | None:
    """The preset, its settings put where the user gave none, and told.

    Raises:
        CliError: no such workload, or one that the model is not for.
    """
    from gputop_analysis import experimental
    from gputop_analysis.workloads import presets

    if options.workload is None:
        for name in ("prompt", "output", "first_token_ms", "token_ms"):
            if getattr(options, name) is not None:
                raise CliError(
                    f"--{name.replace('_', '-')} belongs to --workload inference-batch or "
                    "-streaming, or rlhf"
                )
        return None
    try:
        workload = presets.workload(options.workload)
    except LookupError as error:
        raise CliError(error.args[0]) from None
    used = options.workload_settings = _fill(options, workload, gpus)
    _check(options, workload)
    notice(f"workload {presets.said(workload, used)}")
    if workload.name in experimental.WORKLOADS:
        notice(f"experimental: {experimental.WORKLOADS[workload.name]}")
    return workload


def _fill(options: argparse.Namespace, workload: Workload, gpus: int) -> dict[str, Any]:
    used = {}
    for name, value in workload.settings.items():
        value_ = getattr(options, name, None)
        used[name] = value if value_ is None or value_ is False else value_
        if name == "global_batch" and value_ is None and workload.name != "long-context":
            used[name] = max(1, value // gpus) * gpus  # a share for each data-parallel rank
        setattr(options, name, used[name])
    if workload.name == "rlhf" and options.seq is None:
        options.seq = options.prompt + options.output
    return used


def _check(options: argparse.Namespace, workload: Workload) -> None:
    from gputop.cli.named import model_of

    for name in ("prompt", "output"):
        refuse_below_one(f"--{name}", getattr(options, name))
    model = model_of(options.model) if options.model else None
    if model is None:
        return
    if workload.name == "moe" and not model.experts:
        raise CliError(
            f"{model.name} has no experts: --workload moe is for models like mixtral-8x7b or "
            "deepseek-v3"
        )
    longest = model.max_position
    if (
        longest
        and workload.name != "long-context"
        and (options.seq or 0) > longest
        and "seq" in workload.settings
    ):
        options.seq = longest


def served(options: argparse.Namespace, wanted: Wanted, gpus: int) -> int:
    """The answer for a server."""
    from gputop.cli.named import model_of
    from gputop_analysis.planner.hardware import cluster
    from gputop_analysis.workloads.inference import Serving, servers

    if not options.model:
        raise CliError("what is served? give --model NAME (gputop models lists them)")
    limits = [
        float("inf") if ms is None else ms / 1e3
        for ms in (options.first_token_ms, options.token_ms)
    ]
    if any(not limit > 0 for limit in limits):
        raise CliError("--first-token-ms and --token-ms must be above 0")
    model = model_of(options.model)
    request = Serving(model, options.prompt, options.output, options.dtype or "bf16", *limits)
    hardware = cluster(wanted.gpu, gpus, wanted.gpus_per_node, wanted.network)
    with cli_errors(ValueError, LookupError):
        rows_found = servers(request, hardware, wanted.usd_per_gpu_hour)
    if options.json:
        head = {"model": model.name, "gpu": wanted.gpu, "gpus": gpus, **told(options)}
        head |= {
            "prompt_tokens": request.prompt,
            "output_tokens": request.output,
            "dtype": request.dtype,
        }
        rows = [row.to_json() for row in rows_found[: options.top]]
        print(json.dumps({**head, "configurations": len(rows_found), "servers": rows}, indent=2))
        return 0
    from gputop_analysis.workloads.text import servers_text

    print(servers_text(request, wanted.gpu, gpus, rows_found, options.top))
    return 0


def rlhf(plan: Plan, options: argparse.Namespace, wanted: Wanted) -> int:
    """The answer for PPO: iterations in place of steps."""
    from gputop_analysis.workloads.rlhf import iterations

    with cli_errors(ValueError):
        found_iterations = iterations(plan, options.prompt, options.output, wanted.usd_per_gpu_hour)
    if options.json:
        head = {
            "model": plan.job.model.name,
            "gpu": plan.cluster.device.name,
            "gpus": plan.cluster.gpus,
        }
        head |= {**told(options), "prompt_tokens": options.prompt, "output_tokens": options.output}
        head |= {"global_batch": plan.job.global_batch, "fitting": len(found_iterations)}
        print(
            json.dumps(
                {
                    **head,
                    "iterations": [
                        iteration.to_json() for iteration in found_iterations[: options.top]
                    ],
                },
                indent=2,
            )
        )
        return 0
    from gputop_analysis.workloads.text import iterations_text

    print(iterations_text(plan, found_iterations, options.top))
    return 0


def cheapest(job: Job, wanted: Wanted, most: int, options: argparse.Namespace) -> Plan:
    """The plan whose tokens cost least, on any number of GPUs up to ``most``."""
    from gputop.cli.split.plan_options import limits_of
    from gputop_analysis.planner.hardware import cluster
    from gputop_analysis.planner.questions import best, counts_up_to

    if not wanted.usd_per_gpu_hour:
        raise CliError(f"no rent of the {wanted.gpu} is known: give --price")
    plans, last = [], None
    for gpus in counts_up_to(most, cluster(wanted.gpu, most).gpus_per_node):
        try:
            plans.append(best(job, wanted, gpus, limits=limits_of(options)))
        except ValueError as error:
            last = error
    if not plans:
        raise CliError(str(last))
    return min(plans, key=lambda one: float(one.seconds[one.pick]) * one.cluster.gpus)
