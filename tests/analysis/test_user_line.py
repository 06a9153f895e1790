"""The line of a dump that an endless loop is named by."""

import pytest

from gputop_analysis.hangs.user_line import endless_line

TRAINING = "train.py:40"


def place(line, function, *blocks):
    return {"site": f"train.py:{line}", "function": function, "blocks": list(blocks)}


MAIN = place(41, "main", "40 while")


@pytest.mark.parametrize(
    ("places", "line"),
    [
        ([place(9, "forward"), place(20, "refill", "18 while"), MAIN], "train.py:20 refill"),
        ([place(9, "forward", "7 for"), MAIN], None),
        ([place(9, "spin", "8 while", "8 if"), MAIN], "train.py:9 spin"),
        ([place(45, "main", "40 while", "44 while")], "train.py:45 main"),
        ([], None),
    ],
    ids=["around a call", "the training's alone", "innermost", "nested in it", "no places"],
)
def test_the_innermost_line_that_an_endless_loop_may_be_around(places, line):
    assert endless_line({"places": places}, {TRAINING}) == line
