"""Plays the operations of a timeline again, with durations that the caller chooses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gputop_analysis.stragglers.dependencies import OPTIMIZER, SYNCHRONISED, DependencyGraph
from gputop_analysis.stragglers.timeline import Op, OperationTimeline, Seconds

_CLOCK_S = 1e-2
"""A transfer that ends longer before its last participant came is a fault of the clocks."""


class Player:
    """A timeline with its dependencies.

    Args:
        timeline: the operations.
        graph: what waits for what.

    Raises:
        ValueError: the operations wait for each other in a circle.
    """

    def __init__(self, timeline: OperationTimeline, graph: DependencyGraph) -> None:
        self.timeline = timeline
        self._before = graph.before
        self._group = {op: group for group in graph.groups for op in group}
        self._order = self._sorted(graph)
        self.durations = self._durations()
        """Of computations how long they ran, of communication how long after its last participant
        had come it ended.
        """

    def steps(self, durations: Mapping[Op, Seconds]) -> Seconds:
        """Seconds of each step if operations take so long and nothing else delays them."""
        starts: dict[Op, Seconds] = {}
        ends: dict[Op, Seconds] = {}
        nothing = np.zeros((self.timeline.dp, len(self.timeline.steps)))
        for unit in self._order:
            for op in unit:
                earlier = [ends[predecessor] for predecessor in self._before[op]]
                if earlier:
                    starts[op] = np.maximum.reduce(earlier)
                else:
                    starts[op] = nothing
            ready = np.maximum.reduce([starts[op] for op in unit])
            if unit[0] in self._group and unit[0].kind in SYNCHRONISED:
                ready = np.broadcast_to(ready.max(axis=0), ready.shape)
            for op in unit:
                ends[op] = ready + durations[op]
        last = [end.max(axis=0) for op, end in ends.items() if op.kind == OPTIMIZER]
        if not last:
            last = [end.max(axis=0) for end in ends.values()]
        return np.maximum.reduce(last)

    def _durations(self) -> dict[Op, Seconds]:
        timeline = self.timeline
        durations = {}
        for op, start in timeline.starts.items():
            group = self._group.get(op)
            if group is None:
                durations[op] = timeline.ends[op] - start
                continue
            came = np.maximum.reduce([timeline.starts[member] for member in group])
            if op.kind in SYNCHRONISED:
                came = np.broadcast_to(came.max(axis=0), came.shape)
            transfer = timeline.ends[op] - came
            durations[op] = np.where(transfer <= -_CLOCK_S, 0.0, transfer)
        return durations

    def _sorted(self, graph: DependencyGraph) -> list[tuple[Op, ...]]:
        """Groups and single operations, each after all that they wait for."""
        units = {op: self._group.get(op, (op,)) for op in graph.before}
        waiting: dict[tuple[Op, ...], set[tuple[Op, ...]]] = {}
        for unit in units.values():
            earlier = {units[predecessor] for op in unit for predecessor in graph.before[op]}
            waiting[unit] = earlier - {unit}
        following: dict[tuple[Op, ...], list[tuple[Op, ...]]] = {unit: [] for unit in waiting}
        for unit, earlier in waiting.items():
            for predecessor in earlier:
                following[predecessor].append(unit)
        remaining = {unit: len(earlier) for unit, earlier in waiting.items()}
        ready = [unit for unit, count in remaining.items() if not count]
        order = []
        while ready:
            unit = ready.pop()
            order.append(unit)
            for predecessor in following[unit]:
                remaining[predecessor] -= 1
                if not remaining[predecessor]:
                    ready.append(predecessor)
        if len(order) < len(waiting):
            raise ValueError("its operations wait for each other in a circle")
        return order
