"""What the planner says about benchmark rows, all rows of a job at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from gputop_analysis.planner import memory
from gputop_analysis.planner.cost import Cost, cost
from gputop_analysis.planner.layout import Layouts
from gputop_analysis.planner.rows import Case
from gputop_analysis.units import GIB


@dataclass(frozen=True, slots=True)
class Answer:
    """A row's prediction; of open choices, the fastest that fits, else the leanest."""

    case: Case
    parts: Cost
    """Arrays of one value."""
    layout: dict[str, int | bool]
    allocated_gib: float
    fits: bool
    tight: bool
    """It fits, with less than ``memory.HEADROOM`` to spare, or it does not."""

    @property
    def seconds(self) -> float:
        return float(self.parts.seconds[0])


def answers(cases: Sequence[Case]) -> list[Answer]:
    """In the order of ``cases``."""
    together: defaultdict[object, list[int]] = defaultdict(list)
    for i, case in enumerate(cases):
        c = case.cluster
        key = (case.job, c.device.name, c.gpus, c.gpus_per_node, c.network, c.node_bytes_per_s)
        together[key].append(i)
    by_case: dict[int, Answer] = {}
    for group in together.values():
        by_case |= zip(group, _of_group([cases[i] for i in group]), strict=True)
    return [by_case[i] for i in range(len(cases))]


def _of_group(cases: list[Case]) -> list[Answer]:
    """Cases of one job and cluster."""
    job, cluster = cases[0].job, cases[0].cluster
    layouts = _joined([case.layouts for case in cases])
    parts, sizes = cost(job, cluster, layouts), memory.sizes(job, layouts)
    allocated, usable = sizes.allocated, cluster.device.usable_bytes
    fits = sizes.least <= usable
    tight = (sizes.device > (1 - memory.HEADROOM) * usable).tolist()
    seconds = parts.seconds
    ends = np.cumsum([len(case.layouts) for case in cases])
    answers = []
    for case, end in zip(cases, ends, strict=True):
        indices = np.arange(end - len(case.layouts), end)
        able = indices[fits[indices]]
        if len(able):
            best = able[np.argmin(seconds[able])]
        else:
            best = indices[np.argmin(allocated[indices])]
        best_parts = parts.take(slice(best, best + 1))
        answers.append(
            Answer(
                case,
                best_parts,
                layouts.row(int(best)),
                float(allocated[best]) / GIB,
                bool(fits[best]),
                tight[best],
            )
        )
    return answers


def _joined(layouts: list[Layouts]) -> Layouts:
    return Layouts(
        *(np.concatenate([getattr(part, f.name) for part in layouts]) for f in fields(Layouts))
    )
