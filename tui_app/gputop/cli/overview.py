"""The text of ``gputop --help``: all commands at a glance."""

from __future__ import annotations

from gputop.cli.commands import COMMANDS, by_question

_START = """\
Start here: gputop run python train.py
(everything after the first word that is no option is your command)

`gputop COMMAND --help` lists the options of a command."""


def help_text() -> str:
    """The commands grouped by the question that they answer, at most 80 columns wide."""
    width = max(len(command.name) for command in COMMANDS)
    lines = ["gputop: htop for PyTorch training", "", "usage: gputop COMMAND ...", ""]
    for question, commands in by_question():
        lines.append(question)
        lines += [f"  {command.name:<{width}}  {command.summary}" for command in commands]
        lines.append("")
    return "\n".join([*lines, _START])
