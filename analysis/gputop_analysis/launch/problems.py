"""What is wrong with a configuration: the rule in words, and where."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class Problem(NamedTuple):
    """One broken rule. An ``error`` stops or spoils the training, a ``warning`` costs something."""

    severity: str
    where: str
    """The key or flag."""
    text: str


def error(where: str, text: str) -> Problem:
    return Problem("error", where, text)


def warning(where: str, text: str) -> Problem:
    return Problem("warning", where, text)


def unknown_keys(found: Iterable[str], known: Iterable[str]) -> list[Problem]:
    """A warning for each key that is not known, with the nearest one."""
    import difflib

    known = list(known)
    problems = []
    for key in found:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            problem = "not a known key" + (f": did you mean {near[0]}?" if near else "")
            problems.append(warning(key, problem))
    return problems


def whole(value: Any) -> int | None:
    """A count as a file spells it; None for ``auto``, for nothing, for no whole number."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return int(str(value))
    except ValueError:
        return None
