"""Reads the matrix that `nvidia-smi topo -m` prints, of drivers from 2017 on."""

from __future__ import annotations

import re

from gputop_analysis.topology.model import Topology, code

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RANGES = re.compile(r"^\d+(-\d+)?(,\d+(-\d+)?)*$")
_LEGEND = re.compile(r"^\s*(NIC\d+):\s*(\S+)\s*$")
_AFFINITY = ("CPU", "NUMA")
"""The words that the columns behind the matrix begin with."""


def parse(text: str, source: str = "nvidia-smi topo -m") -> Topology:
    """The topology in a text.

    Raises:
        ValueError: there is no such matrix in it, or it is torn; the message says at which line.
    """
    lines = _COLOUR.sub("", text).splitlines()
    at, devices = _header(lines)
    rows = {}
    for name, cells in map(_split, lines[at + 1 : at + 1 + len(devices)]):
        if name:
            rows[name] = cells
    missing = [name for name in devices if name not in rows]
    if missing:
        raise ValueError(
            f"the matrix has no row for {missing[0]}: paste all of `nvidia-smi topo -m`"
        )
    links = tuple(_codes(name, rows[name], len(devices)) for name in devices)
    gpus = [name for name in devices if name.startswith("GPU")]
    legend = {}
    for line in lines:
        if match := _LEGEND.match(line):
            legend[match[1]] = match[2]
    behind = [rows[name][len(devices) :] for name in gpus]
    return Topology(
        gpus=tuple(gpus),
        nics=tuple(legend.get(name, name) for name in devices[len(gpus) :]),
        links=links,
        numa=tuple(_numa(cells) for cells in behind),
        cpus=tuple(_cpus(cells) for cells in behind),
        source=source,
    )


def _header(lines: list[str]) -> tuple[int, list[str]]:
    for at, line in enumerate(lines):
        words = line.split()
        if words[:1] == ["GPU0"] and words[1:2] != ["X"]:
            end = next((i for i, word in enumerate(words) if word in _AFFINITY), len(words))
            return at, words[:end]
    raise ValueError("no matrix of `nvidia-smi topo -m`: its first line begins with GPU0")


def _split(line: str) -> tuple[str, list[str]]:
    name, *cells = line.split() or [""]
    return name, cells


def _codes(name: str, cells: list[str], count: int) -> tuple[str, ...]:
    if len(cells) < count:
        raise ValueError(
            f"the row of {name} has {len(cells)} links, the matrix has {count} columns"
        )
    try:
        return tuple(code(cell) for cell in cells[:count])
    except ValueError as error:
        raise ValueError(f"row {name}: {error}") from None


def _cpus(cells: list[str]) -> str:
    if cells and _RANGES.match(cells[0]):
        return cells[0]
    return ""


def _numa(cells: list[str]) -> int | None:
    """The field behind the CPU affinity; a blank one has the next column's ``N/A`` in its place."""
    if len(cells) > 1 and cells[1].isdigit():
        return int(cells[1])
    return None
