"""What an exception said, as findings of ends quote it."""

from __future__ import annotations

from typing import Any

from gputop_analysis.findings.crash.last_words import childs_words
from gputop_analysis.findings.crash.surroundings import advice
from gputop_analysis.model import Input
from gputop_analysis.text import cut_end
from gputop_analysis.view import RunView

Event = dict[str, Any]

LONGEST_TITLE = 140
LONGEST_MESSAGE = 120
"""Letters of an exception's message at most."""
_OTHER_END = ("BrokenPipeError", "ConnectionResetError", "EOFError")
"""Raised where the process at the other end has gone."""


def known_advice(view: RunView, what: str, site: str | None) -> str:
    """What to do about an exception whose cause lies elsewhere; empty: at its line."""
    child = childs_words(view) if what.startswith(_OTHER_END) else None
    if child is not None:
        return f"mend {child.site}, where a process that it talks to ended before: {child.what}"
    return advice(what, site, view.record.manifest.cwd)


def inputs_of(raised: list[Event]) -> tuple[Input, ...]:
    """The first exceptions, as a proof lists them."""
    inputs = []
    for event in raised[:8]:
        source = f"exception event, t_ns {event.get('t_ns')}"
        inputs.append(Input(f"rank {event.get('rank')}", str(event.get("class")), "", source))
    return tuple(inputs)


def said(raised: Event) -> str:
    """``KeyError: 'loss'``."""
    class_name = raised.get("class", "exception")
    message = _what(str(raised.get("message") or "")).removeprefix(f"{class_name}: ")
    return f"{class_name}: {cut_end(message, LONGEST_MESSAGE)}" if message else str(class_name)


def _what(message: str) -> str:
    """An exception's telling line: the last one where a worker's traceback is quoted."""
    lines = message.strip().splitlines()
    if lines:
        return lines[-1] if lines[0].startswith("Caught ") else lines[0]
    return ""
