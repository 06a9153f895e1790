"""No option is ignored without a word: it changes the answer, is refused, or comes to the same."""

import pytest

from gputop_analysis import catalog
from gputop_analysis.vram import formula
from gputop_analysis.vram.idle import refuse
from gputop_analysis.vram.options import OPTIONS, setup_of
from gputop_analysis.vram.rules import check

LLAMA = catalog.model("llama-3-8b")
SAMPLES = {
    "seq": 4096,
    "lora_targets": "all-linear",
    "lora_dropout": 0.1,
    "dropout": 0.1,
    "transformers": "4.45",
    "bitsandbytes": "0.41",
    "allocator": "expandable_segments:True",
    "modules_to_save": "head",
    "freeze": "language",
    "roles": "critic",
    "image_size": 672,
    "cached": "text",
    "pipeline_stage": 1,
}
SAME = {
    "lengths=fixed": "what is assumed",
    "dtype=fp16": "as wide as bf16",
    "dtype=fp8": "tensors stay in 16 bits but in Megatron-LM",
    "weights=bf16": "the type of the computation",
    "weights=fp16": "as wide as bf16",
    "grad_dtype=bf16": "the type of the weights",
    "grad_dtype=fp16": "as wide as bf16",
    "attention=flash": "SDPA takes the same kernel",
    "autocast=True": "16-bit weights need no casts",
    "clip_grad=False": "the norms are a few numbers",
}
"""Values that ask for what a plain setup has, or for something as large."""


def values_of(option):
    if option.kind == "flag":
        return [not option.default]
    if option.kind == "choice":
        return [choice for choice in option.choices if choice not in ("", option.default)]
    return [SAMPLES.get(option.name, 2)]


CASES = [(option.name, value) for option in OPTIONS for value in values_of(option)]


@pytest.mark.parametrize(("name", "value"), CASES, ids=[f"{n}={v}" for n, v in CASES])
def test_an_option_changes_the_answer_or_is_refused(name, value):
    plain = setup_of(LLAMA, {})
    if f"{name}={value}" in SAME:
        return
    try:
        setup = setup_of(LLAMA, {name: value})
        refuse({name: value}, setup)
        check(setup)
    except ValueError as why:
        assert len(str(why).splitlines()) == 1
        return
    before, after = formula.peak(plain), formula.peak(setup)
    assert (before.breakdown, before.reserved, before.phases) != (
        after.breakdown,
        after.reserved,
        after.phases,
    )


def test_master_weights_that_the_trainer_has_all_the_same_cannot_be_left_out():
    for given, is_refused in (
        ({"recipe": "deepspeed"}, True),
        ({"recipe": "megatron"}, True),
        ({"recipe": "megatron", "dtype": "fp32"}, False),
        ({"recipe": "plain"}, False),
    ):
        values = {**given, "master_weights": "no"}
        setup = setup_of(LLAMA, values)
        if is_refused:
            with pytest.raises(ValueError, match="keeps an fp32 copy of weights of 16 bits"):
                refuse(values, setup)
        else:
            refuse(values, setup)
