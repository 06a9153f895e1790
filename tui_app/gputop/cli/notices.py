"""What gputop itself has to say beside a command's answer: lines on stderr."""

from __future__ import annotations

import sys


def notice(text: str) -> None:
    """One line on stderr, marked as gputop's."""
    print(f"gputop: {text}", file=sys.stderr, flush=True)


def notice_goes_on(run: str) -> None:
    """The screen was left, the training was not ended; ``run`` is how a shell names it."""
    notice(f"the training goes on; watch it again with: gputop attach {run}")


def notice_runs_code(factory: str) -> None:
    """A model is made by ``module:callable``."""
    module = factory.rpartition(":")[0]
    notice(f"importing {module} to build its model: this runs its code")
