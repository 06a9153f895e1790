"""Words of a command as a shell takes them: variables stay, all else is quoted if it must be."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

_VARIABLE = re.compile(r"\$\{?[A-Z_]+\}?(:\d+)?")


def quote(word: str) -> str:
    """One word. A word that is a variable, or a variable and a port, is put into double quotes."""
    return f'"{word}"' if _VARIABLE.fullmatch(word) else shlex.quote(word)


def quoted(words: Sequence[str]) -> str:
    """All words on one line."""
    return " ".join(quote(word) for word in words)


def folded(words: Sequence[str], indent: str = "  ", width: int = 100) -> str:
    """The same on lines of at most ``width`` columns (where a word is no longer) that end in a
    backslash; a flag stays beside its value.
    """
    lines, line = [], ""
    for pair in _pairs(words):
        joined = f"{line} {pair}".strip()
        if line and len(joined) + len(indent) + 2 > width:
            lines.append(line)
            joined = pair
        line = joined
    return f" \\\n{indent}".join([*lines, line])


def _pairs(words: Sequence[str]) -> Iterator[str]:
    """Flags with the word behind them, other words alone."""
    flag = ""
    for word in map(quote, words):
        if word.startswith("-"):
            yield from [flag] if flag else []
            flag = word
        else:
            yield f"{flag} {word}".strip()
            flag = ""
    yield from [flag] if flag else []
