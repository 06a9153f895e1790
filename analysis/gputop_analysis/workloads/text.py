"""Servers and PPO iterations for a terminal: one line each, the best first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gputop_analysis.planner.search import Plan
    from gputop_analysis.workloads.inference import InferenceServer, Serving
    from gputop_analysis.workloads.rlhf import Iteration


def servers_text(
    serving: Serving, gpu: str, gpus: int, servers: list[InferenceServer], top: int
) -> str:
    """A table of servers."""
    within_limits = sum(server.keeps_limits for server in servers)
    lines = [
        f"{serving.model.name} on {gpus} x {gpu}: {serving.prompt} "
        f"tokens in, {serving.output} out, {serving.dtype} weights",
        "a bound by memory and arithmetic: a server's own work comes on top, most of "
        "all at small batches",
        "",
        f"{'':<24} {'first':>9} {'token':>9} {'tokens/s':>10} {'KV GiB':>7} {'GiB':>6}   $/Mtok",
    ]
    for server in servers[: max(top, 1)]:
        if server.usd_per_million_tokens is None:
            rent = "-"
        else:
            rent = f"{server.usd_per_million_tokens:.3f}"
        lines.append(
            f"{server.name:<24} {1e3 * server.first_token_s:>6,.0f} ms "
            f"{1e3 * server.token_s:>6,.1f} ms {server.tokens_per_s:>10,.0f} "
            f"{server.kv_gib:>7.1f} {server.device_total_gib:>6.1f} {rent:>8}"
            + ("" if server.keeps_limits else "  too slow")
        )
    lines += [
        "",
        f"{len(servers):,} fit, {within_limits:,} within the "
        "limits; token: mean under full load, with others' prefills",
    ]
    return "\n".join(lines)


def iterations_text(plan: Plan, iterations: list[Iteration], top: int) -> str:
    """A table of PPO iterations."""
    job, first = plan.job, iterations[0]
    room = max(len(iteration.choice.name) for iteration in iterations[: max(top, 1)])
    lines = [
        f"{job.model.name} on {plan.cluster.gpus} x {plan.cluster.device.name}: "
        f"{job.global_batch} episodes of {job.seq} tokens an iteration, {', '.join(job.roles)} "
        "beside the actor",
        f"{first.choice.name}: {first.seconds:,.1f} s an iteration, "
        f"{100 * first.generation_s / first.seconds:.0f} % of it generation, "
        f"{first.choice.headroom_gib:.1f} GiB to spare in training",
        "",
        f"{'':<{room}} {'iteration':>10} {'generate':>9} {'score':>8} {'update':>8} "
        f"{'at once':>8} {'GiB':>6}",
    ]
    for iteration in iterations[: max(top, 1)]:
        lines.append(
            f"{iteration.choice.name:<{room}} {iteration.seconds:>8,.1f} s "
            f"{iteration.generation_s:>7,.1f} s "
            f"{iteration.scoring_s:>6,.1f} s {iteration.updates_s:>6,.1f} s "
            f"{iteration.at_once:>8,} {iteration.choice.reserved_gib:>6.1f}"
        )
    return "\n".join(
        [
            *lines,
            "",
            "generation is a bound by memory and arithmetic; a server's own work comes on top",
        ]
    )
