"""``train.py:9`` as a link of the terminal (OSC 8), where the file is on this machine."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

_PLACE = re.compile(r"(?<![\w./-])(/?(?:[\w.@+-]+/)*[\w.@+-]+\.py):(\d+)\b")
_EDITORS = ("vscode", "cursor")


class Link(NamedTuple):
    """A part of a text and what it opens."""

    begin: int
    end: int
    url: str


class Links(NamedTuple):
    """Finds places in texts."""

    folder: str
    """What relative paths start from: where the command ran."""
    kind: str
    """The setting ``terminal.links``."""

    def of(self, text: str) -> Iterator[Link]:
        """The places in a text, from the left."""
        if ".py:" not in text or self.kind == "off":
            return
        for match in _PLACE.finditer(text):
            path = os.path.join(self.folder, match[1])
            if os.path.isabs(path) and _exists(path):
                yield Link(match.start(), match.end(), url(path, match[2], self.kind))

    def marked(self, text: str) -> str:
        """The text with its links, for a terminal."""
        parts, done = [], 0
        for link in self.of(text):
            linked = text[link.begin : link.end]
            parts += [text[done : link.begin], f"\x1b]8;;{link.url}\x1b\\{linked}\x1b]8;;\x1b\\"]
            done = link.end
        return "".join([*parts, text[done:]])


@lru_cache(maxsize=1024)
def _exists(path: str) -> bool:
    return os.path.isfile(path)


def url(path: str, line: str, kind: str) -> str:
    """What the terminal opens. A ``file`` address has the line for kitty alone: others take the
    fragment for a part of the name, or refuse it.
    """
    plain = quote(os.path.normpath(path))
    if kind in _EDITORS:
        return f"{kind}://file{plain}:{line}"
    fragment = f"#{line}" if os.environ.get("TERM") == "xterm-kitty" else ""
    return f"file://{socket.gethostname()}{plain}{fragment}"


def links_of(folder: str, kind: str) -> Links | None:
    """Links for this process's terminal; None where it takes none."""
    if kind == "off" or os.environ.get("TERM", "dumb") in ("dumb", "linux", ""):
        return None
    return Links(folder, kind)
