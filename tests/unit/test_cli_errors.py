"""Errors of readers become one line for the user."""

import pytest

from gputop.cli.errors import CliError, cli_errors


def test_a_name_with_a_line_end_stays_in_one_line():
    with (
        pytest.raises(CliError, match=r"^a\\nb\.json is no trace$"),
        cli_errors(ValueError, in_one_line=True),
    ):
        raise ValueError("a\nb.json is no trace")


def test_a_text_of_several_lines_is_kept():
    with pytest.raises(CliError, match="a\nb"), cli_errors(ValueError):
        raise ValueError("a\nb")
