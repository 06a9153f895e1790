"""Frameworks as data: what names and texts mean, and that every row can be used."""

from __future__ import annotations

import pytest

from gputop_analysis.planner.frameworks import frameworks, named, of_text, stages_of
from gputop_analysis.vram.setup import RECIPES


@pytest.mark.parametrize(
    ("text", "name", "release"),
    [
        ("NeMo/Megatron-Core", "nemo", "1 23"),
        ("NeMo 2.0", "nemo", "2 25"),
        ("Megatron-Bridge 0.2", "megatron-bridge", ""),
        ("Megatron-LM 23e00ed0", "megatron", ""),
        ("Megatron-Core", "megatron-core", ""),
        ("Megatron-DeepSpeed 3D + ZeRO-1", "megatron-deepspeed", ""),
        ("DeepSpeed ZeRO-3", "deepspeed", ""),
        ("llm-foundry/Composer FSDP", "llm-foundry", ""),
        ("torchtitan FSDP2", "torchtitan", ""),
        ("PyTorch FSDP", "fsdp", ""),
        ("HF Accelerate HSDP", "fsdp", ""),
        ("MaxText (JAX)", "jax", ""),
        ("nanotron", "nanotron", ""),
    ],
)
def test_texts_mean_a_framework(text, name, release):
    row = of_text(text)
    assert row is not None
    assert (row.name, row.release) == (name, release)


def test_a_release_counts_from_where_its_habits_changed():
    assert named("nemo").habits.gradient_bytes == 4
    assert named("nemo==1.23").habits.gradient_bytes == 4
    assert named("nemo==2.1").habits.gradient_bytes == 2
    assert named("nemo==24.07").habits.gradient_bytes == 4, "a container of NeMo 1"
    assert named("nemo==25.04").habits.gradient_bytes == 2
    assert named("megatron==early").habits.attention == "eager"
    assert named("megatron==2021") == named("megatron==early")
    assert named("megatron==2025") == named("megatron")
    assert named("megatron-deepspeed==early").habits.attention == "eager"
    assert named("Megatron-DeepSpeed 2022") == named("megatron-deepspeed==early")
    with pytest.raises(LookupError, match=r"there are .*torchtitan"):
        named("keras")
    with pytest.raises(LookupError, match="told apart: early"):
        named("megatron==soon")


def test_every_row_has_a_recipe_a_source_and_stages():
    for row in frameworks():
        assert row.recipe in RECIPES
        assert row.source and row.words
        assert stages_of(row)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("Megatron-Core v0.9", "megatron-core"),
        ("NeMo 25.02", "nemo"),
        ("hf trainer + deepspeed", "deepspeed"),
        ("Megatron-DeepSpeed", "megatron-deepspeed"),
        ("bigscience Megatron-DeepSpeed", "megatron-deepspeed"),
        ("GPT-NeoX", "megatron-deepspeed"),
        ("torchtune", "fsdp"),
        ("LLaMA Factory 0.9", "fsdp"),
    ],
)
def test_a_framework_is_read_as_logs_write_it(written, name):
    assert named(written).name == name


def test_a_library_that_says_nothing_of_how_it_trains_is_no_framework():
    with pytest.raises(LookupError, match="no framework"):
        named("PaddlePaddle")
