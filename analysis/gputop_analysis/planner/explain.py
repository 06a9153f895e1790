"""Why a configuration is where it is: its parts in words, against another one, and how the answer moves."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from gputop_analysis.planner.cost import Cost
from gputop_analysis.planner.layout import RECOMPUTE
from gputop_analysis.planner.search import Plan

NAMES = {
    "compute": "compute",
    "tensor_parallel": "tensor-parallel communication",
    "context_parallel": "context-parallel communication",
    "expert_parallel": "expert all-to-all",
    "pipeline": "messages between stages",
    "bubble": "pipeline bubble",
    "data_parallel": "gradient and parameter traffic",
    "optimizer": "optimizer",
    "launch": "waiting for kernel launches",
}
ZERO = ("", "ZeRO-1", "ZeRO-2", "ZeRO-3")
_WORTH_NAMING = 0.01
"""Parts below this share of a step are not told."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One part of the step in two configurations, seconds."""

    part: str
    this_s: float
    other_s: float

    @property
    def delta_s(self) -> float:
        return self.other_s - self.this_s


def label(plan: Plan, index: int) -> str:
    """A configuration as people write it: ``TP4 PP2 DP8, micro-batch 2, ZeRO-1, full recompute``."""
    row = plan.layouts.row(index)
    degrees = [f"{name.upper()}{row[name]}" for name in ("tp", "pp", "vpp", "cp", "ep", "dp") if int(row[name]) > 1]
    zero, recompute = ZERO[int(row["zero"])], RECOMPUTE[int(row["recompute"])]
    extra = [zero, f"{recompute} recompute" if recompute != "none" else ""]
    return ", ".join(filter(None, [" ".join(degrees) or "one GPU", f"micro-batch {row['micro_batch']}", *extra]))


def shares(parts: Cost, index: int) -> dict[str, float]:
    """Each part's share of the step, largest first, those worth naming."""
    total = float(parts.seconds[index])
    found = {f.name: float(getattr(parts, f.name)[index]) / total for f in fields(Cost)}
    return dict(sorted(((k, v) for k, v in found.items() if v >= _WORTH_NAMING), key=lambda kv: -kv[1]))


def why(plan: Plan, index: int) -> str:
    """One sentence on where a configuration's step goes."""
    told = [f"{100 * share:.0f} % {NAMES[part]}" for part, share in shares(plan.parts, index).items()]
    return f"{label(plan, index)}: {float(plan.seconds[index]):.3g} s a step, " + ", ".join(told)


def differences(plan: Plan, this: int, other: int) -> tuple[Difference, ...]:
    """Parts in which two configurations differ, the one that costs ``other`` most first."""
    found = [
        Difference(f.name, float(getattr(plan.parts, f.name)[this]), float(getattr(plan.parts, f.name)[other]))
        for f in fields(Cost)
    ]
    return tuple(sorted((one for one in found if one.delta_s), key=lambda one: -one.delta_s))


def why_not(plan: Plan, this: int, other: int) -> str:
    """One sentence on why ``other`` is not chosen over ``this``."""
    name = label(plan, other)
    if not plan.fits[other]:
        over = plan.allocated_bytes[other] - plan.cluster.device.usable_bytes
        return f"{name} does not fit: about {max(float(over), 0) / 2**30:.1f} GiB over, before the allocator's reserve"
    if plan.tight[other] and not plan.tight[this]:
        return f"{name} fits with less than a tenth of the memory to spare, less than the estimate can miss"
    ratio = float(plan.seconds[other] / plan.seconds[this])
    most = differences(plan, this, other)
    if ratio <= 1 or not most:
        return f"{name} is as fast"
    return f"{name} takes {100 * (ratio - 1):.0f} % longer, most of it {NAMES[most[0].part]} (+{most[0].delta_s:.3g} s)"


def sensitivity(plan: Plan, index: int) -> dict[str, tuple[int, ...]]:
    """For each parameter, indices of configurations that differ from ``index`` in it (and in dp) alone, in order."""
    layouts, row = plan.layouts, plan.layouts.row(index)
    fixed = ("tp", "pp", "vpp", "cp", "ep", "micro_batch", "zero", "recompute")
    found = {}
    for name in fixed:
        same = np.logical_and.reduce([getattr(layouts, other) == row[other] for other in fixed if other != name])
        mine = np.flatnonzero(same)
        found[name] = tuple(mine[np.argsort(getattr(layouts, name)[mine], kind="stable")].tolist())
    return {name: indices for name, indices in found.items() if len(indices) > 1}
