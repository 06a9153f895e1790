"""Checks of what surrounds a training: the install, the terminal, the disk, the kernel, the
GPUs.
"""

from __future__ import annotations

import locale
import os
import shutil
import sys
from pathlib import Path

from gputop.doctor.check import Check
from gputop_analysis.units import GIB

_MINIMUM_FREE_BYTES = 200 * 2**20
_SMALLEST_TERMINAL = (80, 24)


def check_install() -> Check:
    """This gputop, and whether another program of that name is found before it."""
    import gputop

    here = f"gputop {gputop.__version__} on Python {sys.version.split()[0]}"
    first = shutil.which("gputop")
    if first is None:
        return Check(
            "install", "note", f"{here}; not on the PATH", f"call it as {sys.executable} -m gputop"
        )
    if not _is_ours(Path(first)):
        fix = (
            f"put {Path(sys.executable).parent} first on the PATH, "
            f"or call {sys.executable} -m gputop"
        )
        return Check(
            "install",
            "warn",
            f"{here}; but `gputop` on the PATH is another project's: {first}",
            fix,
        )
    return Check("install", "ok", here)


def _is_ours(script: Path) -> bool:
    try:
        return b"gputop.cli" in script.read_bytes()[:4096]
    except OSError:
        return False


def check_terminal() -> Check:
    """Whether the live screen can be shown here."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return Check(
            "terminal",
            "note",
            "none here: `gputop run` works without the live screen and prints a summary",
        )
    size = shutil.get_terminal_size()
    facts = f"{size.columns}x{size.lines}, TERM={os.environ.get('TERM', '')}"
    if os.environ.get("TERM") in (None, "", "dumb"):
        return Check("terminal", "warn", facts, "set TERM, for example to xterm-256color")
    if "utf" not in locale.getpreferredencoding(False).lower():
        return Check(
            "terminal", "warn", f"{facts}; the locale is not UTF-8", "export LC_ALL=C.UTF-8"
        )
    if size.columns < _SMALLEST_TERMINAL[0] or size.lines < _SMALLEST_TERMINAL[1]:
        return Check(
            "terminal", "warn", f"{facts}; panels are cut below 80x24", "make the window larger"
        )
    return Check("terminal", "ok", facts)


def check_records() -> Check:
    """Whether the directory of the run records can be written."""
    from gputop_probes.runs import runs_dir

    folder = runs_dir()
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    if not os.access(existing, os.W_OK):
        return Check(
            "records",
            "fail",
            f"{existing} is not writable",
            "set GPUTOP_RUNS_DIR to a directory that is",
        )
    free = shutil.disk_usage(existing).free
    detail = f"{folder}, {free / GIB:.1f} GiB free"
    if free < _MINIMUM_FREE_BYTES:
        return Check(
            "records", "warn", detail, "free some space, or set GPUTOP_RUNS_DIR to another disk"
        )
    return Check("records", "ok", detail)


def check_host() -> Check:
    """Kernel interfaces that the host and process samplers read."""
    if sys.platform != "linux":
        fix = (
            "steps, phases and findings work; scheduler wait, PSS, pressure and cgroups need Linux"
        )
        return Check("host", "note", f"{sys.platform}: fewer host figures", fix)
    missing = []
    for path in ("/proc/self/schedstat", "/proc/self/smaps_rollup"):
        if not os.access(path, os.R_OK):
            missing.append(path)
    if os.access("/proc/pressure/cpu", os.R_OK):
        pressure = ""
    else:
        pressure = "; no pressure figures (PSI is off in this kernel)"
    cores = len(os.sched_getaffinity(0))
    if missing:
        return Check(
            "host",
            "warn",
            f"{cores} cores; not readable: {', '.join(missing)}",
            "some host findings abstain",
        )
    return Check("host", "ok", f"{cores} cores, scheduler and memory figures readable{pressure}")


def check_gpus() -> Check:
    """NVML: how many devices, or why none."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Check(
            "gpus", "note", f"no NVIDIA driver here ({error}): GPU panels are off, all else works"
        )
    try:
        handles = []
        for i in range(pynvml.nvmlDeviceGetCount()):
            handles.append(pynvml.nvmlDeviceGetHandleByIndex(i))
        names = [_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()
    if not names:
        return Check(
            "gpus",
            "warn",
            f"driver {driver}, but no device is visible",
            "check the container's --gpus option",
        )
    return Check("gpus", "ok", f"{len(names)} x {names[0]}, driver {driver}")


def _text(value: str | bytes) -> str:
    if isinstance(value, bytes):
        return value.decode()
    return value
