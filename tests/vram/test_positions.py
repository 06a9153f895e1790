"""Sequences end where a model's table of positions does."""

import json

import pytest

from gputop.models import resolved
from gputop.render import vram
from gputop_analysis import catalog
from gputop_analysis.catalog.positions import longest, max_position
from gputop_analysis.vram.options import setup_of
from gputop_analysis.vram.rules import check

LONGEST = {
    "whisper-large-v3": 448,
    "facebook/bart-large": 1024,
    "albert-base-v2": 512,
    "all-mpnet-base-v2": 512,
    "roberta-large": 512,
    "xlm-roberta-base": 512,
    "bert-base": 512,
    "gpt2": 1024,
    "distilbert-base": 512,
}


@pytest.mark.parametrize("name", LONGEST)
def test_the_longest_sequence_is_the_default_and_a_longer_one_is_refused(name: str):
    shape, _ = resolved(name, traces=True)
    setup = setup_of(shape, {})
    assert longest(shape) == setup.seq == LONGEST[name]
    assert f"seq {LONGEST[name]}" in vram.words(setup)
    check(setup)
    with pytest.raises(ValueError, match=f"has positions for {LONGEST[name]} tokens, seq 4096"):
        check(setup_of(shape, {"seq": 4096}))


@pytest.mark.parametrize("name", ["llama-3-8b", "t5-large", "bloom-7b1", "state-spaces/mamba-370m"])
def test_others_take_any_length(name: str):
    shape, _ = resolved(name, traces=True)
    assert longest(shape) == 0
    check(setup_of(shape, {"seq": 8192}))


def test_a_configuration_says_it(tmp_path):
    config = {"model_type": "whisper", "max_target_positions": 300}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert setup_of(resolved(str(tmp_path), traces=True)[0], {}).seq == 300
    assert max_position({"model_type": "camembert"}) == 514
    assert max_position({"model_type": "resnet"}) == 0


def test_the_table_of_models_is_within_its_positions():
    for shape in catalog.models():
        check(setup_of(shape, {}))
