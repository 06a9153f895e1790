"""A trial for people: whether it works, time, memory, what estimate and plan had said."""

from __future__ import annotations

from typing import Any

from gputop_analysis.text import ms

_LABEL = 10


def as_text(trial: dict[str, Any]) -> str:
    """The whole answer."""
    lines = ["", f"{'works' if trial['ok'] else 'FAILS'}: {trial['said']}"]
    lines += _cut(trial) + _time(trial["timing"], trial["layers"]) + _memory(trial["memory"])
    lines += _out_of_memory(trial["failure"]) + _estimate(trial["estimate"]) + _plan(trial["plan"])
    lines += [trial["stored"]] if trial["stored"] else []
    if trial["corrects_plan"]:
        lines.append(f"its step corrects the planner: gputop plan --run {trial['run']}")
    lines.append(f"the record: gputop report {trial['run']}")
    return "\n".join(lines)


def _line(label: str, text: str) -> str:
    return f"  {label:<{_LABEL}}{text}"


def _cut(trial: dict[str, Any]) -> list[str]:
    if trial["not_cut_to_layers"]:
        text = (
            f"not cut: no model of transformers with more than {trial['not_cut_to_layers']} "
            "layers is in it"
        )
        return [_line("depth", f"{text}; it ran as it is")]
    if trial["layers"] is None:
        return []
    return [
        _line(
            "depth",
            f"{trial['layers']['ran']} of {trial['layers']['of']} layers: its time and memory are "
            "not the training's",
        )
    ]


def _time(timing: dict[str, Any] | None, layers: dict[str, int] | None) -> list[str]:
    if timing is None:
        return []
    phases = sorted(timing["phases_mean_ms"].items(), key=lambda part: -part[1])
    spent = ", ".join(
        f"{name} {ms(value)}"
        for name, value in phases
        if value >= 0.01 * timing["step_time_p50_ms"]
    )
    if timing["tokens_per_s"] and not layers:
        speed = f", {timing['tokens_per_s']:,.0f} tokens/s"
    else:
        speed = ""
    first = f"(first {ms(timing['first_step_ms'])} ms)"
    text = f"{ms(timing['step_time_p50_ms'])} ms a step over {timing['timed_steps']} {first}"
    return [_line("step", text + speed), _line("", f"mean ms: {spent}")]


def _memory(holders: list[dict[str, Any]]) -> list[str]:
    lines = []
    for holder in holders:
        sizes = [
            ("allocated", holder["allocated_gib"]),
            ("reserved", holder["reserved_gib"]),
            ("host", holder["rss_gib"]),
        ]
        text = ", ".join(f"{name} {size:.2f}" for name, size in sizes if size is not None)
        lines.append(
            _line(
                "memory" if holder is holders[0] else "", f"rank {holder['rank']}: peak GiB {text}"
            )
        )
    return lines[:8]


def _out_of_memory(failure: dict[str, Any] | None) -> list[str]:
    if failure is None or not failure["held_gib"]:
        return []
    sizes = ", ".join(
        f"{name.replace('_', ' ')} {size:.2f}" for name, size in failure["held_gib"].items()
    )
    return [_line("held GiB", sizes)]


def _estimate(estimate: dict[str, Any] | None) -> list[str]:
    if estimate is None:
        return []
    text = (
        f"{estimate['peak_allocated_gib']:.2f} GiB allocated, {estimate['device_total_gib']:.2f} "
        "GiB of the GPU"
    )
    text += f" ({estimate['tier']} tier)"
    if estimate["off_pct"] is not None:
        text += f"; measured {estimate['measured_allocated_gib']:.2f}, {estimate['off_pct']:+.1f} %"
    if estimate["gpu"]:
        text += f"; {'fits' if estimate['fits'] else 'does NOT fit'} on {estimate['gpu']}"
    elif estimate["smallest_gpu"]:
        text += f"; fits from {estimate['smallest_gpu']} on"
    return [_line("estimate", f"{estimate['model']}: {text}")]


def _plan(plan: dict[str, Any] | None) -> list[str]:
    if plan is None:
        return []
    text = f"{ms(plan['step_time_ms'])} ms a step on {plan['gpus']} x {plan['gpu']}"
    if plan["off_pct"] is not None:
        text += f"; measured {plan['off_pct']:+.0f} %"
    return [_line("plan", text)]
