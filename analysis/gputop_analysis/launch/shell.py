"""Words of a command as a shell takes them: variables stay variables, everything else is quoted where it must be."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

_VARIABLE = re.compile(r"\$\{?[A-Z_]+\}?(:\d+)?")


def quote(word: str) -> str:
    """One word. A word that is a variable, or a variable and a port, is put into double quotes."""
    return f'"{word}"' if _VARIABLE.fullmatch(word) else shlex.quote(word)


def quoted(words: Sequence[str]) -> str:
    """All words on one line."""
    return " ".join(quote(word) for word in words)


def folded(words: Sequence[str], indent: str = "  ", width: int = 100) -> str:
    """The same on several lines that end in a backslash; a flag stays beside its value."""
    lines, line = [], ""
    for word in map(quote, words):
        joined = f"{line} {word}".strip()
        if len(joined) > width and word.startswith("-"):
            lines.append(line)
            joined = word
        line = joined
    return f" \\\n{indent}".join([*lines, line])
