"""``gputop man``: the manual page, made from the table of commands and the table of settings."""

from __future__ import annotations

import argparse
import subprocess
import sys

from gputop import __version__
from gputop.cli.commands import Command, by_question
from gputop.cli.parsing import Parser
from gputop.settings import SETTINGS

_HEAD = """\
.TH GPUTOP 1 "" "gputop {version}" "User Commands"
.SH NAME
gputop \\- htop for PyTorch training
.SH SYNOPSIS
.B gputop run
.RI [ options "] [\\-\\-] " command " [" arguments ...]
.br
.B gputop
.I command
.RI [ options ]
.SH DESCRIPTION
.B gputop run
starts a training command unchanged and shows every step of every rank: where the time and the
memory go, which rank is slow, what is wrong, and what the fix would win back. The other commands
answer questions before and after a run. A
.I RUN
is a run's name, the beginning of one, a directory,
.B last
or
.BR last~1 .
"""


def execute(words: list[str]) -> int:
    """Print the page; on a terminal through man(1) where there is one."""
    options = parser().parse_args(words)
    text = page()
    if sys.stdout.isatty() and not options.raw:
        try:
            return subprocess.run(["man", "-l", "-"], input=text.encode(), check=False).returncode
        except OSError:
            pass
    print(text, end="")
    return 0


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "man",
        "Show the manual page; into a pipe or a file goes its source.",
        epilog="gputop man > ~/.local/share/man/man1/gputop.1 installs it for man(1).",
    )
    parser.add_argument("--raw", action="store_true", help="the source of the page in any case")
    return parser


def page() -> str:
    """The page's source for man(1)."""
    parts = [_HEAD.format(version=__version__)]
    for question, commands in by_question():
        parts.append(f".SH {_text(question.upper())}\n")
        parts += [_command(command) for command in commands]
    parts.append(".SH FILES\n.TP\n.I $XDG_CONFIG_HOME/gputop/config.toml\nSettings:\n.RS\n")
    for setting in SETTINGS:
        meaning = _text(setting.meaning.replace("`", ""))
        parts.append(f".TP\n.B {_text(setting.key)}\n{meaning}\n")
    parts.append(
        ".RE\n.TP\n.I $XDG_STATE_HOME/gputop/runs\nThe records of runs.\n"
        ".SH ENVIRONMENT\nEach setting has a variable, as\n.B GPUTOP_THEME\nof\n.BR theme .\n"
        ".B NO_COLOR\nturns colour off.\n"
        ".SH EXIT STATUS\nThat of the command that was watched; 1 where a check fails, 2 for bad "
        "usage, 3 where something is missing here, 126 and 127 as a shell has them.\n"
    )
    return "".join(parts)


def _command(command: Command) -> str:
    parts = [f".SS gputop {_text(command.name)}\n"]
    for parser in command.options():
        parts.append(f"{_text(parser.description)}\n")
        for action in parser._actions:
            if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
                continue
            parts.append(f".TP\n.B {_text(_name(action))}\n{_text(_meaning(parser, action))}\n")
    return "".join(parts)


def _name(action: argparse.Action) -> str:
    if action.nargs == 0:
        value = ""
    else:
        value = str(action.metavar or action.dest.upper())
    return " ".join(filter(None, (", ".join(action.option_strings), value)))


def _meaning(parser: Parser, action: argparse.Action) -> str:
    return (action.help or "") % {**vars(action), "prog": parser.prog}


def _text(text: str | None) -> str:
    """Text that troff takes as it is."""
    plain = " ".join((text or "").replace("%%", "%").split())
    plain = plain.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + plain if plain.startswith((".", "'")) else plain
