"""Event profiles in one packaged archive: an index, and a small JSON document for each.

The archive begins with eight digits, the length of the index. The index and each document are
compressed by zlib; the index tells where a document lies after it. A ZIP file would do, but its
module takes longer to load than a profile.

``{"terms": [[numerator, denominator, [dimension, ...]], ...], "strings": [...], "storages": [...],
"events": [...], "marks": [...], "layers": n}``: ``storages`` has the columns of an event log, with
indices into ``terms`` for sizes; an event 0 allocates the next storage, ``k`` frees the one made
``k`` allocations ago. The rest is as in an event log.
"""

from __future__ import annotations

import json
import zlib
from functools import cache
from typing import Any, NamedTuple

from gputop_analysis import data
from gputop_analysis.vram.eventlog import DUMMY, EventLog
from gputop_analysis.vram.profiles.term import Term

ARCHIVE = "vram_profiles.bin"
_LENGTH = 8
"""Digits of the length of the index."""


class Profile(NamedTuple):
    """The events of a step whose sizes are products of dimensions."""

    terms: tuple[Term, ...]
    log: EventLog
    """``bytes`` holds indices into ``terms``."""


@cache
def index() -> dict[str, Any]:
    """``profiles``: [start, end] by name, from the first document; ``versions``: made with."""
    archive = _archive()
    if not archive:
        return {"profiles": {}, "versions": {}}
    return json.loads(zlib.decompress(archive[_LENGTH : _start(archive)]))


@cache
def load(variant: str) -> Profile | None:
    """The profile of that name; None where there is none."""
    if variant in index()["profiles"]:
        return decode(json.loads(text(variant)))
    return None


def text(variant: str) -> str:
    """The JSON document of a profile that there is."""
    archive = _archive()
    start, end = (_start(archive) + at for at in index()["profiles"][variant])
    return zlib.decompress(archive[start:end]).decode()


def encode(terms: list[Term], document: dict[str, Any]) -> dict[str, Any]:
    """A profile of an event log's document whose storages have indices of ``terms`` as sizes."""
    storages, events = 0, []
    for event in document["events"]:
        storages += event > 0
        events.append(0 if event > 0 else storages + event + 1)
    return {
        "terms": [[term.numerator, term.denominator, list(term.factors)] for term in terms],
        "strings": document["strings"],
        "storages": [list(column) for column in zip(*document["storages"], strict=True)],
        "events": events,
        "marks": document["marks"],
        "layers": document["meta"]["layers"],
    }


def decode(document: dict[str, Any]) -> Profile:
    """The profile that ``encode`` wrote."""
    storages, events = 0, []
    for step in document["events"]:
        storages += step == 0
        events.append(step - storages - 1 if step else storages)
    columns = [[none, *column] for none, column in zip(DUMMY, document["storages"], strict=True)]
    marks = tuple((at, phase, step) for at, phase, step in document["marks"])
    strings, meta = tuple(document["strings"]), {"layers": document["layers"]}
    log = EventLog(*columns, events=events, marks=marks, strings=strings, meta=meta)
    terms = tuple(
        Term(number, below, tuple(factors)) for number, below, factors in document["terms"]
    )
    return Profile(terms, log)


def pack(profiles: dict[str, dict[str, Any]], versions: dict[str, str]) -> bytes:
    """The archive of encoded profiles; equal ones share a document."""
    places: dict[str, tuple[int, int]] = {}
    names: dict[str, tuple[int, int]] = {}
    body = b""
    for variant, document in sorted(profiles.items()):
        text = json.dumps(document, separators=(",", ":"))
        if text not in places:
            packed = zlib.compress(text.encode(), 9)
            places[text] = (len(body), len(body) + len(packed))
            body += packed
        names[variant] = places[text]
    about = zlib.compress(
        json.dumps({"versions": versions, "profiles": names}, separators=(",", ":")).encode(), 9
    )
    return f"{len(about):0{_LENGTH}}".encode() + about + body


def _start(archive: bytes) -> int:
    """Where the first document begins."""
    return _LENGTH + int(archive[:_LENGTH])


@cache
def _archive() -> bytes:
    return data.read(ARCHIVE) or b""
