"""The tracer as a process in the user's interpreter: how it is started, followed and ended."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gputop_tracer.progress import PREFIX

Progress = Callable[[str], object]
"""Told each line of what happens; a ``Watch`` can end it, too."""
FAILS = f"{PREFIX}error: "
_LAST_LINES = 200


@contextmanager
def tracer(
    arguments: Sequence[str],
    python: str | None,
    env: Mapping[str, str],
    *,
    stdin: int | None = None,
    stdout: int = subprocess.DEVNULL,
) -> Iterator[subprocess.Popen[str]]:
    """A process of the tracer, which ends with the context.

    Args:
        arguments: of its command.
        python: the interpreter; None: this one.
        env: its variables.
        stdin, stdout: as ``subprocess`` has them.

    Raises:
        ValueError: the interpreter cannot be started.
    """
    interpreter = python or sys.executable
    try:
        process = subprocess.Popen(
            [interpreter, str(_entry()), *arguments],
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
    except OSError as error:
        raise ValueError(
            f"cannot start {interpreter}: {error.strerror}; name an interpreter with --python"
        ) from None
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _entry() -> Path:
    """The file that starts a trace, by its path: the user's environment needs no gputop."""
    import gputop_tracer

    return Path(gputop_tracer.__file__).parent / "__main__.py"


def follow(
    process: subprocess.Popen[str], progress: Progress | None, *, errors: bool = False
) -> list[str]:
    """The last lines that a tracer prints on stderr until it ends.

    Args:
        process: of ``tracer``.
        progress: told each line of what happens; None: they go to our stderr.
        errors: it is told of errors, too.
    """
    assert process.stderr is not None
    tell = progress or _say
    last_lines: deque[str] = deque(maxlen=_LAST_LINES)
    for line in process.stderr:
        last_lines.append(line.rstrip())
        if line.startswith(PREFIX) and (errors or not line.startswith(FAILS)):
            tell(line[len(PREFIX) :].rstrip())
    return list(last_lines)


def _say(line: str) -> None:
    print(f"gputop: {line}", file=sys.stderr)


def last_line(lines: Sequence[str]) -> str:
    """The last line that is not blank; empty without one."""
    return next((line for line in reversed(lines) if line.strip()), "")
