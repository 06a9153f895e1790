"""Which operation waits for which in a training with a pipeline and data-parallel ranks.

All steps and data-parallel ranks share one graph, read off the first step of the first one. In a
stage the computations run one after another, and so do the sends and receives of one direction; a
receive comes before its computation, a send after it; gradients are reduced after the last
backward, and the optimizer ends the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from gputop_analysis.stragglers.timeline import Op, OperationTimeline

FORWARD, BACKWARD = "forward-compute", "backward-compute"
PEERS = {
    "forward-send": ("forward-recv", 1),
    "forward-recv": ("forward-send", -1),
    "backward-send": ("backward-recv", -1),
    "backward-recv": ("backward-send", 1),
}
"""Kind and stage, relative, of the other end."""
GATHER, REDUCE, SEPARATE = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
LAYERNORM, EMBEDDING = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
CLIP, OPTIMIZER, COLLECTOR = "optimizer-clip-main-grad", "optimizer", "gc"
COMMUNICATION = frozenset((*PEERS, GATHER, REDUCE, SEPARATE, LAYERNORM, EMBEDDING, CLIP))
SYNCHRONISED = frozenset((GATHER, REDUCE, SEPARATE, CLIP))
"""Kinds that all data-parallel ranks do together."""
_NEAR_S = 5e-5


@dataclass(slots=True)
class DependencyGraph:
    """Dependencies of the operations of one step."""

    before: dict[Op, list[Op]] = field(default_factory=dict)
    """What must have ended before an operation begins."""
    groups: list[tuple[Op, ...]] = field(default_factory=list)
    """Operations of several stages that end together."""

    def after(self, op: Op, *earlier: Op) -> None:
        """``op`` begins after each of ``earlier``."""
        self.before.setdefault(op, []).extend(earlier)

    def chain(self, ops: list[Op]) -> None:
        """Each begins after the one before it."""
        for op, following in pairwise(ops):
            self.after(following, op)


def graph(timeline: OperationTimeline) -> DependencyGraph:
    """The dependencies of a timeline's operations."""
    dependencies = DependencyGraph({op: [] for op in timeline.starts})
    valid: dict[tuple[str, int], list[Op]] = {}
    for stage in range(timeline.stages):
        computations = _computations(timeline, stage)
        dependencies.chain(computations)
        for peer_kind in PEERS:
            ops = timeline.of(peer_kind, stage)
            dependencies.chain(ops)
            valid[peer_kind, stage] = _match(dependencies, timeline, peer_kind, stage, ops)
        _first_backward(dependencies, timeline, stage, computations)
        if timeline.dp > 1:
            _shards(dependencies, timeline, stage, computations)
        _end_of_step(dependencies, timeline, stage, computations)
    _groups(dependencies, timeline, valid)
    return dependencies


def _computations(timeline: OperationTimeline, stage: int) -> list[Op]:
    ops = timeline.of(FORWARD, stage) + timeline.of(BACKWARD, stage)
    return sorted(ops, key=lambda op: (timeline.starts[op][0, 0], op.number, op.kind))


def _match(
    graph: DependencyGraph, timeline: OperationTimeline, kind: str, stage: int, ops: list[Op]
) -> list[Op]:
    """Tie sends and receives to their computations; those that move anything."""
    compute_kind = FORWARD if kind.startswith("forward") else BACKWARD
    receives = kind.endswith("recv")
    computations = {op.number: op for op in timeline.of(compute_kind, stage)}
    if not computations:
        return []
    if receives:
        last_start = max(timeline.starts[op][0, 0] for op in computations.values())
        real = [op for op in ops if timeline.starts[op][0, 0] <= last_start + _NEAR_S]
    else:
        first_end = min(timeline.ends[op][0, 0] for op in computations.values())
        real = [op for op in ops if timeline.ends[op][0, 0] >= first_end - _NEAR_S]
    skipped = 1 if receives and len(real) + 1 == len(computations) else 0
    moving = []
    for index, op in enumerate(real, skipped):
        computation = computations.get(index)
        if computation is None:
            continue
        peer = timeline.chunks[computation][1] + PEERS[kind][1]
        if 0 <= peer < _chunks(timeline):
            moving.append(op)
        if not receives:
            graph.after(op, computation)
            continue
        graph.after(computation, op)
        if index - 1 in computations:
            graph.after(op, computations[index - 1])
    return moving


def _chunks(timeline: OperationTimeline) -> int:
    return max(count for _, count in timeline.chunks.values()) + 1


def _first_backward(
    graph: DependencyGraph, timeline: OperationTimeline, stage: int, computations: list[Op]
) -> None:
    """The first exchange of gradients is posted two computations before the first backward."""
    first = next((i for i, op in enumerate(computations) if op.kind == BACKWARD), 0)
    if first < 2:
        return
    for pass_kind in ("backward-recv", "backward-send"):
        op = Op(pass_kind, 0, stage)
        if op in timeline.starts:
            graph.after(op, computations[first - 2])


def _shards(
    graph: DependencyGraph, timeline: OperationTimeline, stage: int, computations: list[Op]
) -> None:
    """Parameters are gathered before a chunk's first forward, gradients reduced after its end."""
    gathers, reduces = timeline.of(GATHER, stage), timeline.of(REDUCE, stage)
    both = sorted(gathers + reduces, key=lambda op: (timeline.starts[op][0, 0], op.number, op.kind))
    graph.chain(both)
    by_chunk = {timeline.chunks[op][0]: op for op in gathers}  # the last one of a chunk
    for chunk, gather in by_chunk.items():
        _after_first(graph, timeline, computations, chunk, gather)
    if not timeline.of(SEPARATE, stage):
        return
    done: set[int] = set()
    for reduce in reduces:
        chunk = timeline.chunks[reduce][0]
        own_operations = [
            o for o in computations if o.kind == BACKWARD and timeline.chunks[o][0] == chunk
        ]
        if own_operations and chunk not in done:
            graph.after(reduce, own_operations[-1])
            done.add(chunk)


def _after_first(
    graph: DependencyGraph,
    timeline: OperationTimeline,
    computations: list[Op],
    chunk: int,
    gather: Op,
) -> None:
    for op in computations:
        if op.kind == FORWARD and timeline.chunks[op][0] == chunk:
            graph.after(op, gather)
            return


def _end_of_step(
    graph: DependencyGraph, timeline: OperationTimeline, stage: int, computations: list[Op]
) -> None:
    """From the last computation to the optimizer."""
    if not computations:
        return
    last = max(computations, key=lambda op: timeline.ends[op][0, 0])
    reduces = sorted(timeline.of(REDUCE, stage), key=lambda op: op.number)
    overlapping = bool(timeline.of(SEPARATE, stage)) and timeline.dp > 1
    kinds = [COLLECTOR, LAYERNORM]
    if stage in (0, timeline.stages - 1):
        kinds.append(EMBEDDING)
    chain = [op for op_kind in kinds for op in timeline.of(op_kind, stage)]
    if overlapping:
        chain += timeline.of(SEPARATE, stage)
    elif timeline.dp > 1:
        chain += reduces
    chain += timeline.of(CLIP, stage) + timeline.of(OPTIMIZER, stage)
    graph.chain(chain)
    if chain:
        graph.after(chain[0], last)
    after_collector = [op for op in chain if op.kind != COLLECTOR]
    if overlapping and reduces and after_collector:
        graph.after(after_collector[0], reduces[-1])


def _groups(
    graph: DependencyGraph, timeline: OperationTimeline, valid: dict[tuple[str, int], list[Op]]
) -> None:
    grouped: set[Op] = set()
    for (op_kind, stage), ops in valid.items():
        if op_kind.endswith("recv"):
            continue
        peer_kind, step = PEERS[op_kind]
        other_operations = valid.get((peer_kind, (stage + step) % timeline.stages), [])
        for pair in zip(ops, other_operations, strict=False):
            graph.groups.append(pair)
            grouped.update(pair)
    ends = {0, timeline.stages - 1}
    embedding = tuple(op for stage in sorted(ends) for op in timeline.of(EMBEDDING, stage))
    clips = tuple(op for stage in range(timeline.stages) for op in timeline.of(CLIP, stage)[:1])
    for group in (embedding, clips):
        if group:
            graph.groups.append(group)
            grouped.update(group)
    for op in timeline.starts:
        alone = op.kind in PEERS or (op.kind in SYNCHRONISED and timeline.dp > 1)
        if alone and op not in grouped:
            graph.groups.append((op,))
