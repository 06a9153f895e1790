"""What the optimizer's update needs besides its states."""

from __future__ import annotations

from gputop_analysis.vram.formula import galore
from gputop_analysis.vram.formula.dims import Dims, Number
from gputop_analysis.vram.formula.elementwise import least, most
from gputop_analysis.vram.formula.habits import Habits
from gputop_analysis.vram.formula.parts import Part
from gputop_analysis.vram.formula.states import flat_partitions, gradient_bytes, moment_bytes, over
from gputop_analysis.vram.formula.unread import unread_gradients

LOOPS = {"adamw-loop": 1, "adafactor": 2, "galore": 2, "came": 3, "muon": 4}
"""Temporaries as large as the parameter that is updated, where one is updated at a time, in fp32:
one for the square root (AdamW); that and its quotient (GaLore's AdamW); update and its square
(Adafactor); those of Newton-Schulz (Muon,
Jordan 2024).
"""

ADAFACTOR_IN_HALF = 4 * 4
"""Bytes a value of the updated parameter, where it has 16 bits: the parameter, its gradient, the
update and its square, all in fp32 (``Adafactor.step`` of ``transformers/optimization.py``).
"""

SUB_GROUP = 1e9
"""Parameters that DeepSpeed's stage 3 updates at a time (``sub_group_size``)."""


def update_temporaries(d: Dims, parts: tuple[Part, ...], habits: Habits) -> Number:
    """torch's foreach AdamW makes one tensor as large as a moment for all parameters at once
    (``exp_avg_sq.sqrt()``, ``torch/optim/adamw.py``); others work on one parameter after the other.
    """
    trained = [part for part in parts if part.trained]
    if d.setup.optimizer_in_backward:
        return 0.0
    sharded = d.setup.parallel.stage >= 1
    if d.setup.optimizer == "adamw" and not habits.master and d.setup.parallel.offload == "none":
        sizes = (
            part.count * moment_bytes(d, part, habits) / 2 / over(d, part, sharded)
            for part in trained
        )
        return sum(sizes, 0.0)
    if flat_partitions(d):
        if _updates_in_place(d, habits):
            return 0.0
        return most(_flat_copies(d, trained, habits), _flat_update(d, trained, habits))
    largest = [
        _largest(d, part) * _temporary_bytes(d, part, habits) / over(d, part, sharded)
        for part in trained
        if not galore.projects(d, part)
    ]
    if any(galore.projects(d, part) for part in trained):
        largest.append(galore.update_bytes(d, habits.gradients))
    return most(*largest) if largest else 0.0


def update_segments(d: Dims, parts: tuple[Part, ...], habits: Habits) -> Number:
    """Bytes that the update puts in segments: of flat tensors none fits where another was, so that
    they count one beside the other.
    """
    if not flat_partitions(d) or _updates_in_place(d, habits):
        return update_temporaries(d, parts, habits)
    reduced = habits.gradients * (d.setup.parallel.stage == 1)
    loops = 4.0 * LOOPS.get(d.setup.optimizer, 0)
    trained = [part for part in parts if part.trained]
    return (reduced + habits.gradients + 4.0 + loops) * _at_once(d, trained)


def _updates_in_place(d: Dims, habits: Habits) -> bool:
    """On the host, or by DeepSpeed's optimizer for bf16."""
    in_place = d.setup.parallel.stage == 1 and habits.flat_gradients
    return in_place or d.setup.parallel.offload != "none"


def _temporary_bytes(d: Dims, part: Part, habits: Habits) -> float:
    """Bytes a value that the update of one parameter after the other needs besides."""
    value_bytes = gradient_bytes(d, part, habits)
    if d.setup.optimizer == "adafactor" and value_bytes < 4:
        return ADAFACTOR_IN_HALF
    return LOOPS.get(d.setup.optimizer, 0) * value_bytes


def _flat_copies(d: Dims, trained: list[Part], habits: Habits) -> Number:
    """DeepSpeed's copies of this rank's gradients, flat as they are and in fp32 (``step`` of
    ``stage_1_and_2.py``; in ``stage3.py`` of a sub-group at a time). Stage 1 lets the whole
    gradients go once it has its share of them.
    """
    share = _at_once(d, trained)
    copies = (habits.gradients + 4) * share
    if d.setup.parallel.stage > 1:
        return copies
    total = sum((part.count for part in trained), 0.0)
    return habits.gradients * share + most(0.0, copies - habits.gradients * total)


def _flat_update(d: Dims, trained: list[Part], habits: Habits) -> Number:
    """The fp32 gradient and the update's temporaries, when the gradients as they were are gone; the
    flat ones of stage 3 stay.
    """
    share = _at_once(d, trained)
    held_bytes = 4.0 * (1 + LOOPS.get(d.setup.optimizer, 0)) * share
    if d.setup.parallel.stage == 3:
        return held_bytes
    if d.setup.parallel.stage == 1:
        share = sum((part.count for part in trained), 0.0)
    return most(0.0, held_bytes - habits.gradients * share)


def _at_once(d: Dims, trained: list[Part]) -> Number:
    """Values of this rank's flat share that one update changes."""
    share = sum((part.count / over(d, part, True) for part in trained), 0.0)
    return least(share, SUB_GROUP) if d.setup.parallel.stage == 3 else share


def _largest(d: Dims, part: Part) -> Number:
    """Values of the largest single parameter of a part."""
    if part.name in ("embeddings", "head"):
        return part.count
    return least(part.count, d.model.hidden * max(d.model.ffn, d.model.moe_ffn) / d.tp)


def dequantised(d: Dims) -> Number:
    """The largest quantised weight in the computation's type, made anew for each product."""
    if d.setup.quantized:
        copies = d.compute + 2 * (d.recipe == "litgpt")  # the fp16 one, cast
        return copies * d.model.hidden * max(d.model.ffn, d.model.moe_ffn) / d.tp
    return 0


CUBLAS_WORKSPACE = 2 * 8_519_680
"""PyTorch takes a workspace of 8.125 MiB from its allocator for each handle of cuBLAS
(``aten/src/ATen/cuda/CublasHandlePool.cpp``; 32 MiB on Hopper): one of the thread that runs the
forward pass, one of autograd's.
"""
MEGATRON_WORKSPACE = 80 << 20
"""Transformer Engine's workspaces, padding of buffers, the batch: 50 to 120 MB in the memory that
Megatron-LM's own tests report between two steps, whatever the model.
"""


def workspaces(d: Dims) -> Number:
    """Bytes that are held all the time by libraries."""
    if d.recipe == "megatron":
        return MEGATRON_WORKSPACE + unread_gradients(d)
    return CUBLAS_WORKSPACE
