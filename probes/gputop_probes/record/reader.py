"""Reads a run record, also while it grows. Nothing here writes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from gputop_agent import wire
from gputop_probes.record.head import RecordError, read_head
from gputop_probes.record.manifest import HostState, Manifest

Table = npt.NDArray[Any]


def numpy_dtype(fields: list[tuple[str, str]]) -> np.dtype[Any]:
    """Packed little-endian dtype of a table's ``(name, type)`` pairs."""
    return np.dtype([(name, code) for name, code in fields])


class GrowingTable:
    """One fixed-width file, mapped read-only; ``refresh`` maps what has been appended since."""

    def __init__(self, path: Path, dtype: np.dtype[Any]):
        self.path = path
        self.dtype = dtype
        self.rows: Table = np.empty(0, dtype)

    def refresh(self) -> bool:
        """Map the file anew if it grew by a whole record. Returns whether it did."""
        try:
            count = self.path.stat().st_size // self.dtype.itemsize
        except OSError:
            return False
        if count <= len(self.rows):
            return False
        mapped = np.memmap(self.path, dtype=self.dtype, mode="r", shape=(count,))
        self.rows = mapped.view(np.ndarray)  # the same pages; a memmap's own indexing is slow
        return True


class GrowingLines:
    """A JSON-lines file, read incrementally; a torn last line waits for its rest, a broken one is skipped."""

    def __init__(self, path: Path):
        self.path = path
        self.items: list[dict[str, Any]] = []
        self._positions: dict[str, list[int]] = {}
        self._indexed = 0
        self._offset = 0

    def refresh(self) -> bool:
        """Parse the lines that were completed since the last call. Returns whether there were any."""
        try:
            if self.path.stat().st_size <= self._offset:
                return False
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return False
        end = data.rfind(b"\n") + 1
        self._offset += end
        before = len(self.items)
        for line in data[:end].splitlines():
            try:
                item = json.loads(line)
            except ValueError:
                continue
            if isinstance(item, dict) and "type" in item:
                self.items.append(item)
        return len(self.items) > before

    def of(self, types: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        """The items of these types in the order written, without looking at the others."""
        self._index()
        for position in sorted(p for name in set(types) for p in self._positions.get(name, ())):
            yield self.items[position]

    def _index(self) -> None:
        if self._indexed > len(self.items):  # somebody replaced the list by a shorter one
            self._positions, self._indexed = {}, 0
        for position in range(self._indexed, len(self.items)):
            self._positions.setdefault(str(self.items[position]["type"]), []).append(position)
        self._indexed = len(self.items)


@dataclass
class HostFiles:
    """All that one host wrote."""

    name: str
    path: Path
    gpu: GrowingTable
    host: GrowingTable
    process: GrowingTable
    events: GrowingLines
    state: HostState
    _state_stamp: tuple[int, int] = (0, 0)

    def refresh(self) -> bool:
        """Bring every file up to date. Returns whether anything changed."""
        grown = [t.refresh() for t in (self.gpu, self.host, self.process, self.events)]
        return self._refresh_state() or any(grown)

    def _refresh_state(self) -> bool:
        path = self.path / "host.json"
        try:
            stat = path.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino)
            if stamp == self._state_stamp:
                return False
            self.state = HostState.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            return False
        self._state_stamp = stamp
        return True


@dataclass
class RunRecord:
    """An opened run. Call ``refresh`` to see what was appended; arrays handed out before stay valid."""

    path: Path
    manifest: Manifest
    hosts: dict[str, HostFiles] = field(default_factory=dict)
    _rank_tables: dict[tuple[str, int], GrowingTable] = field(default_factory=dict)
    _hellos: dict[int, dict[str, Any]] = field(default_factory=dict)
    _hellos_read: dict[str, int] = field(default_factory=dict)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunRecord:
        """Open the run directory at ``path``.

        Raises:
            RecordError: no record there, a foreign or damaged one, or one of a newer version.
        """
        run_dir = Path(path)
        record = cls(run_dir, _read_manifest(run_dir))
        record.refresh()
        return record

    def refresh(self) -> bool:
        """Follow the files. Returns whether anything was appended since the last call."""
        changed = self._find_new_files()
        for table in self._rank_tables.values():
            changed |= table.refresh()
        for host in self.hosts.values():
            changed |= host.refresh()
        return changed

    def ranks(self) -> list[int]:
        """Ranks that have written steps, ascending."""
        return sorted(rank for (table, rank), rows in self._rank_tables.items() if table == "steps" and len(rows.rows))

    def steps(self, rank: int) -> Table:
        """Step records of a rank (``wire.STEP_FIELDS``), in the order written."""
        return self._rows("steps", rank)

    def device(self, rank: int) -> Table:
        """Device-clock records of a rank (``wire.DEVICE_FIELDS``)."""
        return self._rows("device", rank)

    def comm(self, rank: int) -> Table:
        """Communication records of a rank (``wire.COMM_FIELDS``)."""
        return self._rows("comm", rank)

    def events(self, *types: str) -> Iterator[dict[str, Any]]:
        """Events of all hosts, host by host in the order written; only the given types if any are given."""
        for host in self.hosts.values():
            yield from host.events.of(types) if types else host.events.items

    def hello(self, rank: int) -> dict[str, Any] | None:
        """The last hello of a rank with what it learnt later merged in; None before it said any."""
        for host in self.hosts.values():
            self._merge_hellos(host)
        found = self._hellos.get(rank)
        return dict(found) if found is not None else None

    def _merge_hellos(self, host: HostFiles) -> None:
        """Take in what a host's ranks said since the last call: a live view asks often, and events are many."""
        items = host.events.items
        for event in items[self._hellos_read.get(host.name, 0) :]:
            rank = event.get("rank")
            if event["type"] == "hello" and rank is not None:
                self._hellos[rank] = dict(event)
            elif event["type"] == "hello_update" and rank in self._hellos:
                self._hellos[rank].update({k: v for k, v in event.items() if k not in ("type", "t_ns")})
        self._hellos_read[host.name] = len(items)

    def _rows(self, table: str, rank: int) -> Table:
        found = self._rank_tables.get((table, rank))
        return found.rows if found is not None else np.empty(0, self._dtype(table))

    def _dtype(self, table: str) -> np.dtype[Any]:
        return numpy_dtype(self.manifest.tables[table])

    def _find_new_files(self) -> bool:
        changed = False
        for table in ("steps", "device", "comm"):
            for path in (self.path / table).glob("rank-*.bin"):
                key = (table, int(path.stem.removeprefix("rank-")))
                if key not in self._rank_tables:
                    self._rank_tables[key] = GrowingTable(path, self._dtype(table))
                    changed = True
        for path in sorted((self.path / "hosts").glob("*")):
            if path.is_dir() and path.name not in self.hosts:
                self.hosts[path.name] = self._open_host(path)
                changed = True
        return changed

    def _open_host(self, path: Path) -> HostFiles:
        return HostFiles(
            name=path.name,
            path=path,
            gpu=GrowingTable(path / "gpu.bin", self._dtype("gpu")),
            host=GrowingTable(path / "host.bin", self._dtype("host")),
            process=GrowingTable(path / "process.bin", self._dtype("process")),
            events=GrowingLines(path / "events.jsonl"),
            state=HostState(host=path.name),
        )


def _read_manifest(run_dir: Path) -> Manifest:
    try:
        return Manifest.model_validate(read_head(run_dir))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RecordError(f"{run_dir / 'run.json'} is damaged: {where}: {first['msg']}") from None


def steady(steps: Table) -> npt.NDArray[np.bool_]:
    """Mask of the step records that steady-state statistics may use: no compile, checkpoint, eval, set-up."""
    return (steps["flags"] & wire.F_UNSTEADY) == 0
