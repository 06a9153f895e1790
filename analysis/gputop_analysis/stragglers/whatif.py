"""What a step would take without stragglers, and which worker, stage and operation the difference
comes from.

Without stragglers every computation takes the mean of its kind and every transfer the median of its
kind. The slowdown by X keeps the recorded durations of X alone; what X's share wins replaces X's
alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gputop_analysis.stragglers.dependencies import COMMUNICATION, PEERS, graph
from gputop_analysis.stragglers.play import Player
from gputop_analysis.stragglers.timeline import Op, OperationTimeline, Seconds, TimelineError

NONE, WORKER, STAGE, SPREAD = "no straggler", "slow worker", "long last stage", "uneven work"
LEAST_SLOWDOWN = 1.05
_CULPRITS = 0.03
"""Share of workers that are looked at as slow ones."""
_EXPLAINS = 0.5
"""Of the slowdown, for a cause to be named."""


@dataclass(frozen=True, slots=True)
class StragglerJudgement:
    """Result of ``judge``; a slowdown is a factor, 1 is none."""

    timeline: OperationTimeline
    cause: str
    rank: int | None
    """The slow worker's."""
    step_s: float
    """Mean step, without delays between operations."""
    ideal_s: float
    """Without stragglers."""
    slowdown: float
    by_worker: dict[int, float]
    """By rank, the worst first."""
    by_stage: dict[int, float]
    by_operation: dict[str, float]
    worker_share: float
    """Of the slowdown, what making the slowest workers ordinary would win."""
    last_stage_share: float
    """Of the slowdown, what making the last stage ordinary would win."""
    bubbles: tuple[float, ...]
    """Share of the step, 0 to 1, in which a stage computes nothing, by stage."""

    def as_data(self) -> dict[str, Any]:
        """What ``gputop why --json`` prints."""
        return {
            "cause": self.cause,
            "rank": self.rank,
            "host": None,
            "slowdown": self.slowdown,
            "by_worker": {str(key): value for key, value in self.by_worker.items()},
            "by_stage": {str(key): value for key, value in self.by_stage.items()},
            "by_operation": dict(self.by_operation),
        }


def judge(timeline: OperationTimeline) -> StragglerJudgement:
    """Play a timeline with and without its stragglers.

    Raises:
        TimelineError: its operations do not fit together.
    """
    try:
        with np.errstate(all="ignore"):  # a result that is not finite is refused below
            return _judged(Player(timeline, graph(timeline)))
    except (ValueError, KeyError, IndexError, FloatingPointError):
        raise TimelineError(
            f"{timeline.path}: its operations do not fit together as those of a pipeline"
        ) from None


class _Bench:
    """Plays with the durations of some operations recorded and of the others ordinary."""

    def __init__(self, player: Player) -> None:
        self.player = player
        self.ordinary = _ordinary(player)
        self.recorded_s = float(player.steps(player.durations).mean())
        self.ideal_s = float(player.steps(self.ordinary).mean())

    def only(self, chosen: Callable[[Op], Seconds | bool]) -> float:
        """Slowdown where only the chosen operations take as long as they did."""
        return self._mean(chosen, self.ordinary, self.player.durations) / self.ideal_s

    def share(self, chosen: Callable[[Op], Seconds | bool]) -> float:
        """Of the slowdown, what is won where only the chosen operations are ordinary."""
        won = self.recorded_s - self._mean(chosen, self.player.durations, self.ordinary)
        lost = self.recorded_s - self.ideal_s
        return won / lost if lost > 0 else 0.0

    def _mean(
        self,
        chosen: Callable[[Op], Seconds | bool],
        ground: dict[Op, Seconds],
        instead: dict[Op, Seconds],
    ) -> float:
        durations = {
            op: np.where(chosen(op), instead[op], ground[op]) for op in self.player.durations
        }
        return float(self.player.steps(durations).mean())


def _judged(player: Player) -> StragglerJudgement:
    timeline, bench = player.timeline, _Bench(player)
    slowdown = bench.recorded_s / bench.ideal_s
    if not math.isfinite(slowdown):
        raise ValueError
    workers = {
        rank: bench.only(_of_worker(timeline, dp, stage))
        for (dp, stage), rank in sorted(timeline.ranks.items())
    }
    by_worker = _worst_first(workers)
    count = max(1, math.ceil(_CULPRITS * len(by_worker)))
    slowest = list(by_worker)[:count]
    worker_share = bench.share(_of_ranks(timeline, slowest))
    last_share = bench.share(lambda op: op.stage == timeline.stages - 1)
    cause = _cause(slowdown, worker_share, last_share, timeline.stages)
    stages = {s: bench.only(lambda op, s=s: op.stage == s) for s in range(timeline.stages)}
    kinds = sorted({_shown(op.kind) for op in player.durations})
    operations = {k: bench.only(lambda op, k=k: _shown(op.kind) == k) for k in kinds}
    return StragglerJudgement(
        timeline=timeline,
        cause=cause,
        rank=slowest[0] if cause == WORKER else None,
        step_s=bench.recorded_s,
        ideal_s=bench.ideal_s,
        slowdown=slowdown,
        by_worker=by_worker,
        by_stage=_worst_first(stages),
        by_operation=_worst_first(operations),
        worker_share=worker_share,
        last_stage_share=last_share,
        bubbles=_bubbles(player, bench.recorded_s),
    )


def _bubbles(player: Player, step_s: float) -> tuple[float, ...]:
    computed = [0.0] * player.timeline.stages
    for op, seconds in player.durations.items():
        if op.kind not in COMMUNICATION:
            computed[op.stage] += float(seconds.mean())
    return tuple(max(0.0, 1.0 - stage_s / step_s) for stage_s in computed)


def _cause(slowdown: float, worker_share: float, last_share: float, stages: int) -> str:
    if slowdown < LEAST_SLOWDOWN:
        return NONE
    if worker_share >= _EXPLAINS and (worker_share >= last_share or last_share < _EXPLAINS):
        return WORKER
    if last_share >= _EXPLAINS and stages > 1:
        return STAGE
    return SPREAD


def _ordinary(player: Player) -> dict[Op, Seconds]:
    """Durations without stragglers: computations at the mean, communication at its median."""
    kinds: dict[str, list[Seconds]] = {}
    for op, seconds in player.durations.items():
        kinds.setdefault(op.kind, []).append(seconds)
    middle = {}
    for op_kind, parts in kinds.items():
        values = np.stack(parts)
        if op_kind in COMMUNICATION:
            middle[op_kind] = np.median(values)
        else:
            middle[op_kind] = values.mean()
    return {
        op: np.full_like(durations, middle[op.kind]) for op, durations in player.durations.items()
    }


def _of_worker(timeline: OperationTimeline, dp: int, stage: int) -> Callable[[Op], Seconds | bool]:
    row = _row(timeline, dp)
    return lambda op: row if op.stage == stage else False


def _of_ranks(timeline: OperationTimeline, ranks: list[int]) -> Callable[[Op], Seconds | bool]:
    def chosen(op: Op) -> Seconds | bool:
        rows = np.zeros((timeline.dp, 1), bool)
        for (dp, stage), rank in timeline.ranks.items():
            if stage == op.stage and rank in ranks:
                rows[dp] = True
        return rows

    return chosen


def _row(timeline: OperationTimeline, dp: int) -> Any:
    rows = np.zeros((timeline.dp, 1), bool)
    rows[dp] = True
    return rows


def _shown(kind: str) -> str:
    """Sends and receives of one direction under one name."""
    return f"{kind.split('-')[0]}-pp-comm" if kind in PEERS else kind


def _worst_first(slowdowns: dict[Any, float]) -> dict[Any, float]:
    return dict(sorted(slowdowns.items(), key=lambda item: -item[1]))
