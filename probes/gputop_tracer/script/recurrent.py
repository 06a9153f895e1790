"""Recurrent layers of a script. On CUDA each call is one kernel of cuDNN; here the CPU's stands for
it, also for packed batches, whose loop over places a CPU takes one by one.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch.nn import functional

_NOTE = (
    "What cuDNN keeps of a recurrent layer is not published: its buffers are taken to be as large "
    "as those of the CPU's kernel."
)


def replace(note: Callable[[str], Any]) -> None:
    """Replace the functions of ``torch._VF`` that ``nn.LSTM`` and its like call."""
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        setattr(torch._VF, name, _noted(getattr(torch._VF, name), note))


def _noted(original: Any, note: Callable[[str], Any]) -> Any:
    def call(data: Any, second: Any, *rest: Any) -> Any:
        note(_NOTE)
        if isinstance(rest[0], (tuple, list)) and isinstance(rest[1], bool):
            return original(data, second, *rest)
        return _packed(original, data, second, *rest)

    return call


def _packed(original: Any, data: Any, counts: Any, states: Any, *rest: Any) -> Any:
    """A packed batch as one of as many tokens, all of whose sequences are of the same length."""
    places = int(counts.numel())
    width = -(-data.shape[0] // places)
    even = functional.pad(data, [0, 0, 0, places * width - data.shape[0]]).view(places, width, -1)
    several = isinstance(states, (tuple, list))
    listed = states if several else [states]
    first = [state[:, :1].expand(-1, width, -1).contiguous() for state in listed]
    out, *last = original(even, tuple(first) if several else first[0], *rest, False)
    size = int(counts[0])
    return (
        out.flatten(0, 1)[: data.shape[0]],
        *(state_[:, :1].expand(-1, size, -1).contiguous() for state_ in last),
    )
