"""The table of an estimate's options: what their values are called."""

import pytest

from gputop_analysis.vram.options import parse


def test_modules_to_save_go_by_the_names_that_peft_takes():
    assert parse("modules_to_save", "embed_tokens,lm_head") == ("embeddings", "head")
    assert parse("modules_to_save", "wte, embeddings") == ("embeddings",)
    with pytest.raises(ValueError, match="takes embeddings, head, not 'classifier'"):
        parse("modules_to_save", "classifier")
