"""One stage of a pipeline: its share of the layers, what it is sent, and how many micro-batches it
holds.

One forward, one backward (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on
GPU Clusters Using Megatron-LM", section 2.2): stage ``i`` of ``p`` keeps the activations of
``min(m, p - i)`` micro-batches.
"""

from __future__ import annotations

from typing import Any, Dict, List

import torch
from torch import nn

Setup = Dict[str, Any]
_LAST_NORMS = ("norm", "ln_f", "final_layernorm", "final_layer_norm")


def stages(setup: Setup) -> int:
    return int((setup.get("parallel") or {}).get("pp") or 1)


def number(setup: Setup) -> int:
    """Of the stage that is asked about; 0 is the first."""
    return int((setup.get("parallel") or {}).get("pipeline_stage") or 0)


def is_last(setup: Setup) -> bool:
    return number(setup) == stages(setup) - 1


def in_flight(setup: Setup) -> int:
    """Micro-batches whose forward is over and whose backward is not, at most."""
    return min(int(setup.get("accumulation") or 1), stages(setup) - number(setup))


def depth(layers: int, setup: Setup) -> int:
    """Layers of a stage; the first ones hold what does not divide."""
    return -(-layers // stages(setup))


def cut(model: Any, setup: Setup, notes: List[str]) -> Any:
    """The part of a causal language model that a stage holds; its layers are counted already.

    Raises:
        ValueError: it is not known where the model begins or ends.
    """
    base, norm = ends(model)
    notes.append(
        "stage %d of %d, %d micro-batches in flight"
        % (number(setup), stages(setup), in_flight(setup))
    )
    if number(setup):
        base.set_input_embeddings(nn.Identity())
    if is_last(setup):
        return model
    setattr(base, norm, nn.Identity())
    return _Stage(base)


def ends(model: Any) -> Any:
    """(the model without its head, name of its last norm).

    Raises:
        ValueError: they are not known.
    """
    base = getattr(model, getattr(model, "base_model_prefix", "") or "-", None)
    norm = next(
        (name for name in _LAST_NORMS if isinstance(getattr(base, name, None), nn.Module)), ""
    )
    if base is None or not norm or not model.get_output_embeddings():
        raise ValueError(
            "pipeline stages of %s are not traced: use the formula tier" % type(model).__name__
        )
    return base, norm


class _Stage(nn.Module):
    """Layers whose result goes to the next stage."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base

    def forward(self, **inputs: Any) -> torch.Tensor:
        return self.base(**inputs).last_hidden_state


def inputs(
    found: Dict[str, Any],
    hidden: int,
    dtype: torch.dtype,
    *,
    setup: Setup,
    begins: bool,
    ends_here: bool,
) -> Dict[str, Any]:
    """What a part of the layers is called with, from what the whole model would be."""
    parallel = setup["parallel"]
    rows, seq = found["input_ids"].shape
    if not ends_here:
        found.pop("labels", None)
    if not begins:
        del found["input_ids"]
        if parallel.get("sequence_parallel"):
            tokens = seq // int(parallel.get("tp") or 1)
        else:
            tokens = seq
        found["inputs_embeds"] = torch.empty(rows, tokens, hidden, dtype=dtype, requires_grad=True)
    return found
