"""One PPO iteration on GPUs that all models share: answers generated, scored by four forwards, two
models updated.

The order is that of Ouyang et al. 2022 (arXiv:2203.02155) as DeepSpeed-Chat and TRL run it: the
actor generates, actor, reference, critic and reward model score, actor and critic train. Critic and
reward model are of the actor's size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gputop_analysis.planner import memory
from gputop_analysis.planner.choices import Choice, choice
from gputop_analysis.planner.cost import forward_seconds
from gputop_analysis.planner.layout import Floats, Layouts
from gputop_analysis.planner.search import Plan
from gputop_analysis.workloads import serving

FORWARDS = 4
"""Log-probabilities of actor and reference, values of the critic, rewards."""
UPDATES = 2
_SHORT = 128
"""Tokens at which activations are next to nothing beside the states."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """Seconds of one iteration, of the split ``choice``."""

    choice: Choice
    generation_s: float
    scoring_s: float
    updates_s: float
    at_once: int
    """Answers that a replica generates at once, in the memory that the training leaves."""

    @property
    def seconds(self) -> float:
        return self.generation_s + self.scoring_s + self.updates_s

    def to_json(self) -> dict[str, Any]:
        """Stable names with units, beside those of the split."""
        return self.choice.to_json() | {
            "name": self.choice.name,
            "iteration_time_s": self.seconds,
            "generation_time_s": self.generation_s,
            "scoring_time_s": self.scoring_s,
            "update_time_s": self.updates_s,
            "answers_at_once": self.at_once,
        }


def iterations(
    plan: Plan, prompt: int, output: int, usd_per_gpu_hour: float | None = None
) -> list[Iteration]:
    """Every split that trains and generates within the memory, shortest iteration first.

    Raises:
        ValueError: no split leaves room to generate a single answer.
    """
    own_order = plan.order
    layouts = plan.layouts.take(own_order)
    at_once = np.minimum(_at_once(plan, layouts), plan.job.global_batch // layouts.dp)
    if not (at_once >= 1).any():
        raise ValueError(
            f"no split of {plan.cluster.gpus} x {plan.cluster.device.name} leaves memory to "
            "generate one answer of "
            f"{prompt + output} tokens beside the four models"
        )
    generation = _generation(
        plan, layouts, at_once=np.maximum(at_once, 1), prompt=prompt, output=output
    )
    scoring = FORWARDS * forward_seconds(plan.job, plan.cluster, layouts)
    updates = UPDATES * plan.seconds[own_order]
    total = np.where(at_once >= 1, generation + scoring + updates, np.inf)
    order = [int(i) for i in np.argsort(total, kind="stable") if np.isfinite(total[i])]
    ranked = []
    for i in order:
        ranked.append(
            Iteration(
                choice(plan, int(own_order[i]), usd_per_gpu_hour),
                float(generation[i]),
                scoring_s=float(scoring[i]),
                updates_s=float(updates[i]),
                at_once=int(at_once[i]),
            )
        )
    return ranked


def _at_once(plan: Plan, layouts: Layouts) -> Floats:
    """Whole-length answers whose cache fits beside all models' states; ZeRO-3 gathers weights."""
    job = plan.job
    small = Layouts.of(
        **{name: getattr(layouts, name) for name in ("tp", "pp", "cp", "ep", "dp", "zero")},
        recompute=2,
    )
    states = memory.sizes(job.but(seq=_SHORT), small).device
    gathered = np.where(
        layouts.zero == 3, serving.weight_bytes(job.model, _served(plan), layouts.tp), 0.0
    )
    room = plan.cluster.device.usable_bytes - states - gathered
    sequence_bytes = job.seq * serving.kv_bytes_per_token(job.model, layouts.tp)
    return np.floor(np.maximum(room, 0.0) / sequence_bytes).astype(int)


def _generation(plan: Plan, layouts: Layouts, at_once: Floats, prompt: int, output: int) -> Floats:
    model, dtype = plan.job.model, _served(plan)
    local = plan.job.global_batch / layouts.dp
    waves = np.ceil(local / at_once)
    size = np.ceil(local / waves)
    context = prompt + output / 2
    decode = serving.decode_seconds(
        model, plan.cluster, dtype=dtype, tp=layouts.tp, batch=size, context=context
    )
    return waves * (
        serving.prefill_seconds(
            model, plan.cluster, dtype=dtype, tp=layouts.tp, prompts=size, prompt=prompt
        )
        + output * decode
    )


def _served(plan: Plan) -> str:
    """The type that the actor generates in: its training's, in 16 bits where products are in 8."""
    if plan.job.dtype in ("fp8", "fp4"):
        return "bf16"
    return plan.job.dtype
