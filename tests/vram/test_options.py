"""The table of an estimate's options: what their values are called."""

import pytest

from gputop_analysis.catalog import model
from gputop_analysis.vram.options import parse, setup_of


def test_modules_to_save_go_by_the_names_that_peft_takes():
    assert parse("modules_to_save", "embed_tokens,lm_head") == ("embeddings", "head")
    assert parse("modules_to_save", "wte, embeddings") == ("embeddings",)
    with pytest.raises(ValueError, match="takes embeddings, head, not 'classifier'"):
        parse("modules_to_save", "classifier")


def test_a_release_is_read_or_refused():
    """Another text would be taken for a recent one without a word."""
    assert parse("transformers", "v4.48.1") == "4.48.1"
    assert parse("transformer_engine", "2.3.0+cu12") == "2.3.0+cu12"
    assert parse("bitsandbytes", "") == ""
    for text in ("abc", "4", "new"):
        with pytest.raises(ValueError, match="takes a release"):
            parse("transformers", text)


def test_the_allocators_setting_is_kept_as_it_is_written():
    assert parse("allocator", " expandable_segments:True ") == "expandable_segments:True"


@pytest.mark.parametrize("name", ["liger", "cut-cross-entropy", "chunked_nll", "fused"])
def test_names_of_a_loss_without_whole_logits(name):
    assert parse("loss", name) == "fused"


LLAMA = model("llama-3-8b")


@pytest.mark.parametrize(("given", "expected"), [({}, 4), ({"accumulation": 1}, 1)])
def test_a_pipeline_has_as_many_micro_batches_as_stages_unless_it_is_said(given, expected):
    """With one micro-batch a stage would hold the activations of one only."""
    assert setup_of(LLAMA, {"pp": 4, **given}).accumulation == expected
