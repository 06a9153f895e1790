"""Workload presets on the strategy screen: another question, or no table of splits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gputop.feed.planning import Ask
    from gputop_analysis.workloads.presets import Workload

SHOWN = 12
"""Lines of an answer in words."""


class Preset(NamedTuple):
    """A preset's outcome: the question from now on, and for servers and PPO a table in words."""

    ask: Ask
    said: str
    text: str = ""


def apply(ask: Ask, name: str) -> Preset:
    """A preset on the present model and GPUs. Searches for as long as ``gputop plan --workload``
    does.

    Raises:
        ValueError: the model is not for it, or nothing fits; the message says why.
        LookupError: no such preset or GPU.
    """
    from gputop_analysis.workloads import presets

    workload = presets.workload(name)
    settings = dict(workload.settings)
    if name == "moe" and not ask.model.experts:
        raise ValueError(
            f"{ask.model.name} has no experts: / finds a model like mixtral-8x7b or deepseek-v3"
        )
    if name.startswith("inference"):
        return Preset(ask, workload.what, _servers(ask, workload))
    if name == "cheapest":
        return _cheapest(ask)
    seq = settings.get("seq", settings.get("prompt", 0) + settings.get("output", 0))
    if ask.model.max_position and name != "long-context":
        seq = min(seq, ask.model.max_position)
    batch = settings["global_batch"]
    if name != "long-context":
        batch = max(1, batch // ask.gpus) * ask.gpus  # a share for each data-parallel rank
    new = replace(ask, seq=seq, global_batch=batch, lora=bool(settings.get("lora")), pins=())
    if name == "rlhf":
        return Preset(ask, workload.what, _iterations(new, workload))
    return Preset(new, f"{workload.what}: {workload.source}")


def _servers(ask: Ask, workload: Workload) -> str:
    from gputop.own_prices import usd_per_gpu_hour
    from gputop_analysis.planner.hardware import cluster
    from gputop_analysis.workloads.inference import Serving, servers
    from gputop_analysis.workloads.text import servers_text

    limits = [
        workload.settings.get(key, float("inf")) / 1e3 for key in ("first_token_ms", "token_ms")
    ]
    request = Serving(
        ask.model, workload.settings["prompt"], workload.settings["output"], ask.dtype, *limits
    )
    hardware = cluster(ask.gpu, ask.gpus)
    choices = servers(request, hardware, usd_per_gpu_hour(hardware.device.name))
    return servers_text(request, ask.gpu, ask.gpus, choices, SHOWN)


def _iterations(ask: Ask, workload: Workload) -> str:
    from gputop_analysis.planner.questions import Wanted, best
    from gputop_analysis.planner.space import Limits
    from gputop_analysis.workloads.rlhf import iterations
    from gputop_analysis.workloads.text import iterations_text

    job = ask.job.but(roles=workload.settings["roles"])
    plan = best(job, Wanted(ask.gpu), ask.gpus, limits=Limits(pp=(workload.settings["pp"],)))
    return iterations_text(
        plan, iterations(plan, workload.settings["prompt"], workload.settings["output"]), SHOWN
    )


def _cheapest(ask: Ask) -> Preset:
    from gputop_analysis.planner.hardware import cluster
    from gputop_analysis.planner.questions import Wanted, best, counts_up_to

    prices: dict[int, float] = {}
    last: ValueError | None = None
    for gpus in counts_up_to(ask.gpus, cluster(ask.gpu, ask.gpus).gpus_per_node):
        try:
            plan = best(ask.job, Wanted(ask.gpu), gpus)
        except ValueError as error:
            last = error
            continue
        prices[gpus] = gpus * float(plan.seconds[plan.pick])
    if not prices:
        raise last or ValueError(f"nothing fits on {ask.gpus} x {ask.gpu}")
    gpus = min(prices, key=lambda count: prices[count])
    return Preset(
        replace(ask, gpus=gpus, pins=()),
        f"{gpus} of up to {ask.gpus} GPUs: the fewest GPU hours a token",
    )
