"""The page docs/commands.md: every command with its options, and every key."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gputop.actions import ACTIONS, by_screen
from gputop.cli.commands import COMMANDS, Command, by_question

if TYPE_CHECKING:
    from gputop.cli.parsing import Parser

_PAGE = """\
# Commands

`gputop help --markdown` makes this page from the table of commands, the options of each and the
table of keys.

A `RUN` is a run's name, the beginning of one, a directory, or `last`. Exit codes: 0, or that of the
command that was watched; 1 where a check fails (`diff`, `report --baseline`, `validate`, `lint`); 2
for bad usage, 3 where something is missing here, 126 and 127 as a shell has them.
"""

_COLUMNS = 100
"""Width at which usage lines are wrapped on the page."""


def markdown() -> str:
    """The page docs/commands.md."""
    parts = [_PAGE]
    for question, commands in by_question():
        parts.append(f"## {question}\n\n| command | what it does |\n|---|---|")
        parts += [
            f"| [`gputop {command.name}`](#gputop-{command.name}) | {command.summary} |"
            for command in commands
        ]
        parts.append("")
    for command in COMMANDS:
        parts += _section(command)
    return "\n".join([*parts, *_elsewhere(), *_keys()])


def _elsewhere() -> list[str]:
    """Who else can ask what a command answers."""
    parts = [
        "## The same elsewhere\n",
        "What coding agents call over MCP, the key of the live screen, and the call from Python.\n",
        "| command | agents | key | Python |\n|---|---|---|---|",
    ]
    keys = {action.command: f"`{action.shown}`" for action in ACTIONS}
    for command in COMMANDS:
        tools = ", ".join(f"`{tool.name}`" for tool in command.tools)
        key = keys.get(command.name, "")
        call = f"`gputop.{command.name}()`" if command.python else ""
        if tools or key or call:
            parts.append(f"| `gputop {command.name}` | {tools} | {key} | {call} |")
    return [*parts, ""]


def _section(command: Command) -> list[str]:
    parts = [f"## gputop {command.name}\n"]
    for parser in command.options():
        parts.append(f"{_plain(parser.description)}\n\n```\n{_usage(parser)}\n```\n")
        options = [action for action in parser._actions if _shown(action)]
        if options:
            parts.append("| option | meaning |\n|---|---|")
            parts += [f"| {_names(action)} | {_meaning(parser, action)} |" for action in options]
            parts.append("")
    return parts


def _keys() -> list[str]:
    parts = ["## Keys\n"]
    parts.append(
        "The keys of each screen; `?` shows those that work where you are, `ctrl+p` "
        "finds one by name."
    )
    for title, actions in by_screen():
        parts.append(f"\n### {title}\n\n| key | action | what it does |\n|---|---|---|")
        parts += [
            f"| `{action.shown}` | {action.label} | {_cell(action.description)} |"
            for action in actions
        ]
    return [*parts, ""]


def _usage(parser: Parser) -> str:
    if parser.usage:
        return _plain(parser.usage)
    formatter = argparse.HelpFormatter(parser.prog, width=_COLUMNS)
    formatter.add_usage(None, parser._actions, parser._mutually_exclusive_groups, prefix="")
    return formatter.format_help().strip()


def _shown(action: argparse.Action) -> bool:
    return not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS


def _names(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else _value(action)
    return "`" + _cell(" ".join(filter(None, (", ".join(action.option_strings), value)))) + "`"


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper().replace("_", "-")


def _meaning(parser: Parser, action: argparse.Action) -> str:
    if action.help:
        text = (action.help or "") % {**vars(action), "prog": parser.prog}
    else:
        text = ""
    return _cell(text)


def _plain(text: str | None) -> str:
    return (text or "").replace("%%", "%")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
