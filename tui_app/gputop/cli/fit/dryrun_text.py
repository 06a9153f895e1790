"""A trial for people: whether it works, time, memory, what estimate and plan had said."""

from __future__ import annotations

from typing import Any

from gputop_analysis.text import ms

_LABEL = 10


def as_text(found: dict[str, Any]) -> str:
    """The whole answer."""
    lines = ["", f"{'works' if found['ok'] else 'FAILS'}: {found['said']}"]
    lines += _cut(found) + _time(found["timing"], found["layers"]) + _memory(found["memory"])
    lines += _out_of_memory(found["failure"]) + _estimate(found["estimate"]) + _plan(found["plan"])
    lines += [found["stored"]] if found["stored"] else []
    if found["corrects_plan"]:
        lines.append(f"its step corrects the planner: gputop plan --run {found['run']}")
    lines.append(f"the record: gputop report {found['run']}")
    return "\n".join(lines)


def _line(label: str, text: str) -> str:
    return f"  {label:<{_LABEL}}{text}"


def _cut(found: dict[str, Any]) -> list[str]:
    if found["not_cut_to_layers"]:
        text = (
            f"not cut: no model of transformers with more than {found['not_cut_to_layers']} "
            "layers is in it"
        )
        return [_line("depth", f"{text}; it ran as it is")]
    if found["layers"] is None:
        return []
    return [
        _line(
            "depth",
            f"{found['layers']['ran']} of {found['layers']['of']} layers: its time and memory are "
            "not the training's",
        )
    ]


def _time(timing: dict[str, Any] | None, layers: dict[str, int] | None) -> list[str]:
    if timing is None:
        return []
    phases = sorted(timing["phases_mean_ms"].items(), key=lambda one: -one[1])
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


def _memory(held: list[dict[str, Any]]) -> list[str]:
    lines = []
    for holder in held:
        sizes = [
            ("allocated", holder["allocated_gib"]),
            ("reserved", holder["reserved_gib"]),
            ("host", holder["rss_gib"]),
        ]
        text = ", ".join(f"{name} {size:.2f}" for name, size in sizes if size is not None)
        lines.append(
            _line("memory" if holder is held[0] else "", f"rank {holder['rank']}: peak GiB {text}")
        )
    return lines[:8]


def _out_of_memory(failure: dict[str, Any] | None) -> list[str]:
    if failure is None or not failure["held_gib"]:
        return []
    sizes = ", ".join(
        f"{name.replace('_', ' ')} {size:.2f}" for name, size in failure["held_gib"].items()
    )
    return [_line("held GiB", sizes)]


def _estimate(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return []
    text = (
        f"{found['peak_allocated_gib']:.2f} GiB allocated, {found['device_total_gib']:.2f} "
        "GiB of the GPU"
    )
    text += f" ({found['tier']} tier)"
    if found["off_pct"] is not None:
        text += f"; measured {found['measured_allocated_gib']:.2f}, {found['off_pct']:+.1f} %"
    if found["gpu"]:
        text += f"; {'fits' if found['fits'] else 'does NOT fit'} on {found['gpu']}"
    elif found["smallest_gpu"]:
        text += f"; fits from {found['smallest_gpu']} on"
    return [_line("estimate", f"{found['model']}: {text}")]


def _plan(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return []
    text = f"{ms(found['step_time_ms'])} ms a step on {found['gpus']} x {found['gpu']}"
    if found["off_pct"] is not None:
        text += f"; measured {found['off_pct']:+.0f} %"
    return [_line("plan", text)]
