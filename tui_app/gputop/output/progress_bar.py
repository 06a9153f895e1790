"""The progress bar that the command itself draws: how far its loop is, where nobody else tells.

What the loop is, one pass or the whole run, a bar does not say: it is shown as what it is, never
taken for the run's number of steps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from gputop.output.ansi import resolve_text

LOOKED_AT = 5
"""Lines from the end; below a bar only blank ones may stand."""
LONGEST = 2000
"""Characters at a line's end that are looked at: a bar drawn over and over makes a line long."""
_TQDM = re.compile(r"\d{1,3}%\|[^|]*\| *(\d+)/(\d+) \[\d+(?::\d\d)+<(\d+(?::\d\d)+),[^\]]*\]\s*$")


class ProgressBar(NamedTuple):
    """A bar of tqdm that still moves."""

    done: int
    total: int
    left: str
    """Time that it expects to take, as it writes it: ``0:42``."""


def newest_bar(lines: Sequence[str]) -> ProgressBar | None:
    """The bar in the last line that is not blank; None without one, or where it is full."""
    last = next((raw for raw in reversed(lines[-LOOKED_AT:]) if raw.strip()), "")
    drawn = [part for part in last[-LONGEST:].split("\r") if part.strip()]
    for part in reversed(drawn[-2:]):  # the newest may not be written to its end yet
        match = _TQDM.search(resolve_text(part))
        if match is not None:
            return _moving(match)
    return None


def _moving(match: re.Match[str]) -> ProgressBar | None:
    done, total = int(match[1]), int(match[2])
    return ProgressBar(done, total, match[3].removeprefix("0")) if done < total else None
