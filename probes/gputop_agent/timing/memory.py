"""Memory of this process: CUDA's caching allocator and the resident set.

The step's peak without resetting the user's statistics: torch's peak counter only moves up (until
the user resets it). If it grew since the last record, that growth happened in between and the
counter is the step's peak. If it did not, the step's peak lies somewhere below it, and the highest
value seen at the marks (``note``) is reported.
"""

import os
import sys
from time import monotonic_ns
from typing import Any

from gputop_agent.runtime import descriptors, interrupts, transport
from gputop_agent.runtime.session import session

_RSS_STALE_NS = 500_000_000  # then the training thread reads it: 0.1 ms with cold caches


class _Process:
    """Memory of this process as it was read last, bytes."""

    def __init__(self):
        self.cuda_stats: Any = None  # torch._C._cuda_memoryStats once CUDA is in use
        self.device = 0
        self.last_counter = -1
        self.noted = 0
        self.used = -1
        self.stats: Any = None  # what the allocator said last
        self.first_send_s = 0.0
        self.next_send_s = 0.0
        self.rss_ns = 0
        self.rss = -1


_process = _Process()

_page_bytes = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class Emptied:
    """Calls of ``torch.cuda.empty_cache``, counted by its hook."""

    calls = 0
    spent_ns = 0
    site: Any = None  # the line that called it first


emptied = Emptied()


def read():
    """``(allocated, reserved, peak, rss)`` in bytes; -1: not measured. Never initialises CUDA."""
    if _process.cuda_stats is None:
        _process.used = rss()
        return -1, -1, -1, _process.used
    allocated, reserved, counter = _counters()
    _process.used = allocated
    return allocated, reserved, _peak_since_last(allocated, counter), rss()


def last():
    """In use at the last ``read``: allocated bytes on CUDA, else resident set; -1: unknown."""
    return _process.used


def send_if_due(now_s):
    """From the agent's thread: an ``allocator`` event in 2 s at first, later in 30 s. No CUDA."""
    stats = _process.stats
    if stats is None or now_s < _process.next_send_s:
        return
    _process.first_send_s = _process.first_send_s or now_s
    _process.next_send_s = now_s + (2.0 if now_s - _process.first_send_s < 60.0 else 30.0)
    transport.send_event(
        "allocator",
        step=session.step,
        device_allocs=stats.get("num_device_alloc"),
        device_frees=stats.get("num_device_free"),
        retries=stats.get("num_alloc_retries"),
        ooms=stats.get("num_ooms"),
        inactive_split_bytes=stats["inactive_split_bytes"]["all"]["current"],
        empty_cache_calls=emptied.calls,
        empty_cache_ms=round(emptied.spent_ns / 1e6, 3),
        empty_cache_site=emptied.site,
    )


def counters():
    """``{"allocated_bytes", "reserved_bytes", "peak_allocated_bytes"}`` now; None off CUDA."""
    if _process.cuda_stats is None:
        return None
    allocated, reserved, peak = _counters()
    return {"allocated_bytes": allocated, "reserved_bytes": reserved, "peak_allocated_bytes": peak}


def note():
    """Remember the allocated bytes at this point of the step, if they are the highest so far."""
    if _process.cuda_stats is not None:
        _process.noted = max(_process.noted, _counters()[0])


def activate(torch, device):
    """Read the allocator of CUDA device ``device`` from now on. CUDA is initialised."""
    _process.device = device
    _process.cuda_stats = torch._C._cuda_memoryStats
    _process.last_counter = -1


def rss():
    """Resident set in bytes as the agent's thread read it last; -1 where /proc is not there."""
    now_ns = monotonic_ns()
    if now_ns - _process.rss_ns >= _RSS_STALE_NS:
        refresh_rss(now_ns)
    return _process.rss


def refresh_rss(now_ns):
    """Read the resident set; the agent's thread does a few times a second."""
    _process.rss_ns = now_ns
    _process.rss = _statm()[0]


@session.after_fork
def reset():
    """Forget what belongs to the parent process (called in a fork's child)."""
    _process.__init__()


def _counters():
    stats = _process.stats = _process.cuda_stats(_process.device)
    allocated = stats["allocated_bytes"]["all"]
    return allocated["current"], stats["reserved_bytes"]["all"]["current"], allocated["peak"]


def _peak_since_last(allocated, counter):
    highest = max(_process.noted, allocated)
    # up: a new peak; down: the user reset it, and it counts from there
    grew = counter != _process.last_counter
    _process.last_counter = counter
    _process.noted = 0
    return max(highest, counter) if grew else highest


def anonymous_bytes():
    """The resident set without files: mapped data sets are not in it; -1: not known."""
    resident, shared = _statm()
    return resident - shared if resident >= 0 else -1


def _statm():
    """``(resident, shared)`` in bytes."""
    if not sys.platform.startswith("linux"):
        return -1, 0
    try:
        fields = descriptors.read("/proc/self/statm", 128).split()
        return int(fields[1]) * _page_bytes, int(fields[2]) * _page_bytes
    except (OSError, ValueError, IndexError):
        interrupts.pass_on()
        return -1, 0
