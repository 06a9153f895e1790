"""Event profiles in one packaged archive: an index, and a small JSON document for each.

``{"terms": [[numerator, denominator, [dimension, ...]], ...], "strings": [...], "storages": [...], "events": [...],
"marks": [...], "layers": n}``: ``storages`` has the columns of an event log, with indices into ``terms`` for sizes; an
event 0 allocates the next storage, ``k`` frees the one made ``k`` allocations ago. The rest is as in an event log.
"""

from __future__ import annotations

import json
from functools import cache
from io import BytesIO
from typing import Any, NamedTuple
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import numpy as np

from gputop_analysis import data
from gputop_analysis.vram.eventlog import EventLog, parse
from gputop_analysis.vram.profiles.recognise import Term

ARCHIVE = "vram_profiles.zip"
INDEX = "index.json"
_LONG_AGO = (1980, 1, 1, 0, 0, 0)
"""The time of every member, so that equal profiles make equal archives."""


class Profile(NamedTuple):
    """The events of a step whose sizes are products of dimensions."""

    terms: tuple[Term, ...]
    log: EventLog
    """``bytes`` holds indices into ``terms``."""


@cache
def index() -> dict[str, Any]:
    """``profiles``: members by the name of the variant; ``versions``: of what they were made with."""
    archive = _archive()
    return json.loads(archive.read(INDEX)) if archive is not None else {"profiles": {}, "versions": {}}


@cache
def load(variant: str) -> Profile | None:
    """The profile of that name; None where there is none."""
    archive, member = _archive(), index()["profiles"].get(variant)
    return decode(json.loads(archive.read(member))) if archive is not None and member else None


def encode(terms: list[Term], document: dict[str, Any]) -> dict[str, Any]:
    """A profile out of an event log's document whose storages have indices of ``terms`` for sizes."""
    made, events = 0, []
    for event in document["events"]:
        made += event > 0
        events.append(0 if event > 0 else made + event + 1)
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
    steps = np.asarray(document["events"], dtype=np.int32)
    made = np.cumsum(steps == 0)
    events = np.where(steps == 0, made, steps - made - 1)
    log = parse(
        {
            "format": 1,
            "storages": list(zip(*document["storages"], strict=True)),
            "events": events,
            "marks": document["marks"],
            "strings": document["strings"],
            "meta": {"layers": document["layers"]},
        }
    )
    terms = tuple(Term(number, below, tuple(factors)) for number, below, factors in document["terms"])
    return Profile(terms, log)


def pack(profiles: dict[str, dict[str, Any]], versions: dict[str, str]) -> bytes:
    """The archive of encoded profiles; equal ones share a member."""
    members: dict[str, str] = {}
    names: dict[str, str] = {}
    for variant, document in sorted(profiles.items()):
        text = json.dumps(document, separators=(",", ":"))
        names[variant] = members.setdefault(text, f"{len(members)}.json")
    buffer = BytesIO()
    with ZipFile(buffer, "w") as archive:
        about = json.dumps({"versions": versions, "profiles": names}, separators=(",", ":"))
        for name, text in ((INDEX, about), *((name, text) for text, name in members.items())):
            archive.writestr(ZipInfo(name, _LONG_AGO), text, ZIP_DEFLATED, 9)
    return buffer.getvalue()


@cache
def _archive() -> ZipFile | None:
    packaged = data.read(ARCHIVE)
    return ZipFile(BytesIO(packaged)) if packaged else None
