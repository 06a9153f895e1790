"""``run.json`` and ``host.json``: what a run is, and how far it has come on each host."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gputop_probes.record import layout


def _columns_of_tables() -> dict[str, list[tuple[str, str]]]:
    """Names and types of each table's columns."""
    columns = {}
    for table, fields in layout.TABLES.items():
        columns[table] = [(name, code) for name, code in layout.dtype_description(fields)]
    return columns


class Manifest(BaseModel):
    """``run.json``. Written once; what changes lives in ``HostState``."""

    model_config = ConfigDict(extra="allow")

    format: Literal["gputop-run"] = layout.FORMAT
    version: int = layout.FORMAT_VERSION
    gputop_version: str = ""
    run_id: str
    name: str = ""
    command: list[str]
    cwd: str = ""
    created_ns: int
    tables: dict[str, list[tuple[str, str]]] = Field(default_factory=_columns_of_tables)
    recording: str | None = None
    """Where this record was made, in a sentence, for bundled recordings; None for own runs."""


class GpuInfo(BaseModel):
    """A device as NVML names it."""

    model_config = ConfigDict(extra="allow")

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


class HostState(BaseModel):
    """``hosts/HOST/host.json``: replaced atomically by that host's recorder."""

    model_config = ConfigDict(extra="allow")

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
    gpus: list[GpuInfo] = Field(default_factory=list)
    gpu_note: str = ""
    """Why there are no GPU samples, in words; empty when there are."""
    output_note: str = ""
    """What of the command's output is not in ``output.log``, in words; empty when all of it is."""
    output_losses: dict[str, int] = Field(default_factory=dict)
    """Bytes: ``missing``, ``given_up``: not in the log; ``not_passed_on``: not on our streams."""
    context: dict[str, Any] = Field(default_factory=dict)
    """Run context: git, container, scheduler, environment that matters."""
    dropped_records: int = 0
    write_errors: int = 0
    """Records lost because the disk refused them."""
