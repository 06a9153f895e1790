"""``run.json`` and ``host.json``: what a run is, and how far it has come on each host."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

from gputop_probes.record import layout

_T = TypeVar("_T")


def known(kind: type[_T], found: dict[str, Any]) -> _T:
    """Make a ``kind`` of what ``record/schema.py`` has checked; fields that it does not have are left out.

    Raises:
        TypeError: a field is missing that it needs.
    """
    names = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in found.items() if name in names})


def _tables() -> dict[str, list[tuple[str, str]]]:
    """The columns of this version."""
    described = {name: layout.dtype_description(columns) for name, columns in layout.TABLES.items()}
    return {name: [(column, code) for column, code in columns] for name, columns in described.items()}


@dataclass(kw_only=True)
class Manifest:
    """``run.json``. Written once; what changes lives in ``HostState``."""

    format: Literal["gputop-run"] = layout.FORMAT
    version: int = layout.FORMAT_VERSION
    gputop_version: str = ""
    run_id: str
    name: str = ""
    command: list[str]
    cwd: str = ""
    created_ns: int
    tables: dict[str, list[tuple[str, str]]] = field(default_factory=_tables)
    recording: str | None = None
    """A sentence that says where this record was made, for bundled recordings; None for the user's own runs."""


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


@dataclass(kw_only=True)
class HostState:
    """``hosts/HOST/host.json``: replaced atomically by that host's recorder."""

    host: str
    state: Literal["starting", "running", "ended", "lost"] = "starting"
    """``lost`` is never written: the reader says so when the recorder's process is gone without an end."""
    recorder_pid: int = -1
    command_pid: int = -1
    command_pgid: int = -1
    socket: str = ""
    started_ns: int = 0
    ended_ns: int | None = None
    exit_code: int | None = None
    """The command's exit code; 128+n after signal n; None while it runs or when nobody could learn it."""
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
    context: dict[str, Any] = field(default_factory=dict)
    """Run context: git, container, scheduler, environment that matters."""
    dropped_records: int = 0
    write_errors: int = 0
    """Records lost because the disk refused them."""

    @classmethod
    def of(cls, found: dict[str, Any]) -> HostState:
        """The state of what ``schema.host_state`` has let pass, with the name of the host."""
        return known(cls, {**found, "gpus": [known(GpuInfo, gpu) for gpu in found.get("gpus", [])]})
