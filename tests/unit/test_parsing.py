"""A wrong option gets one line that names the one that was meant."""

import pytest

from gputop.cli.errors import CliError
from gputop.cli.parsing import Parser


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--batch=2", "did you mean --micro-batch?"),
        ("--modle", "did you mean --model?"),
        ("--qqq", "--qqq (`gputop estimate --help`"),
    ],
)
def test_the_nearest_option_is_named(word, said):
    parser = Parser("estimate", "")
    for name in ("--model", "--micro-batch", "--seq"):
        parser.add_argument(name)
    with pytest.raises(CliError) as told:
        parser.parse_args([word])
    assert said in str(told.value) and "\n" not in str(told.value)
