"""Layouts of published trainings: in the search space, near the pick, as fast as published."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from gputop_analysis.catalog import model
from gputop_analysis.launch.megatron import emit
from gputop_analysis.launch.strategy import Strategy
from gputop_analysis.planner import memory, search
from gputop_analysis.planner.cost import cost
from gputop_analysis.planner.frameworks import named
from gputop_analysis.planner.hardware import cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Layouts
from gputop_analysis.planner.rules import allowed
from gputop_analysis.vram.formula.discarded import modules_of


class Known(NamedTuple):
    """A published training. ``seconds`` of a step, from what the source prints."""

    model: str
    gpu: str
    gpus: int
    network: str
    seq: int
    batch: int
    dtype: str
    framework: str
    layout: dict[str, int]
    seconds: float


KNOWN = {
    # The Llama 3 Herd of Models, table 4: 16M tokens, 400 TFLOP/s a GPU (causal attention counted)
    "llama-3-405b": Known(
        model="llama-3.1-405b", gpu="H100", gpus=16384, network="RoCE 3200 Gbps", seq=8192,
        batch=2048, dtype="bf16", framework="megatron-core", layout={"tp": 8, "pp": 16},
        seconds=6.49,
    ),
    # the same table: 8,192 GPUs, 430 TFLOP/s
    "llama-3-405b-half": Known(
        model="llama-3.1-405b", gpu="H100", gpus=8192, network="RoCE 3200 Gbps", seq=8192,
        batch=2048, dtype="bf16", framework="megatron-core", layout={"tp": 8, "pp": 16},
        seconds=12.07,
    ),
    # arXiv:2412.19437: 14.8T tokens in 2.664M GPU hours, 15,360 sequences of 4,096 a step
    "deepseek-v3": Known(
        model="deepseek-v3", gpu="H800", gpus=2048, network="8x NDR IB", seq=4096, batch=15360,
        dtype="fp8", framework="deepseek", layout={"tp": 1, "pp": 16, "ep": 64}, seconds=19.9,
    ),
    # arXiv:2402.16819 and 2406.11704, table 2: 8.0 s with 64 data-parallel ranks, 10.3 s with 16
    "nemotron-4-340b": Known(
        model="nemotron-4-340b", gpu="H100", gpus=6144, network="8x NDR IB", seq=4096, batch=2304,
        dtype="bf16", framework="megatron-core", layout={"tp": 8, "pp": 12}, seconds=8.0,
    ),
    "nemotron-4-340b-quarter": Known(
        model="nemotron-4-340b", gpu="H100", gpus=1536, network="8x NDR IB", seq=4096, batch=768,
        dtype="bf16", framework="megatron-core", layout={"tp": 8, "pp": 12}, seconds=10.3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_a_published_layout_is_in_the_space_near_the_pick_and_as_fast_as_published(name):
    known = KNOWN[name]
    framework = named(known.framework)
    job = Job(model(known.model), known.seq, known.batch, known.dtype).of_framework(
        framework.name, framework.recipe, framework.habits
    )
    plan = search.plan(job, cluster(known.gpu, known.gpus, 0, known.network))
    same = plan.fits.copy()
    for degree, value in known.layout.items():
        same &= getattr(plan.layouts, degree) == value
    assert same.any()
    best = int(np.flatnonzero(same)[np.argmin(plan.seconds[same])])
    assert plan.seconds[best] < 1.10 * plan.seconds[plan.pick]
    assert 0.85 < plan.seconds[best] / known.seconds < 1.15


@pytest.mark.parametrize("framework", ["megatron-deepspeed", "megatron-core"])
def test_blooms_70_layers_stand_on_12_stages(framework):
    """arXiv:2211.05100, section 3.4: TP4 PP12 DP8 on 384 A100."""
    row = named(framework)
    job = Job(model("bloom"), 2048, 2048).of_framework(row.name, row.recipe, row.habits)
    layouts = Layouts.of(tp=4, pp=12, dp=8, micro_batch=2)
    assert allowed(job, layouts, 384).all()
    assert not allowed(job.but(recipe="plain"), layouts, 384).any()


def test_bloom_is_as_fast_as_its_chronicles_say_on_their_network():
    """bigscience-workshop/bigscience train/tr11-176B-ml: 104.5 s a step with 112 heads."""
    row = named("megatron-deepspeed==early")
    job = Job(model("bloom"), 2048, 2048).of_framework(row.name, row.recipe, row.habits)
    layouts = Layouts.of(tp=4, pp=12, dp=8, micro_batch=2, zero=1, recompute=2)
    machines = cluster("A100 80GB", 384, 0, "4x Omni-Path 100 Gbps")
    assert float(cost(job, machines, layouts).seconds[0]) == pytest.approx(104.5, rel=0.15)


def test_uneven_stages_are_written_out_for_megatron():
    values = {"tp": 8, "pp": 16, "vpp": 8, "dp": 1, "sequence_parallel": True}
    strategy = Strategy.of(
        16, 8, model=model("llama-3.1-405b"), global_batch=16, seq=8192, zero=0, **values
    )
    words = list(emit(strategy).command)
    layout = words[words.index("--pipeline-model-parallel-layout") + 1]
    chunks = layout.split("|")
    assert len(chunks) == 128
    assert (chunks[0], chunks[1], chunks[-1]) == ("E", "t", "L")
    assert layout.count("t") == 126


def test_selective_recomputation_frees_and_repeats_the_same():
    """Memory keeps every second product, so that time repeats the others; with Megatron's default,
    the attention core alone, flash attention would leave nearly all of it.
    """
    job, layouts = Job(model("llama-3-8b"), 4096, 8), Layouts.of(micro_batch=1, recompute=[0, 1, 2])
    took = cost(job, cluster("H100", 1), layouts).compute
    held = memory.allocated_bytes(job, layouts)
    assert 1.08 < took[1] / took[0] < took[2] / took[0] - 0.08
    assert held[2] < held[1] < held[0]
    for name, last in (("llama-3-8b", "mlp"), ("deepseek-v3", "mla_up_proj")):
        assert modules_of(model(name))[-1] == last
    strategy = Strategy.of(1, 8, model=model("llama-3-8b"), recompute="selective", dp=8)
    words = list(emit(strategy).command)
    at = words.index("--recompute-modules")
    assert words[at + 1 : at + 4] == ["layernorm", "mlp", "--train-iters"]
