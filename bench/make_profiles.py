"""Makes the event profiles that estimates without torch are answered from, out of traces of the
real modules.

    python bench/make_profiles.py [FAMILY ...] [--work DIR] [--limit-s S]

Needs torch, transformers and peft; allocates nothing on a GPU and trains nothing. Each variant is
traced with two or three sets of dimensions, each storage's size is recognised as a product of
dimensions, and a variant where one is not, or whose traces differ in more than sizes, is left out
and reported. What was made lies in ``--work``, one file a variant, so that it can go on later; the
archive is packed from all that lies there. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import traceback
import warnings
from dataclasses import asdict
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from profile_plan import STRUCTURES, TRACES, setup, trainings
from profile_terms import Terms, UnclearError

from gputop_analysis.vram.profiles.dims import dims
from gputop_analysis.vram.profiles.stacks import STACKS, deepened
from gputop_analysis.vram.profiles.store import ARCHIVE, decode, encode, index, pack, text
from gputop_analysis.vram.profiles.term import Term
from gputop_analysis.vram.profiles.variant import variant

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "analysis" / "gputop_analysis" / "data" / ARCHIVE
SCALAR = 512
"""Bytes; smaller storages take one block of the allocator and are left out."""
NO_LAYER = -1
FEWEST = 2
"""Traces of a variant; a third is made where two cannot tell all products apart."""
SMALL = 65_536
"""A storage below this that is no product of dimensions is kept at the size it has in the first
trace.
"""


def main() -> int:
    """Trace what is missing, pack what there is."""
    arguments = parser().parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.add:
        unpack(arguments.work)
    began, made, failed = time.monotonic(), 0, {}
    for name, setups in wanted(arguments.families):
        target = arguments.work / (name.replace("/", "__") + ".json")
        if target.exists() or time.monotonic() - began > arguments.limit_s:
            continue
        try:
            target.write_text(json.dumps(profile(setups)))
            made += 1
        except Exception as error:
            failed[name] = (
                f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
            )
            if arguments.verbose:
                traceback.print_exc()
        print(
            f"{name} {'failed: ' + failed[name] if name in failed else 'made'}",
            file=sys.stderr,
            flush=True,
        )
    documents = {
        path.stem.replace("__", "/"): json.loads(path.read_text())
        for path in arguments.work.glob("*.json")
    }
    for name in [name for name, document in documents.items() if not repeatable(name, document)]:
        failed[name] = "its middle layers are unlike"
        del documents[name]
    arguments.out.write_bytes(pack(documents, versions()))
    size = arguments.out.stat().st_size
    print(
        json.dumps(
            {"made": made, "packed": len(documents), "failed": failed, "archive_bytes": size}
        )
    )
    return 0


def unpack(work: Path) -> None:
    """Put what the packaged archive holds into ``work``, if it was made with the versions that are
    here.
    """
    if index()["versions"] != versions():
        raise SystemExit(
            f"the archive was made with {index()['versions']}: make all profiles anew, without "
            "--add"
        )
    for name in index()["profiles"]:
        target = work / (name.replace("/", "__") + ".json")
        if not target.exists():
            target.write_text(text(name))


def repeatable(name: str, document: dict[str, Any]) -> bool:
    """Whether any number of layers can be made of the profile's four, of each stack."""
    family = name.partition("/")[0]
    try:
        deepened(decode(document).log, family, (7, 9) if family in STACKS else (7,))
    except ValueError:
        return False
    return True


def wanted(families: list[str]) -> list[tuple[str, list[Any]]]:
    """(variant, its setups, one for each trace) of the families asked for, what is worth most
    first.
    """
    found: dict[str, tuple[int, list[Any]]] = {}
    for family in families or STRUCTURES:
        for structure in STRUCTURES[family]:
            for way in trainings(family, structure):
                setups = [setup(family, structure, way.fields, at) for at in TRACES]
                name = variant(setups[0])
                assert name is not None, (family, structure, way)
                found.setdefault(name, (way.rank, setups))
    return [
        (name, setups) for name, (_, setups) in sorted(found.items(), key=lambda item: item[1][0])
    ]


def profile(setups: list[Any]) -> dict[str, Any]:
    """The encoded profile of one variant, from as few traces as tell all products apart.

    Raises:
        ValueError: the traces are not alike, or a large storage is no product of dimensions.
    """
    documents = [traced(each) for each in setups[:FEWEST]]
    while True:
        try:
            return recognised(alike(documents), [dims(each) for each in setups])
        except UnclearError:
            if len(documents) == len(setups):
                raise
            documents.append(traced(setups[len(documents)]))


def alike(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The documents, which must differ in sizes only; frees that follow each other may come in any
    order.

    Raises:
        ValueError: they differ in more.
    """
    if len({len(document["storages"]) for document in documents}) > 1:
        raise ValueError("the traces differ in how many storages they make")
    largest = [
        max(row[0] for row in rows)
        for rows in zip(*(each["storages"] for each in documents), strict=True)
    ]
    documents = [without(document, [size <= SCALAR for size in largest]) for document in documents]
    if any(document["events"] != documents[0]["events"] for document in documents):
        documents = [{**document, "events": in_order(document)} for document in documents]
    for other in documents[1:]:
        for key in ("strings", "events", "marks"):
            if other[key] != documents[0][key]:
                raise ValueError(f"the traces differ in their {key}")
        if [row[1:] for row in other["storages"]] != [row[1:] for row in documents[0]["storages"]]:
            raise ValueError("the traces differ in what storages are for")
    return documents


def in_order(document: dict[str, Any]) -> list[int]:
    """With each run of frees of a pass sorted: autocast drops its casts in the order of their
    addresses.
    """
    events, marks = list(document["events"]), document["marks"]
    ends = [at for at, _, _ in marks[1:]] + [len(events)]
    for (start, phase, _), end in zip(marks, ends, strict=True):
        if phase in ("forward", "loss", "backward"):
            runs = groupby(events[start:end], key=lambda event: event > 0)
            events[start:end] = [
                event for allocates, run in runs for event in (run if allocates else sorted(run))
            ]
    return events


def recognised(documents: list[dict[str, Any]], sizes: list[dict[str, int]]) -> dict[str, Any]:
    """The encoded profile of alike documents."""
    terms = terms_of(tuple(tuple(each.items()) for each in sizes[: len(documents)]))
    found: dict[Term, int] = {}
    for rows in zip(*(document["storages"] for document in documents), strict=True):
        term = product(terms, [row[0] for row in rows], rows[0], documents[0]["strings"])
        rows[0][0] = found.setdefault(term, len(found))
    return encode(list(found), documents[0])


def without(document: dict[str, Any], dropped: list[bool]) -> dict[str, Any]:
    """Without some storages: those of one block each are a tenth of all events and no thousandth of
    the memory.
    """
    kept = [not each for each in dropped]
    number = [0]
    for each in kept:
        number.append(number[-1] + each)
    places = [0]
    for event in document["events"]:
        places.append(places[-1] + kept[abs(event) - 1])
    events = [
        number[abs(event)] * (1 if event > 0 else -1)
        for event in document["events"]
        if kept[abs(event) - 1]
    ]
    storages = [list(row) for row, each in zip(document["storages"], kept, strict=True) if each]
    marks = [[places[at], phase, step] for at, phase, step in document["marks"]]
    return {**document, "storages": storages, "events": events, "marks": marks}


@cache
def terms_of(sizes: tuple[tuple[tuple[str, int], ...], ...]) -> Terms:
    """The products of these dimensions, the same for many variants."""
    return Terms([dict(each) for each in sizes])


def product(terms: Terms, sizes: list[int], row: list[int], strings: list[str]) -> Term:
    """The product that a storage is."""
    term = terms.of(sizes)
    if term is None and max(sizes) < SMALL:
        return Term(sizes[0], 1, ())
    if term is None:
        place = ": ".join(strings[index] for index in row[2:5])
        raise ValueError(f"no product of dimensions gives {sizes} bytes ({place}, layer {row[5]})")
    return term


def traced(asked: Any) -> dict[str, Any]:
    """The event log's document of one step of a setup."""
    from gputop_tracer import model_trace

    tracker = model_trace.trace(asdict(asked), full=True, steps=1)
    found = tracker.log.document(tracker.meta)
    if (
        asked.model.family in STACKS
    ):  # the larger of its stacks has the layers, which depends on the sizes
        found["storages"] = [[*row[:-1], NO_LAYER] for row in found["storages"]]
    return found


def versions() -> dict[str, str]:
    """Of what the memory of a step depends on."""
    import peft
    import torch
    import transformers

    found = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": peft.__version__,
    }
    return {
        "python": platform.python_version(),
        **{name: str(version) for name, version in found.items()},
    }


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument(
        "families", nargs="*", metavar="FAMILY", help=f"of {', '.join(STRUCTURES)}; all by default"
    )
    result.add_argument(
        "--work", type=Path, default=Path("profiles_work"), help="where what was made lies"
    )
    result.add_argument(
        "--limit-s", type=float, default=float("inf"), help="begin no further variant after so long"
    )
    result.add_argument(
        "--out", type=Path, default=TARGET, help="the archive; the packaged one by default"
    )
    result.add_argument(
        "--add", action="store_true", help="add to the packaged archive what it has not"
    )
    result.add_argument("--verbose", action="store_true", help="tracebacks of what failed")
    return result


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
