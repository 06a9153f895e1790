"""Mixtures of experts: what selective recomputation gives up, how tokens travel and are sorted."""

from __future__ import annotations

import numpy as np
import pytest

from gputop_analysis.catalog import model
from gputop_analysis.planner import collectives, communication, layers, memory
from gputop_analysis.planner.cost import cost
from gputop_analysis.planner.frameworks import named
from gputop_analysis.planner.hardware import cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Layouts

QWEN = Job(model("qwen3-235b-a22b"), 4096, 2048, recipe="megatron")
EACH_KIND = Layouts.of(ep=8, dp=8, zero=1, recompute=[0, 1, 2])


@pytest.mark.parametrize("name", ["qwen3-235b-a22b", "deepseek-v3"])
def test_megatron_gives_up_outputs_that_are_cheap_to_make_again(name):
    """Norms, the experts' activation and latent projections: a few per cent of a step."""
    job = QWEN.but(model=model(name))
    took = cost(job, cluster("H800", 8), EACH_KIND).compute
    held = memory.allocated_bytes(job, EACH_KIND)
    assert 1 < took[1] / took[0] < 1.06
    assert took[2] > 1.25 * took[0]
    assert held[2] < held[1] < held[0]


def test_what_an_experts_activation_frees_is_its_output():
    """Of each layer 4096 tokens with 8 experts' 1536 values in 16 bits, and the norm before."""
    shape = model("qwen3-235b-a22b")
    none, selective, _ = memory.allocated_bytes(QWEN, EACH_KIND)
    freed = 4096 * shape.layers * 2 * (8 * 1536 + shape.hidden)
    one_layer = freed / shape.layers
    assert none - selective == pytest.approx(freed, abs=1.5 * one_layer)


def test_a_kernel_that_applies_the_routers_weights_keeps_no_experts_output():
    """Megatron-Core weights what the activation gives (``weighted_bias_swiglu_impl``)."""
    shape = model("qwen3-235b-a22b")
    megatron = memory.allocated_bytes(QWEN, EACH_KIND)[0]
    other = memory.allocated_bytes(QWEN.but(recipe="nanotron"), EACH_KIND)[0]
    assert other - megatron > 0.9 * 4096 * shape.layers * 8 * 2 * shape.hidden


def test_each_tensor_parallel_rank_sorts_its_part_of_the_tokens():
    """Where experts are whole on a rank; split ones gather what all of these have."""
    together = Layouts.of(tp=[1, 2, 4], ep=8, dp=[8, 4, 2])
    sorted_bytes = layers._permutation_bytes(QWEN, together, 4096.0 + 0.0 * together.tp)
    assert sorted_bytes / sorted_bytes[0] == pytest.approx([1, 1 / 2, 1 / 4])


def test_tokens_that_travel_unsorted_are_sorted_once():
    unsorted_job = QWEN.but(dispatcher="deepep")
    layouts = Layouts.of(ep=8, dp=8)
    twice, once = (
        float(layers._permutation_bytes(job, layouts, np.array([4096.0]))[0])
        for job in (QWEN, unsorted_job)
    )
    assert once < 0.7 * twice


def test_eight_choices_among_eight_ranks_are_five_and_a_quarter():
    assert communication._different(np.array([8.0]), 8)[0] == pytest.approx(5.25, abs=0.01)
    assert communication._different(np.array([1.0]), 8)[0] == 1


def test_links_of_half_the_rate_are_filled():
    """DeepEP's kernels reach 153 to 158 GB/s of an H800's 200."""
    export, full = cluster("H800", 8), cluster("H100", 8)
    rates = [float(collectives.group(place, 8, 1).gather_bytes_per_s) for place in (export, full)]
    assert rates == pytest.approx([160e9, 247.5e9])


def test_automodel_has_no_second_copy_of_its_weights():
    framework = named("automodel")
    assert not framework.habits.master_weights and framework.habits.dispatcher == "deepep"
    job = Job(model("llama-3-8b"), 4096, 8, recipe="torchtitan")
    layouts = Layouts.of(micro_batch=1, zero=3, dp=8, recompute=2)
    with_copy, without = (
        float(memory.allocated_bytes(job.but(master_weights=kept, gradient_bytes=size), layouts)[0])
        for kept, size in ((True, 4), (False, 2))
    )
    assert with_copy - without > 6 * 8e9 / 8
