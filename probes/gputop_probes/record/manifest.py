"""``run.json`` and ``host.json``: what a run is, and how far it has come on each host.

Plain dataclasses: ``schema`` has checked the values, and pydantic would take 9 MB of every reader.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from gputop_probes.record import layout

Columns = list[tuple[str, str]]
"""Name and NumPy type of each column of a table."""


def columns_of(table: str) -> Columns:
    """The columns of a table in this version."""
    return [(name, code) for name, code in layout.dtype_description(layout.TABLES[table])]


def _tables() -> dict[str, Columns]:
    return {table: columns_of(table) for table in layout.TABLES}


def _of_class(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """Those values that are fields of ``cls``, and the others as its ``more``."""
    names = {item.name for item in fields(cls)}
    inside = {name: value for name, value in values.items() if name in names}
    more = {name: value for name, value in values.items() if name not in names}
    return {**inside, "more": more}


@dataclass(kw_only=True)
class Manifest:
    """``run.json``. Written once; what changes lives in ``HostState``."""

    format: str = layout.FORMAT
    version: int = layout.FORMAT_VERSION
    gputop_version: str = ""
    run_id: str
    name: str = ""
    command: list[str]
    cwd: str = ""
    created_ns: int
    tables: dict[str, Columns] = field(default_factory=_tables)
    recording: str | None = None
    """Where this record was made, in a sentence, for bundled recordings; None for own runs."""
    more: dict[str, Any] = field(default_factory=dict)
    """What this version does not know."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Manifest:
        """The manifest of what ``schema.manifest`` gave.

        Raises:
            ValueError: a field is missing, or a table's columns are no pairs.
        """
        for name in ("run_id", "command", "created_ns"):
            if name not in values:
                raise ValueError(f"it has no {name}")
        manifest = cls(**_of_class(cls, values))
        for table, columns in manifest.tables.items():
            if any(len(column) != 2 for column in columns):
                raise ValueError(f"tables.{table} has columns without a type")
            manifest.tables[table] = [(name, code) for name, code in columns]
        return manifest


@dataclass(kw_only=True)
class GpuInfo:
    """A device as NVML names it."""

    index: int
    name: str = ""
    uuid: str = ""
    memory_total_bytes: int = -1
    ours: bool = True
    """Whether a process of this run uses it."""
    power_limit_default_w: float | None = None
    added: bool = False
    """Whether its samples were not measured but added to a recording, for show: readers say so, and
    judge nothing by them.
    """
    rank: int | None = None
    """The rank that an added device was given to."""
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class HostState:
    """``hosts/HOST/host.json``: replaced atomically by that host's recorder."""

    host: str
    state: Literal["starting", "running", "ended", "lost"] = "starting"
    """``lost`` is never written: the reader says so when the recorder is gone without an end."""
    recorder_pid: int = -1
    command_pid: int = -1
    command_pgid: int = -1
    socket: str = ""
    started_ns: int = 0
    ended_ns: int | None = None
    exit_code: int | None = None
    """The command's exit code; 128+n after signal n; None while it runs or when not learnt."""
    signal: int | None = None
    clock_offset_ns: int = 0
    boot_id: str = ""
    """Tells whether pids of this file mean anything on the machine that reads it."""
    cpu_count: int = 0
    memory_total_bytes: int = -1
    gpus: list[GpuInfo] = field(default_factory=list)
    gpu_note: str = ""
    """Why there are no GPU samples, in words; empty when there are."""
    output_note: str = ""
    """What of the command's output is not in ``output.log``, in words; empty when all of it is."""
    output_losses: dict[str, int] = field(default_factory=dict)
    """Bytes: ``missing``, ``given_up``: not in the log; ``not_passed_on``: not on our streams."""
    context: dict[str, Any] = field(default_factory=dict)
    """Run context: git, container, scheduler, environment that matters."""
    dropped_records: int = 0
    write_errors: int = 0
    """Records lost because the disk refused them."""
    more: dict[str, Any] = field(default_factory=dict)
    """What only the recorder reads, or this version does not know."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> HostState:
        """The state of what ``schema.host_state`` gave."""
        gpus = [GpuInfo(**_of_class(GpuInfo, gpu)) for gpu in values.get("gpus", [])]
        return cls(**_of_class(cls, {**values, "gpus": gpus}))
