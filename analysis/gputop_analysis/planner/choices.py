"""What a plan says of one configuration, in the numbers and sentences that people compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from gputop_analysis.parallelism.split import RECOMPUTES
from gputop_analysis.planner.cost import Cost
from gputop_analysis.planner.layout import Ints
from gputop_analysis.planner.memory import MAY_FIT
from gputop_analysis.planner.search import Plan, cost_per_million_tokens
from gputop_analysis.units import GIB

PARTS = tuple(part.name for part in fields(Cost))
NAMES = {
    "compute": "compute",
    "tensor_parallel": "TP",
    "context_parallel": "CP",
    "expert_parallel": "EP",
    "pipeline": "PP",
    "bubble": "bubble",
    "data_parallel": "DP",
    "optimizer": "optimizer",
    "launch": "launch",
    "input": "input",
}
"""How the parts of a step are called, in this order."""
SHARDING = {0: "DDP", 1: "ZeRO-1", 2: "ZeRO-2", 3: "FSDP"}
WORTH_SAYING = 0.01
"""Of the step: a smaller difference between two configurations is not named."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One configuration of a plan."""

    index: int
    """Its place in the plan's arrays."""
    layout: dict[str, int | bool]
    step_s: float
    interval_s: tuple[float, float]
    """Holds the truth in 80 % of cases."""
    tokens_per_s: float
    mfu: float
    allocated_gib: float
    reserved_gib: float
    """With the CUDA context, as the driver counts it."""
    headroom_gib: float
    tight: bool
    fits: bool
    accumulation: int
    usd_per_million_tokens: float | None
    parts_s: dict[str, float]
    """Parts of the step, scaled so that they add up to ``step_s``."""

    @property
    def name(self) -> str:
        """``TP2 PP8x5 DP4 ZeRO-1 mb1 rc:selective``: degrees, sharding, micro-batch, recompute."""
        layout = self.layout
        words = [
            f"{label}{layout[key]}"
            for key, label in (("tp", "TP"), ("cp", "CP"), ("ep", "EP"))
            if layout[key] > 1
        ]
        if layout["pp"] > 1:
            words += [
                f"PP{layout['pp']}"
                + (f"x{layout['vpp']}" if layout["vpp"] > 1 else "")
                + (" ZB" if layout.get("zero_bubble") else "")
            ]
        recompute = RECOMPUTES[int(layout["recompute"])]
        if layout["dp"] * layout["cp"] > 1:
            words += [f"DP{layout['dp']}", _sharding(layout)]
        if words:
            words += [f"mb{layout['micro_batch']}"]
        else:
            words += ["one GPU", f"mb{layout['micro_batch']}"]
        return " ".join(words + ([f"rc:{recompute}"] if recompute != "none" else []))

    def to_json(self) -> dict[str, Any]:
        """The same with stable names and units."""
        return {
            **{key: value for key, value in self.layout.items() if key != "recompute"},
            "recompute": RECOMPUTES[int(self.layout["recompute"])],
            "accumulation": self.accumulation,
            "step_time_s": self.step_s,
            "step_time_interval_s": list(self.interval_s),
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "allocated_gib": self.allocated_gib,
            "device_total_gib": self.reserved_gib,
            "headroom_gib": self.headroom_gib,
            "fits": self.fits,
            "tight": self.tight,
            "usd_per_million_tokens": self.usd_per_million_tokens,
            "parts_s": self.parts_s,
        }


def _sharding(layout: dict[str, int | bool]) -> str:
    """``HSDP8x16``: 8 copies, each sharded over 16 ranks."""
    copies = layout["replicas"]
    if copies > 1:
        return f"HSDP{copies}x{layout['dp'] * layout['cp'] // copies}"
    return SHARDING[int(layout["zero"])]


def choice(plan: Plan, index: int, usd_per_gpu_hour: float | None = None) -> Choice:
    """The configuration at ``index`` of the plan's arrays."""
    return choices(plan, [index], usd_per_gpu_hour)[0]


def choices(
    plan: Plan, indices: Sequence[int] | Ints, usd_per_gpu_hour: float | None = None
) -> list[Choice]:
    """The same of many: taken out of the arrays one by one, figures cost more than the search."""
    at = np.asarray(indices, np.int64)
    seconds, mfus = plan.seconds[at].tolist(), plan.mfus[at].tolist()
    allocated = plan.allocated_bytes[at]
    reserved = plan.device_bytes[at]
    headroom_gib = (plan.cluster.device.usable_bytes - reserved) / GIB
    has_price = usd_per_gpu_hour is not None
    if has_price:
        rents = cost_per_million_tokens(plan, usd_per_gpu_hour)[at].tolist()
    else:
        rents = [None] * len(at)
    parts = plan.parts.take(at)
    scale = plan.seconds[at] / np.where(parts.seconds > 0, parts.seconds, 1.0)
    columns = {name: (getattr(parts, name) * scale).tolist() for name in PARTS}
    layouts = plan.layouts.take(at).rows()
    micro = plan.layouts.micro_batches(plan.job.global_batch)[at].tolist()
    flags = zip(plan.fits[at].tolist(), plan.tight[at].tolist(), strict=True)
    chosen = []
    for i, (index, layout, (fits, tight)) in enumerate(
        zip(at.tolist(), layouts, flags, strict=True)
    ):
        low, high = plan.interval(index)
        chosen.append(
            Choice(
                index=index,
                layout=layout,
                step_s=seconds[i],
                interval_s=(seconds[i] * low, seconds[i] * high),
                tokens_per_s=plan.job.tokens / seconds[i],
                mfu=mfus[i],
                allocated_gib=float(allocated[i]) / GIB,
                reserved_gib=float(reserved[i]) / GIB,
                headroom_gib=float(headroom_gib[i]),
                tight=tight,
                fits=fits,
                accumulation=int(micro[i]),
                usd_per_million_tokens=rents[i],
                parts_s={name: columns[name][i] for name in PARTS},
            )
        )
    return chosen


def ranked(plan: Plan, count: int, usd_per_gpu_hour: float | None = None) -> list[Choice]:
    """The one to run, which may be a little slower than the fastest, then the best that fit."""
    if not len(plan.order):
        return []
    runners_up = plan.order[plan.order != plan.pick]
    return choices(plan, [plan.pick, *runners_up[: count - 1]], usd_per_gpu_hour)


def difference(first: Choice, second: Choice) -> str:
    """Why ``first`` and not ``second``: what it saves and what it pays, the largest first, with the
    memory.
    """
    changes = {name: second.parts_s[name] - first.parts_s[name] for name in PARTS}
    worth_saying_s = WORTH_SAYING * first.step_s
    order = sorted(changes, key=lambda name: -abs(changes[name]))
    saves = [f"{_span(changes[n])} less {_called(n)}" for n in order if changes[n] > worth_saying_s]
    pays = [
        f"{_span(-changes[n])} more {_called(n)}" for n in order if changes[n] < -worth_saying_s
    ]
    reasons = ", ".join([*saves[:3], *pays[:2]]) or "nearly the same step"
    if second.step_s < 0.995 * first.step_s:
        faster = f"{100 * (1 - second.step_s / first.step_s):.0f} % faster"
        if second.tight and not first.tight:
            why = f"but only {second.headroom_gib:.1f} GiB to spare"
        else:
            why = f"less than predictions err, but {_heavier(first, second)}"
        reasons = f"{faster}, {why}: {reasons}"
    gib = second.reserved_gib - first.reserved_gib
    if abs(gib) >= 1:
        reasons += f"; {abs(gib):.0f} GiB {'less' if gib > 0 else 'more'} memory"
    return reasons


def _heavier(first: Choice, second: Choice) -> str:
    """What the faster of two has more of."""
    copies = second.layout["replicas"] > 1 and first.layout["replicas"] == 1
    if copies:
        return "with copies that take more memory"
    return "a model split more"


def _called(part: str) -> str:
    return {
        "pipeline": "sending between stages",
        "launch": "waiting for the CPU",
        "input": "waiting for data",
    }.get(part, NAMES[part])


def _span(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1000:.0f} ms"


def why(plan: Plan, first: Choice) -> str:
    """What the step of a configuration is spent on, and what bounds it, in a sentence."""
    order = sorted(PARTS, key=lambda name: -first.parts_s[name])
    notable = [name for name in order if first.parts_s[name] >= 0.005 * first.step_s]
    reasons = [f"{NAMES[n]} {100 * first.parts_s[n] / first.step_s:.0f} %" for n in notable]
    return f"{', '.join(reasons[:5])}; {_room(plan, first)}"


def _room(plan: Plan, first: Choice) -> str:
    """How the memory of a configuration compares with what the GPU has."""
    gpu = plan.cluster.device.name
    if first.fits:
        return f"{first.headroom_gib:.1f} GiB to spare on {gpu}"
    if first.index not in plan.order:
        return f"{-first.headroom_gib:.1f} GiB too much on {gpu}"
    error = f"{100 * (MAY_FIT - 1):.0f} %"
    return (
        f"by estimate {-first.headroom_gib:.1f} GiB more than {gpu} has, and nine of ten estimates "
        f"are within {error}: it may not fit"
    )
