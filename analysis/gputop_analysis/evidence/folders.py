"""Which files of a folder may be recordings of one job."""

from __future__ import annotations

import os
import re
from itertools import islice
from pathlib import Path

from gputop_probes.record.files import is_regular
from gputop_probes.record.layout import MANIFEST_FILE

_NAMES = (".json", ".json.gz", ".pickle", ".pickle.gz", ".csv", ".csv.gz", ".log", ".jsonl", ".pkl")
_RUN_PARTS = (MANIFEST_FILE, "hosts", "steps")
_DEPTH = 3
"""Folders below, as in ``iteration_10/rank_3/trace.json``."""
_ENTRIES_AT_MOST = 20_000
_FILES_AT_MOST = 4096
_DIGITS = re.compile(r"(\d+)")


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run of gputop."""
    return any((folder / part).exists() for part in _RUN_PARTS)


def files_in(folder: Path) -> list[Path]:
    """Files whose name may be that of a recording; the numbers in names count as numbers."""
    files = [file for file in folder.iterdir() if file.name.endswith(_NAMES) and is_regular(file)]
    return sorted(files, key=_by_number)[:_FILES_AT_MOST]


def plain_files_in(folder: Path) -> list[Path]:
    """Files without an ending, as torch's flight recorder writes: ``nccl_trace_rank_0``."""
    files = [file for file in folder.iterdir() if "." not in file.name and is_regular(file)]
    return sorted(files, key=_by_number)[:_FILES_AT_MOST]


def files_below(folder: Path) -> list[Path]:
    """Those in its folders, where it has none of its own; what lies in a run is left out."""
    files: list[Path] = []
    top = len(folder.parts)
    entries = 0
    for path, folders, names in islice(os.walk(folder), _ENTRIES_AT_MOST):
        here = Path(path)
        entries += len(folders) + len(names)
        if entries > _ENTRIES_AT_MOST:
            break
        if len(here.parts) - top >= _DEPTH or is_run(here):
            folders.clear()
        if here != folder and not is_run(here):
            files += [here / name for name in names if name.endswith(_NAMES)]
    return sorted(filter(is_regular, files), key=_by_number)[:_FILES_AT_MOST]


def _by_number(path: Path) -> list[tuple[int, str]]:
    """``trace_2`` before ``trace_10``."""
    parts = _DIGITS.split(str(path))
    return [(int(part[:18]), "") if part.isdecimal() else (-1, part) for part in parts]
