"""Reads a run record, also while it grows. Nothing here writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from gputop_agent import wire
from gputop_agent.contracts import Hello
from gputop_probes.record import files, layout, schema
from gputop_probes.record.damage import Damage
from gputop_probes.record.events import GrowingLines
from gputop_probes.record.fields import Tally
from gputop_probes.record.head import RecordError as RecordError
from gputop_probes.record.head import read_head
from gputop_probes.record.manifest import HostState, Manifest
from gputop_probes.record.plain import plain_line
from gputop_probes.record.tables import GrowingTable as GrowingTable
from gputop_probes.record.tables import Table as Table


def numpy_dtype(fields: list[tuple[str, str]]) -> np.dtype[Any]:
    """Packed little-endian dtype of a table's ``(name, type)`` pairs."""
    return np.dtype([(name, code) for name, code in fields])


_APART_NS = 3600 * 10**9
"""At most between a host's start or end and its sample; the recorder samples each second."""


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
    state_problem: str = ""
    """What is wrong with ``host.json``; empty where nothing is."""
    _state_stamp: tuple[int, int] = (0, 0)

    def refresh(self) -> bool:
        """Bring every file up to date. Returns whether anything changed."""
        grown = [t.refresh() for t in (self.gpu, self.host, self.process, self.events)]
        changed = self._refresh_state()
        if changed:
            self._hold_against_samples()
        return changed or any(grown)

    def measured(self) -> HostFiles:
        """The host without devices whose samples were added."""
        added = [gpu.index for gpu in self.state.gpus if gpu.added]
        gpu = GrowingTable(self.gpu.path, self.gpu.dtype, self.gpu.table)
        gpu.rows = self.gpu.rows[~np.isin(self.gpu.rows["index"], added)]
        state = self.state.model_copy(
            update={"gpus": [gpu for gpu in self.state.gpus if not gpu.added]}
        )
        return replace(self, gpu=gpu, state=state)

    def _hold_against_samples(self) -> None:
        """Take times of ``host.json`` that lie far from all that was sampled for damage."""
        rows, state = self.host.rows, self.state
        if state.state == "ended" and state.ended_ns is None:
            self.state_problem = "it has ended, and does not say when"
        if not len(rows):
            return
        first, last = int(rows["t_ns"][0]), int(rows["t_ns"][-1])
        if (
            state.ended_ns is not None
            and not last - _APART_NS <= state.ended_ns <= last + _APART_NS
        ):
            state.ended_ns, self.state_problem = (
                last,
                "its end lies far from the last sample, which stands for it",
            )
        if state.started_ns and not first - _APART_NS <= state.started_ns <= first + _APART_NS:
            state.started_ns, self.state_problem = (
                first,
                "its start lies far from the first sample, which stands for it",
            )

    def _refresh_state(self) -> bool:
        path = self.path / layout.STATE_FILE
        try:
            stat = path.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino)
            if stamp == self._state_stamp:
                return False
            self._state_stamp = stamp
            state = files.read_json(path)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            self.state_problem = plain_line(getattr(error, "strerror", None) or "it is not JSON")
            return False
        tally = Tally()
        fields = {"host": self.name, **schema.host_state(state, tally)}
        self.state = HostState.model_validate(fields)
        if tally.dropped:
            self.state_problem = f"{tally.dropped} of its fields have a wrong type"
        else:
            self.state_problem = ""
        return True


@dataclass
class RunRecord:
    """An opened run. ``refresh`` sees what was appended; arrays handed out before stay valid."""

    path: Path
    manifest: Manifest
    hosts: dict[str, HostFiles] = field(default_factory=dict)
    _rank_tables: dict[tuple[str, int], GrowingTable] = field(default_factory=dict)
    _hellos: dict[int, Hello] = field(default_factory=dict)
    _hellos_read: dict[str, int] = field(default_factory=dict)
    manifest_problem: str = ""

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunRecord:
        """Open the run directory at ``path``.

        Raises:
            RecordError: no record there, a foreign or damaged one, or one of a newer version.
        """
        run_dir = Path(path)
        manifest, problem = _read_manifest(run_dir)
        record = cls(run_dir, manifest, manifest_problem=problem)
        record.refresh()
        return record

    @property
    def name(self) -> str:
        """What the run is called by its user, else by its directory."""
        return self.manifest.name or plain_line(self.path.name)

    def measured(self) -> RunRecord:
        """The record without devices whose samples were added to it; itself where none were."""
        if not any(gpu.added for host in self.hosts.values() for gpu in host.state.gpus):
            return self
        hosts = {name: host.measured() for name, host in self.hosts.items()}
        return replace(self, hosts=hosts)

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
        return sorted(
            rank
            for (table, rank), rows in self._rank_tables.items()
            if table == "steps" and len(rows.rows)
        )

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
        """Events of all hosts, host by host as written; only of the given types if any."""
        for host in self.hosts.values():
            yield from host.events.of(types) if types else host.events.items

    def rank_starts(self, rank: int) -> list[int]:
        """Indices in ``steps(rank)`` at which a process of the rank began, in the order told."""
        table = self._rank_tables.get(("steps", rank))
        starts = (
            event.get("record_index", 0)
            for event in self.events("rank_start")
            if event["rank"] == rank
        )
        if table is None:
            return list(starts)
        return [table.index_of(index) for index in starts]

    @property
    def damage(self) -> Damage:
        """What of the record cannot be read or cannot be true, as far as it was read."""
        damage_ = Damage()
        for (table, _), rows in sorted(self._rank_tables.items()):
            damage_.add_table(f"{table}/{rows.path.name}", rows)
        for host in self.hosts.values():
            for table in (host.gpu, host.host, host.process):
                damage_.add_table(f"hosts/{host.name}/{table.path.name}", table)
            damage_.add_events(f"hosts/{host.name}/events.jsonl", host.events)
            if host.state_problem:
                damage_.add(f"hosts/{host.name}/host.json: {host.state_problem}")
        if self.manifest_problem:
            damage_.add(f"run.json: {self.manifest_problem}")
        return damage_

    def hello(self, rank: int) -> Hello | None:
        """The last hello of a rank with what it learnt later merged in; None before it said any."""
        for host in self.hosts.values():
            self._merge_hellos(host)
        hello_ = self._hellos.get(rank)
        return hello_.copy() if hello_ is not None else None

    def _merge_hellos(self, host: HostFiles) -> None:
        """Take in what a host's ranks said since the last call: a live view asks often."""
        items = host.events.items
        for event in items[self._hellos_read.get(host.name, 0) :]:
            rank = event.get("rank")
            if event["type"] == "hello" and rank is not None:
                self._hellos[rank] = cast(Hello, dict(event))
            elif event["type"] == "hello_update" and rank in self._hellos:
                news = {key: value for key, value in event.items() if key not in ("type", "t_ns")}
                self._hellos[rank].update(cast(Hello, news))
        self._hellos_read[host.name] = len(items)

    def _rows(self, table: str, rank: int) -> Table:
        table_ = self._rank_tables.get((table, rank))
        if table_ is not None:
            return table_.rows
        return np.empty(0, self._dtype(table))

    def _dtype(self, table: str) -> np.dtype[Any]:
        return numpy_dtype(self.manifest.tables[table])

    def _find_new_files(self) -> bool:
        changed = False
        for table in ("steps", "device", "comm"):
            for rank, path in files.rank_files(self.path / table):
                if (table, rank) not in self._rank_tables:
                    self._rank_tables[table, rank] = GrowingTable(path, self._dtype(table), table)
                    changed = True
        for path in files.host_folders(self.path):
            if plain_line(path.name) not in self.hosts:
                self.hosts[plain_line(path.name)] = self._open_host(path)
                changed = True
        return changed

    def _host_table(self, folder: Path, table: str) -> GrowingTable:
        return GrowingTable(folder / f"{table}.bin", self._dtype(table), table)

    def _open_host(self, path: Path) -> HostFiles:
        name = plain_line(path.name)
        gpu, host, process = (self._host_table(path, table) for table in ("gpu", "host", "process"))
        return HostFiles(
            name=name,
            path=path,
            gpu=gpu,
            host=host,
            process=process,
            events=GrowingLines(path / layout.EVENTS_FILE),
            state=HostState(host=name),
        )


def _read_manifest(run_dir: Path) -> tuple[Manifest, str]:
    """The manifest, and what is wrong with it though it can be used."""
    tally = Tally()
    manifest_ = schema.manifest(read_head(run_dir), tally)
    try:
        manifest = Manifest.model_validate(manifest_)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RecordError(f"{run_dir / 'run.json'} is damaged: {where}: {first['msg']}") from None
    for table, fields in layout.TABLES.items():
        manifest.tables.setdefault(
            table, [(name, code) for name, code in layout.dtype_description(fields)]
        )
        if problem := _problem_of(manifest.tables[table], layout.needed_columns(table, fields)):
            raise RecordError(f"{run_dir / 'run.json'} is damaged: tables.{table} {problem}")
    return manifest, f"{tally.dropped} of its fields have a wrong type" if tally.dropped else ""


def _problem_of(columns: list[tuple[str, str]], fields: layout.Fields) -> str:
    """Why a table cannot be read with these columns; empty where it can."""
    code_of = dict(columns)
    if len(code_of) != len(columns):
        return "has a column twice"
    for name, code in layout.dtype_description(fields):
        if code_of.get(name) != code:
            return f"has no column {name} of type {code}"
    codes = {code for _, code in columns}
    if codes <= layout.NUMPY_CODES:
        return ""
    return f"has columns of types {', '.join(sorted(codes))}"


def steady(steps: Table) -> npt.NDArray[np.bool_]:
    """Mask of step records for steady-state statistics: no compile, checkpoint, eval, set-up."""
    return (steps["flags"] & wire.F_UNSTEADY) == 0
