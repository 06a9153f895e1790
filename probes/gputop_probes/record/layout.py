"""Where things lie in a run record, and the fixed-width structs that only the recorder writes.

::

    RUN/run.json                     manifest; written once by the first recorder, never changed
    RUN/steps/rank-00000.bin         wire.STEP, one file a rank (ranks are of all hosts)
    RUN/device/rank-00000.bin        wire.DEVICE
    RUN/comm/rank-00000.bin          wire.COMM
    RUN/traces/rank-00000-step-58.trace.json   Chrome trace of a profile on request, by the rank
    RUN/hosts/HOST/host.json         state of that host's recorder and command; replaced atomically
    RUN/hosts/HOST/gpu.bin           GPU, one record a device and tick
    RUN/hosts/HOST/host.bin          HOST, one record a tick
    RUN/hosts/HOST/process.bin       PROCESS, one record a process and tick
    RUN/hosts/HOST/events.jsonl      one JSON object a line: {"t_ns", "type", "rank"?, ...}
    RUN/hosts/HOST/output.log        the command's stdout (and stderr, unless they were apart)
    RUN/hosts/HOST/stderr.log        the command's stderr, only where stdout and stderr were apart

All files are append-only; a torn last record or line is ignored. Counters named ``*_total`` are
cumulative. A float that was not measured is NaN, an integer -1.
"""

from __future__ import annotations

import struct
from pathlib import Path

from gputop_agent import wire

FORMAT = "gputop-run"
FORMAT_VERSION = 1
MANIFEST_FILE, STATE_FILE, EVENTS_FILE = "run.json", "host.json", "events.jsonl"
OUTPUT_FILES = ("stderr.log", "output.log")
"""Errors first, where they are apart."""

Fields = tuple[tuple[str, str], ...]

GPU_FIELDS: Fields = (
    ("t_ns", "q"),
    ("memory_used_bytes", "q"),
    ("memory_total_bytes", "q"),
    ("memory_ours_bytes", "q"),  # used by processes of this run; -1: the driver does not tell
    ("memory_foreign_bytes", "q"),  # used by processes outside this run; -1: not told
    ("clock_event_reasons", "q"),  # NVML bit mask; -1: not told
    ("energy_mj_total", "q"),
    ("ecc_corrected_total", "q"),
    ("ecc_uncorrected_total", "q"),
    ("pcie_replay_total", "q"),
    ("nvlink_error_total", "q"),
    ("index", "i"),
    ("pstate", "i"),
    ("pcie_gen", "i"),
    ("pcie_width", "i"),
    ("util_pct", "f"),
    ("memory_util_pct", "f"),
    ("power_w", "f"),
    ("power_limit_w", "f"),
    ("temperature_c", "f"),
    ("memory_temperature_c", "f"),
    ("sm_clock_mhz", "f"),
    ("sm_clock_max_mhz", "f"),
    ("memory_clock_mhz", "f"),
    ("fan_pct", "f"),
    ("sm_active_pct", "f"),  # GPM, Hopper and later
    ("sm_occupancy_pct", "f"),
    ("tensor_active_pct", "f"),
    ("dram_active_pct", "f"),
    ("pcie_tx_mb_s", "f"),
    ("pcie_rx_mb_s", "f"),
    ("nvlink_tx_mb_s", "f"),
    ("nvlink_rx_mb_s", "f"),
)

HOST_FIELDS: Fields = (
    ("t_ns", "q"),
    ("memory_total_bytes", "q"),
    ("memory_available_bytes", "q"),
    ("swap_used_bytes", "q"),
    ("cgroup_memory_bytes", "q"),
    ("cgroup_memory_max_bytes", "q"),  # -1: no limit
    ("cgroup_oom_kill_total", "q"),
    ("cgroup_throttled_us_total", "q"),
    ("tree_rss_bytes", "q"),  # of the command's process tree
    ("tree_pss_bytes", "q"),
    ("disk_read_bytes_total", "q"),
    ("disk_write_bytes_total", "q"),
    ("net_rx_bytes_total", "q"),
    ("net_tx_bytes_total", "q"),
    ("shm_used_bytes", "q"),
    ("shm_total_bytes", "q"),
    ("output_bytes", "q"),  # length of output.log; -1: there is none
    ("stderr_bytes", "q"),  # of stderr.log
    ("cpu_pct", "f"),  # of the whole machine, 0..100
    ("load_1m", "f"),
    ("psi_cpu_some_pct", "f"),  # pressure stall, avg10
    ("psi_io_some_pct", "f"),
    ("psi_memory_some_pct", "f"),
    ("cgroup_cpu_limit", "f"),  # cores; NaN: none
    ("cpu_count", "i"),  # cores this run may use
    ("process_count", "i"),  # processes in the tree
)

PROCESS_RANK, PROCESS_WORKER, PROCESS_LAUNCHER, PROCESS_OTHER = range(4)
PROCESS_FIELDS: Fields = (
    ("t_ns", "q"),
    ("cpu_ns_total", "q"),  # user + system, all threads
    ("thread_cpu_ns_total", "q"),  # the training thread of a rank; -1 otherwise
    # the training thread waiting for a core (schedstat); main thread otherwise
    ("run_wait_ns_total", "q"),
    ("voluntary_switches_total", "q"),  # of the same thread
    ("involuntary_switches_total", "q"),
    ("minor_faults_total", "q"),
    ("major_faults_total", "q"),
    ("rss_bytes", "q"),
    ("pss_bytes", "q"),  # -1: not read at this tick
    ("read_bytes_total", "q"),
    ("write_bytes_total", "q"),
    ("pid", "i"),
    ("ppid", "i"),
    ("rank", "i"),  # of a rank, or of the rank a worker belongs to; -1: none
    ("kind", "i"),  # PROCESS_*
    ("threads", "i"),
    ("state", "i"),  # ord of the letter in /proc/PID/stat
    ("open_files", "i"),
    ("reserved", "i"),
)

GPU = struct.Struct("<" + "".join(code for _, code in GPU_FIELDS))
HOST = struct.Struct("<" + "".join(code for _, code in HOST_FIELDS))
PROCESS = struct.Struct("<" + "".join(code for _, code in PROCESS_FIELDS))

TABLES: dict[str, Fields] = {
    "steps": wire.STEP_FIELDS,
    "device": wire.DEVICE_FIELDS,
    "comm": wire.COMM_FIELDS,
    "gpu": GPU_FIELDS,
    "host": HOST_FIELDS,
    "process": PROCESS_FIELDS,
}

_NUMPY_CODES = {"q": "<i8", "Q": "<u8", "i": "<i4", "I": "<u4", "f": "<f4", "d": "<f8"}

NUMPY_CODES = frozenset(_NUMPY_CODES.values())
"""Types that a column may have."""


LOG_LENGTHS = {"output.log": "output_bytes", "stderr.log": "stderr_bytes"}
"""The logs of a host, and the column that holds the length of each."""
STEP_BYTES = tuple(name for name, _ in wire.STEP_FIELDS if name.endswith("_bytes"))
"""Columns of memory in a table of steps; -1 where they were not measured."""
LATER_COLUMNS = {"host": frozenset(LOG_LENGTHS.values())}
"""Columns of a table that older records lack."""


def dtype_description(fields: Fields) -> list[list[str]]:
    """The table's columns as ``[name, numpy type]`` pairs, as kept in the manifest."""
    return [[name, _NUMPY_CODES[code]] for name, code in fields]


def needed_columns(table: str, fields: Fields) -> Fields:
    """The columns without which a table cannot be read."""
    later = LATER_COLUMNS.get(table, frozenset())
    return tuple(field for field in fields if field[0] not in later)


def rank_file(run_dir: Path, table: str, rank: int) -> Path:
    """Path of a per-rank table (``steps``, ``device`` or ``comm``)."""
    return run_dir / table / f"rank-{rank:05d}.bin"


def host_dir(run_dir: Path, host: str) -> Path:
    """Directory of one host's files."""
    return run_dir / "hosts" / host
