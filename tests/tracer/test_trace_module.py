"""``gputop.estimate`` of an ``nn.Module`` that the caller has: traced as it is, and
left as it is.
"""

from __future__ import annotations

import pytest

from gputop.api import estimate

torch = pytest.importorskip("torch")
nn = torch.nn
MIB = 1 << 20
WIDTH, ROWS, DEPTH = 1024, 4096, 4
WEIGHTS = 4 * WIDTH * WIDTH
"""Bytes of one layer's fp32 weights, a multiple of what the allocator rounds to."""
ACTIVATION = 4 * ROWS * WIDTH


@pytest.fixture(scope="module")
def model():
    return nn.Sequential(
        *(layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU()))
    )


def test_each_part_is_as_large_as_counted_by_hand(model) -> None:
    found = estimate(
        model, inputs=torch.empty(ROWS, WIDTH), optimizer="sgd-momentum", calibrate=False
    ).peak
    assert found.tier == "trace"
    assert found.breakdown["weights"] == found.breakdown["optimizer"] == DEPTH * WEIGHTS
    # the input, and what each ReLU gives: the next product and the ReLU itself keep the same tensor
    assert found.phases["forward"] >= 2 * DEPTH * WEIGHTS + (1 + DEPTH) * ACTIVATION
    assert (
        found.allocated
        < 2 * DEPTH * WEIGHTS + (1 + DEPTH + 3) * ACTIVATION + DEPTH * WEIGHTS + 32 * MIB
    )


def test_weights_keep_their_own_type_and_autocast_is_asked_for(model) -> None:
    half = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False)).to(torch.bfloat16)
    inputs = torch.empty(ROWS, WIDTH, dtype=torch.bfloat16)
    assert estimate(half, inputs=inputs, calibrate=False).peak.breakdown["weights"] == WEIGHTS // 2
    mixed = estimate(model, inputs=torch.empty(ROWS, WIDTH), dtype="bf16", calibrate=False).peak
    plain = estimate(model, inputs=torch.empty(ROWS, WIDTH), calibrate=False).peak
    assert mixed.breakdown["weights"] == plain.breakdown["weights"]
    assert mixed.phases["forward"] < plain.phases["forward"]


def test_the_model_is_left_as_it_was(model) -> None:
    before = [(weight.data_ptr(), weight.device.type) for weight in model.parameters()]
    estimate(model, inputs=torch.empty(8, WIDTH), lora_rank=4, lora_targets="0,2", calibrate=False)
    assert [(weight.data_ptr(), weight.device.type) for weight in model.parameters()] == before
    assert model(torch.ones(1, WIDTH)).shape == (1, WIDTH)


def test_what_cannot_be_traced_is_said_in_one_line(model) -> None:
    for inputs, why in (
        (torch.empty(3, 5), "reduction dim|shapes"),
        ((1, 2, 3), "positional arguments"),
    ):
        with pytest.raises(ValueError, match=why) as caught:
            estimate(model, inputs=inputs)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"what is input1 of Bilinear.forward. Give `inputs`"):
        estimate(nn.Bilinear(3, 4, 5))
    with pytest.raises(ValueError, match="the formula tier knows models by name"):
        estimate(model, inputs=torch.empty(8, WIDTH), tier="formula")
