"""Rows of styled text: widths never lie, words are not cut."""

import re

from hypothesis import given
from hypothesis import strategies as st

from gputop.render import rows
from gputop_analysis.text import wrap

TEXT = st.text(
    alphabet=st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Mn", "Me", "Cf")),
    max_size=60,
)


@given(TEXT, st.integers(1, 80))
def test_left_and_shorten_keep_the_width(text, width):
    assert rows.text_width(rows.left(text, width)) == width
    assert rows.text_width(rows.shorten(text, width)) <= width


@given(st.lists(st.tuples(TEXT, st.just("text")), max_size=6), st.integers(0, 60))
def test_fill_is_exact(row, width):
    assert rows.row_width(rows.fill(row, width)) == width


@given(st.text(alphabet="abc def", max_size=80), st.integers(3, 30))
def test_wrap_loses_no_word(text, width):
    lines = rows.wrap(text, width)
    assert all(len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_shorten_ends_at_a_word():
    assert rows.shorten("rank 2 is slow in data loading", 20) == "rank 2 is slow in…"
    assert rows.shorten("rank 2", 20) == "rank 2"


def test_wide_characters_count_twice():
    assert rows.text_width("训练") == 4
    assert rows.cut("训练", 3) == "训"


def test_a_number_too_wide_is_not_a_wrong_number():
    assert rows.right("12345", 4) == "####"
    assert rows.right("123", 5) == "  123"


def test_a_command_keeps_both_ends():
    text = rows.shorten_middle(
        "python -m torch.distributed.run --nproc-per-node 8 train.py --lr 0.1", 40
    )
    assert text.startswith("python -m") and text.endswith("train.py --lr 0.1") and len(text) == 40


def test_spread_gives_way_at_the_right():
    assert rows.row_text(rows.spread([("ab", "")], [("cd", "")], 6)) == "ab  cd"
    assert rows.row_text(rows.spread([("abcde", "")], [("cd", "")], 6)) == "abcde "


def test_a_figure_and_its_unit_stay_on_one_line():
    text = "a batch takes 18 % of each step, 62.8 ms, at 20 GB/s, 3 seconds"
    for width in range(8, 60):
        lines = rows.wrap(text, width)
        assert " ".join(lines) == text
        assert not any(line.startswith(("%", "ms", "GB")) for line in lines)


def test_a_part_that_does_not_fit_is_left_out_whole():
    parts = [[("reserved ", "muted"), ("24.8", "text")], [("  CUDA ", "muted"), ("0.6", "text")]]
    for width in range(30):
        text = rows.row_text(rows.whole(parts, width))
        assert text in ("", "reserved 24.8", "reserved 24.8  CUDA 0.6") and len(text) <= width


def test_a_figure_and_its_unit_stay_together_where_a_text_is_broken_or_cut():
    """``gputop why`` broke ``95 %`` over two lines, a panel ended in ``(95…``."""
    text = "run-queue wait 47 % of 52 s (95 % interval 43 to 50 %), 0.9 GiB, 12 steps"
    for width in range(12, 80):
        for lines in (rows.wrap(text, width), wrap(text, width), [rows.shorten(text, width)]):
            for line in lines:
                assert len(line) <= width
                assert not re.search(r"(47|52|95|50|0\.9)…?$", line) or width < 16, (width, line)
        assert " ".join(wrap(text, width)) == text


def test_a_path_is_broken_behind_a_slash_and_no_width_is_endless():
    path = "lora/llama/half/checkpointing-full/loss-plain/sdpa,"
    lines = rows.wrap(f"event profile {path} traced", 24)
    assert all(len(line) <= 24 for line in lines) and all(line[0].isalnum() for line in lines)
    assert "lora/llama/half/" in lines and not any(line.startswith(",") for line in lines)
    assert rows.wrap("ab c", 0) == ["a", "b", "c"]


def test_further_lines_of_an_entry_stand_below_its_words():
    assert rows.hanging("- one two three", 10) == ["- one two", "  three"]


def test_long_code_is_broken_at_its_marks():
    code = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    assert rows.wrap(code, 38) == ["torch.nn.utils.clip_grad_norm_(model.", "parameters(), 1.0)"]
    assert rows.wrap("a" * 9, 4) == ["aaaa", "aaaa", "a"]
