"""What an optimizer keeps for parameters it trains, and what its update makes and frees."""

from __future__ import annotations

from typing import NamedTuple

SAME, FP32, BYTES, SCALES = "as the parameter", "fp32", "8 bits", "scales of 8 bits"
"""How large something is that is made for a parameter: by what each of its values takes."""
BLOCK_8BIT = 256
"""Values that share one fp32 constant in an 8-bit state (bitsandbytes 0.43 and later)."""


class Update(NamedTuple):
    """An optimizer."""

    states: tuple[str, ...] = ()
    eight_bit: int = 0
    """States of bitsandbytes in 8-bit blocks; embeddings' stay fp32, as the Trainer asks."""
    together: int = 0
    """Temporaries as large as all parameters at once (foreach)."""
    each: tuple[str, ...] = ()
    """Temporaries of one parameter after the other."""
    each_half: tuple[str, ...] = ()
    """The same for parameters in 16 bits; empty: no others."""


UPDATES = {
    "adamw": Update(
        (SAME, SAME), together=1
    ),  # the square roots in _multi_tensor_adam of torch/optim/adam.py
    "adamw-fused": Update((SAME, SAME)),
    "adamw-loop": Update(
        (SAME, SAME), each=(SAME, SAME)
    ),  # the square root and its quotient in _single_tensor_adam
    "adamw-8bit": Update(eight_bit=2),
    "adamw-paged": Update(),  # in unified memory, which PyTorch's allocator knows nothing of
    "adamw-paged-8bit": Update(),
    "lion": Update((FP32,)),
    "lion-8bit": Update(eight_bit=1),
    "sgd": Update(),
    "sgd-momentum": Update((SAME,)),
    # Keeps rows and columns alone; gradient, parameter, update and its square in fp32
    # (transformers/optimization.py).
    "adafactor": Update(each=(SAME, SAME), each_half=(FP32, FP32, FP32, FP32)),
    "none": Update(),
}
"""Those whose memory follows from counts; the rest (Muon, CAME) need matrices' shapes."""


def states(update: Update, embedding: bool) -> tuple[str, ...]:
    """What is kept for a parameter, without bitsandbytes' fp32 for less than 4096 values."""
    if not update.eight_bit:
        blocks = ()
    elif embedding:
        blocks = (FP32,)
    else:
        blocks = (BYTES, SCALES)
    return update.states + update.eight_bit * blocks


def temporaries(update: Update, width: int) -> tuple[str, ...]:
    """What is made for one parameter of ``width`` bytes a value after the other."""
    if width < 4 and update.each_half:
        return update.each_half
    return update.each


def size(kind: str, parameter: int, width: int) -> int:
    """Bytes of something made for parameters of so many bytes."""
    if kind == SAME:
        return parameter
    values = parameter // width
    return {FP32: 4 * values, BYTES: values, SCALES: 4 * -(-values // BLOCK_8BIT)}[kind]
