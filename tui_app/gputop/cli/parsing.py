"""argparse with gputop's manners: one line for an error, and the user's command never touched."""

from __future__ import annotations

import argparse
import re
import sys
from typing import NoReturn

from gputop.cli.errors import CliError

_NUMBERS = {"int": "no whole number", "float": "no number"}
_NO_NUMBER = re.compile(r"invalid (int|float) value: (.*)")


class Parser(argparse.ArgumentParser):
    """Raises ``CliError`` in place of printing the usage and exiting."""

    def __init__(self, command: str, description: str, usage: str | None = None, epilog: str = ""):
        """
        Args:
            command: its name.
            description: one sentence.
            usage: in words, without argparse's placeholders; None for argparse's own.
            epilog: what stands below the options.
        """
        super().__init__(
            prog=f"gputop {command}",
            description=description.replace("%", "%%"),
            usage=usage and usage.replace("%", "%%"),
            epilog=epilog.replace("%", "%%"),
            allow_abbrev=False,
        )
        self.instead: dict[str, str] = {}
        """What to say of options that this command does not have and that people give it."""
        self.elsewhere = ""
        """Where words go that are not for this command."""
        self.example = ""
        """A whole command, said where an argument that is required is missing."""

    def parse_args(self, args=None, namespace=None):  # type: ignore[override]
        """argparse's, with options in underscores, as trainers write them, read as their own."""
        words = sys.argv[1:] if args is None else list(args)
        return super().parse_args(list(map(self._dashed, words)), namespace)

    def _dashed(self, word: str) -> str:
        name, equals, value = word.partition("=")
        known = self._option_string_actions
        dashed = name.replace("_", "-")
        if name.startswith("--") and name not in known and dashed in known:
            return f"{dashed}{equals}{value}"
        return word

    def add_run(self) -> None:
        """The argument that names a run."""
        self.add_argument(
            "run", nargs="?", default="last", metavar="RUN", help="a run's name or directory"
        )

    def format_help(self) -> str:
        """argparse's text, with a usage of our own broken to the terminal's width as well."""
        if self.usage:
            self.usage = _broken(self.usage)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        message = _NO_NUMBER.sub(lambda wrong: f"{wrong[2]} is {_NUMBERS[wrong[1]]}", message)
        if self.example and message.startswith("the following arguments are required"):
            message = f"{message}, as in `{self.example}`"
        if self.elsewhere and message.startswith("unrecognized arguments"):
            hint = f"; {self.elsewhere}"
        else:
            hint = ""
        raise CliError(
            f"{message} ({self._meant(message)}`{self.prog} --help` lists the options{hint})"
        )

    def _meant(self, message: str) -> str:
        """``did you mean --micro-batch? `` for an option that is called nearly so, or has the word
        in its name.
        """
        wrong = next((word.split("=")[0] for word in message.split() if word.startswith("--")), "")
        if not message.startswith("unrecognized arguments") or not wrong:
            return ""
        if wrong in self.instead:
            return f"{self.instead[wrong]}; "
        from difflib import get_close_matches  # slow to import, and only a mistake needs it

        option_names = [name for name in self._option_string_actions if name.startswith("--")]
        near = [name for name in option_names if wrong[2:] in name[2:].split("-")]
        near = near or get_close_matches(wrong, option_names, n=1, cutoff=0.75)
        return f"did you mean {' or '.join(near[:3])}? " if near else ""


def _broken(usage: str) -> str:
    """Lines of a usage no wider than the terminal; the rest is indented below the first option."""
    import shutil
    import textwrap

    first = len("usage: ")
    width = max(40, shutil.get_terminal_size().columns)
    without_groups = re.sub(
        r"\[[^][]*\]|\([^()]*\)", lambda found: found[0].replace(" ", "\0"), f"{' ' * first}{usage}"
    )
    parts = [
        textwrap.fill(line, width, subsequent_indent=" " * (first + 4), break_on_hyphens=False)
        for line in without_groups.splitlines()
    ]
    return "\n".join(parts)[first:].replace("\0", " ")


def split_at_dashes(words: list[str]) -> tuple[list[str], list[str]]:
    """The words before the first ``--``, and those after it."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def refuse_below_one(option: str, value: int | None) -> None:
    """Refuse a number that is given and not positive.

    Raises:
        CliError: it is below 1.
    """
    if value is not None and value < 1:
        raise CliError(f"{option} must be at least 1")


def split_command(words: list[str], options_with_value: set[str]) -> tuple[list[str], list[str]]:
    """Split ``run``'s words into our options and the user's command.

    The command starts after a ``--``, or at the first word that is no option and no option's value;
    it is returned untouched, whatever it contains.
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
