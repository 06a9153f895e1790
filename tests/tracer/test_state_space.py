"""State-space layers are traced by what the kernels of mamba-ssm keep, not token by token."""

from __future__ import annotations

import json

import pytest

from gputop.tracing import trace
from gputop_analysis.vram.options import setup_of
from gputop_analysis.vram.setup import ModelShape

LAYERS, HIDDEN, INNER, STATES, RANK = 2, 64, 128, 16, 4
MAMBA = {"intermediate_size": INNER, "state_size": STATES, "time_step_rank": RANK}
MAMBA2 = {"expand": 2, "head_dim": 32, "num_heads": 4, "n_groups": 1, "chunk_size": 64}
ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": INNER}
CONFIGS = {
    "mamba": MAMBA,
    "falcon_mamba": MAMBA,
    "mamba2": {**MAMBA2, "state_size": STATES},
    "jamba": {**ATTENTION, "num_experts": 1, "num_experts_per_tok": 1, "mamba_dt_rank": RANK},
    "bamba": {**ATTENTION, "mamba_n_heads": 4, "mamba_d_head": 32, "attn_layer_indices": [1]},
}


@pytest.fixture(autouse=True)
def _libraries():
    transformers = pytest.importorskip("transformers")
    if int(transformers.__version__.split(".")[0]) < 5:
        pytest.skip("transformers before 5 has no functions that stand for the kernels")


def log_of(kind: str, tokens: int, folder):
    common = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "vocab_size": 256}
    config = {"model_type": kind, **common, **CONFIGS[kind]}
    (folder / "config.json").write_text(json.dumps(config))
    shape = ModelShape(name=str(folder), family=kind)
    setup = setup_of(shape, {"seq": tokens, "optimizer": "sgd", "loss": "plain"})
    return trace(setup, config=config)


@pytest.mark.parametrize("kind", CONFIGS)
def test_no_more_is_made_for_more_tokens(kind, tmp_path):
    short, long = (log_of(kind, tokens, tmp_path) for tokens in (128, 512))
    assert len(long.events) == len(short.events), "a loop over tokens"
    assert any("kernels of mamba-ssm" in note for note in long.meta["notes"])


def test_what_a_layer_keeps_is_what_the_kernel_saves():
    """``save_for_backward`` of ``MambaInnerFn``: its input, the small projection, B and C, a state
    a chunk in fp32 and the scan's output, beside the weights.
    """
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    from gputop_tracer.model import state_space

    tokens, kept = 96, []
    bf16 = {"dtype": torch.bfloat16, "requires_grad": True}
    small = RANK + 2 * STATES
    weights = (
        torch.empty(INNER, 1, 4, **bf16),
        torch.empty(INNER, **bf16),
        torch.empty(small, INNER, **bf16),
        torch.empty(INNER, RANK, **bf16),
        torch.empty(HIDDEN, INNER, **bf16),
        None,
    )
    decay = torch.empty(INNER, STATES, requires_grad=True)
    xz = torch.empty(1, 2 * INNER, tokens, **bf16)
    with saved_tensors_hooks(lambda value: kept.append(value) or value, lambda value: value):
        out = state_space._inner(xz, *weights, decay, delta_bias=torch.empty(INNER))
    whose = {id(value) for value in (*weights, decay)}
    activations = sum(
        value.numel() * value.element_size()
        for value in kept
        if id(value) not in whose and tokens in value.shape
    )
    assert activations == 2 * tokens * (2 * INNER + small + 2 * STATES + INNER)
    assert any(value.shape == (1, INNER, 1, 2 * STATES) for value in kept)
    out.sum().backward()
    assert xz.grad is not None and decay.grad is not None


def test_a_scan_gives_its_last_state_where_it_is_asked_for():
    import torch

    from gputop_tracer.model import state_space

    hidden, steps = (torch.empty(2, INNER, 8) for _ in range(2))
    shared = [torch.empty(2, STATES, 8) for _ in range(2)]
    decay = torch.empty(INNER, STATES)
    alone = state_space._scan(hidden, steps, decay, *shared, z=None, D=None)
    scanned, state = state_space._scan(hidden, steps, decay, *shared, return_last_state=True)
    assert alone.shape == scanned.shape == hidden.shape
    assert state.shape == (2, INNER, STATES)
