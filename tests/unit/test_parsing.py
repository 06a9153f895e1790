"""A wrong option gets one line that names the one that was meant."""

import pytest

from gputop.cli import ELSEWHERE_CALLED, main
from gputop.cli.commands import find
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


@pytest.mark.parametrize(
    ("word", "said"), [("explain", "gputop findings"), ("rnu", "gputop run"), ("qqqq", "--help")]
)
def test_a_command_that_other_tools_have_is_named_as_here(word, said, capsys):
    assert main([word]) == 2
    assert said in capsys.readouterr().err


def test_words_of_other_commands_lead_to_commands_that_exist():
    assert all(find(name) is not None for name in ELSEWHERE_CALLED.values())
    assert not any(find(word) is not None for word in ELSEWHERE_CALLED)


@pytest.mark.parametrize(
    "words",
    [
        ("estimate", "--model"),
        ("plan", "--gpu", "H100-SXM5-80GB", "--model"),
        ("report",),
        ("memory",),
        ("open",),
        ("why",),
        ("lint",),
        ("check", "--baseline"),
    ],
)
def test_a_name_longer_than_any_files_is_one_line(words, capsys):
    rest = ("--", "true") if words[0] == "check" else ()
    assert main([*words, "x" * 5000, *rest]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said and said.startswith("gputop: ") and said.count("\n") == 1
