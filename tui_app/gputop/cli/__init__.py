"""The command line. Each command is a module that is imported only when it is called.

argparse and not click: `gputop run` must start the training before anything else, and importing
click takes 40 ms.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from gputop.cli.commands import COMMANDS, find
from gputop.cli.errors import USAGE, CliError, OutputError, silence_stdout
from gputop.cli.notices import notice
from gputop.cli.streams import plain_streams
from gputop_probes.descriptors import fill_closed


def main(argv: Sequence[str] | None = None) -> int:
    """Run one gputop command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    fill_closed()
    with plain_streams():
        try:
            try:
                return _dispatch(words)
            finally:
                _hand_over()
        except CliError as error:
            if isinstance(error, OutputError):
                silence_stdout()
            notice(str(error))
            return error.exit_code
        except KeyboardInterrupt:
            return 130
        except BrokenPipeError:
            silence_stdout()
            return 0
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            notice(f"{error.strerror}: {str(error.filename)[:60]}...")
            return USAGE


def _hand_over() -> None:
    """What was printed is written now, while it can be told that it cannot.

    Raises:
        OutputError: the disk is full, say.
        BrokenPipeError: nobody reads it.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        silence_stdout()  # the terminal is gone, and nobody to tell


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["--no-config"]:
        os.environ["GPUTOP_NO_CONFIG"] = "1"
        words = words[1:]
    if words == ["help", "--markdown"]:
        from gputop.cli.commands_page import markdown

        print(markdown(), end="")
        return 0
    if words[:1] == ["help"] and len(words) > 1:
        words = [words[1], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        from gputop.cli.overview import help_text

        print(help_text())
        return 0 if words else 2
    if words[0] in ("-V", "--version", "version"):
        from gputop import __version__

        print(f"gputop {__version__}")
        return 0
    command = find(words[0])
    if command is None:
        raise CliError(_unknown(words[0]))
    return command.load()(words[1:])


ELSEWHERE_CALLED = {
    "explain": "findings",
    "list": "runs",
    "ls": "runs",
    "show": "open",
    "view": "open",
    "compare": "diff",
    "summary": "report",
    "stats": "status",
    "watch": "attach",
    "monitor": "attach",
    "gpus": "catalog",
    "vram": "estimate",
}
"""Words that people type, by the command that does it."""


def _unknown(word: str) -> str:
    import difflib
    import shutil

    near = difflib.get_close_matches(word, [c.name for c in COMMANDS], n=1)
    near = [ELSEWHERE_CALLED[word]] if word in ELSEWHERE_CALLED else near
    if near:
        return f"no command {word!r}: did you mean `gputop {near[0]}`?"
    if word.endswith(".py"):
        return f"no command {word!r}: to watch a training, say `gputop run python {word}`"
    if shutil.which(word) or os.path.exists(word):
        return f"no command {word!r}: to watch a training, say `gputop run {word} ...`"
    return f"no command {word!r}: `gputop --help` lists them"
