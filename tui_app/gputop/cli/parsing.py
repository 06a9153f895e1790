"""argparse with gputop's manners: one line for an error, and the user's command never touched."""

from __future__ import annotations

import argparse
from typing import NoReturn

from gputop.cli.errors import CliError


class Parser(argparse.ArgumentParser):
    """Raises ``CliError`` in place of printing the usage and exiting."""

    def __init__(self, command: str, description: str, usage: str | None = None):
        super().__init__(prog=f"gputop {command}", description=description, usage=usage, allow_abbrev=False)

    def add_run(self) -> None:
        """The argument that names a run."""
        self.add_argument("run", nargs="?", default="last", metavar="RUN", help="a run's name or directory")

    def error(self, message: str) -> NoReturn:
        raise CliError(f"{message} (`{self.prog} --help` lists the options)")


def split_command(words: list[str], options_with_value: set[str]) -> tuple[list[str], list[str]]:
    """Split ``run``'s words into our options and the user's command.

    The command starts after a ``--``, or at the first word that is no option and no option's value; it is returned
    untouched, whatever it contains.
    """
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            return words[:index], words[index + 1 :]
        if not word.startswith("-"):
            return words[:index], words[index:]
        index += 2 if word in options_with_value else 1
    return words, []
