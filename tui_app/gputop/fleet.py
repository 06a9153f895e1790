"""`.gputop.toml`, here or above: GPUs one has, those to look at, a training's cost limit."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = ".gputop.toml"
PRIORITIES = ("speed", "cost")
SERVER = 8
"""GPUs that one server holds, unless nodes are given."""
_GROUP = re.compile(r"^(?:(\d+)\s*x\s*)?(.+?)(?:\s*x\s*(\d+)\s*nodes?)?$", re.IGNORECASE)


class FleetError(ValueError):
    """The file cannot be used; the message is one line that says how to mend it."""


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """Equal GPUs: so many in a node, and so many nodes."""

    gpu: str
    per_node: int = 1
    nodes: int = 1

    @property
    def count(self) -> int:
        return self.per_node * self.nodes

    @property
    def told_per_node(self) -> int:
        """GPUs of a node; 0, as the vendor builds them, where there are enough for several."""
        if self.nodes > 1 or self.per_node <= SERVER:
            return self.per_node
        return 0

    def __str__(self) -> str:
        return f"{self.per_node}x{self.gpu}" + (f" x {self.nodes} nodes" if self.nodes > 1 else "")


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the file says; empty where there is none."""

    have: tuple[GpuGroup, ...] = ()
    explore: tuple[str, ...] = ()
    usd_per_hour: float | None = None
    usd_total: float | None = None
    priority: str = "speed"
    path: Path | None = None


def parse_group(text: str) -> GpuGroup:
    """``H100``, ``8xH100`` or ``8xH100 x 2 nodes``, by a name of the catalog.

    Raises:
        FleetError: an unknown GPU, or no GPU at all.
    """
    from gputop_analysis.catalog import gpu

    match = _GROUP.match(text.strip())
    if match is None or not match[2].strip():
        raise FleetError(f"{text!r} names no GPU: write 8xH100 or 8xH100 x 2 nodes")
    try:
        spec = gpu(match[2].strip())
    except LookupError as error:
        raise FleetError(error.args[0]) from None
    count, nodes = int(match[1] or 1), int(match[3] or 1)
    if count < 1 or nodes < 1:
        raise FleetError(f"{text!r}: at least one GPU on one node")
    return GpuGroup(spec.name, count, nodes)


def load(folder: Path | None = None) -> Fleet:
    """The nearest file of ``folder`` (default: here) and the folders above; an empty fleet without
    one.

    Raises:
        FleetError: the file is there and cannot be used.
    """
    if os.environ.get("GPUTOP_NO_CONFIG"):
        return Fleet()
    here = (folder or Path.cwd()).absolute()
    path = next(
        (folder_ / NAME for folder_ in (here, *here.parents) if (folder_ / NAME).is_file()), None
    )
    if path is None:
        return Fleet()
    try:
        return from_text(path.read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise FleetError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        ) from None


def from_text(text: str, path: Path | None = None) -> Fleet:
    """A file's text as a fleet.

    Raises:
        FleetError: no TOML, an unknown key, a GPU that the catalog does not have, or a budget that
            is none.
    """
    where = str(path or NAME)
    data = _toml(text, where)
    _known(data, ("fleet", "budget", "priority"), where)
    fleet, budget = _section(data, "fleet", where), _section(data, "budget", where)
    _known(fleet, ("have", "explore"), f"{where} [fleet]")
    _known(budget, ("usd_per_hour", "usd_total"), f"{where} [budget]")
    priority = data.get("priority", "speed")
    if priority not in PRIORITIES:
        raise FleetError(f"{where}: priority is {' or '.join(PRIORITIES)}, not {priority!r}")
    try:
        have = tuple(parse_group(group) for group in _words(fleet, "have", where))
        explore = tuple(parse_group(group).gpu for group in _words(fleet, "explore", where))
    except FleetError as error:
        raise FleetError(f"{where}: {error}") from None
    return Fleet(
        have,
        explore,
        _usd(budget, "usd_per_hour", where),
        _usd(budget, "usd_total", where),
        priority,
        path,
    )


def as_text(fleet: Fleet) -> str:
    """The file of a fleet, with what each line means."""
    rent, total = "# usd_per_hour = 40.0", "# usd_total = 2000.0"
    if fleet.usd_per_hour is not None:
        rent = f"usd_per_hour = {fleet.usd_per_hour!r}"
    if fleet.usd_total is not None:
        total = f"usd_total = {fleet.usd_total!r}"
    return f"""\
# What gputop plans with, in this folder and below; `gputop --no-config ...` ignores it.
priority = "{fleet.priority}"  # speed or cost

[fleet]
have = {_list([str(group) for group in fleet.have])}  # as "8xH100" or "8xH100 x 2 nodes"
explore = {_list(list(fleet.explore))}  # what `gputop scan` compares them with

[budget]
{rent}
{total}
"""


def _list(words: list[str]) -> str:
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"


def _toml(text: str, where: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FleetError(f"{where} is no TOML: {error}") from None


def _known(section: dict[str, Any], keys: tuple[str, ...], where: str) -> None:
    unknown = [key for key in section if key not in keys]
    if unknown:
        raise FleetError(f"{where}: unknown key {unknown[0]!r}, there are {', '.join(keys)}")


def _section(data: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    section = data.get(name, {})
    if not isinstance(section, dict):
        raise FleetError(f"{where}: {name} is a section, [{name}]")
    return section


def _words(section: dict[str, Any], key: str, where: str) -> list[str]:
    words = section.get(key, [])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise FleetError(f'{where}: {key} is a list of names, as ["8xH100"]')
    return words


def _usd(section: dict[str, Any], key: str, where: str) -> float | None:
    value = section.get(key)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 < value < float("inf")
    ):
        raise FleetError(f"{where}: {key} is an amount of dollars above 0, not {value!r}")
    return float(value)
