"""What is made from the table of commands: help, docs page; and that it stays cheap to print."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gputop.cli import main
from gputop.cli.commands import COMMANDS, QUESTIONS
from gputop.cli.commands_page import markdown
from gputop.cli.overview import help_text

ROOT = Path(__file__).parents[2]


def test_the_help_has_each_command_once_below_its_question_within_80_columns() -> None:
    lines = help_text().splitlines()
    assert max(map(len, lines)) <= 80
    question = ""
    seen = {}
    for line in lines:
        question = line if line in QUESTIONS else question
        word = line.split()[:1]
        if line.startswith("  ") and word:
            assert word[0] not in seen
            seen[word[0]] = question
    assert seen == {command.name: command.question for command in COMMANDS}


def test_the_page_of_commands_is_current() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert page == markdown(), "run `gputop help --markdown > docs/commands.md`"


def test_the_command_prints_the_page(capsys) -> None:
    assert main(["help", "--markdown"]) == 0
    assert capsys.readouterr().out == markdown()


@pytest.mark.parametrize("command", COMMANDS, ids=[command.name for command in COMMANDS])
def test_every_option_says_what_it_means(command) -> None:
    for parser in command.options():
        silent = [action.dest for action in parser._actions if not action.help]
        assert not silent


def test_the_help_imports_no_command() -> None:
    program = (
        "import sys; from gputop.cli import main; main(['--help'])\nheavy = {'argparse', 'numpy', "
        "'textual', 'pydantic', 'gputop.cli.slow.run', "
        "'gputop_analysis'} & set(sys.modules)\nassert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, cwd=ROOT)
