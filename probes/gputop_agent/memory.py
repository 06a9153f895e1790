"""Memory of this process: CUDA's caching allocator and the resident set.

The step's peak without resetting the user's statistics: torch's peak counter only moves up (until the user resets it).
If it grew since the last record, that growth happened in between and the counter is the step's peak. If it did not, the
step's peak lies somewhere below it, and the highest value seen at the marks (``note``) is reported.
"""

import os
import sys
from time import monotonic_ns
from typing import Any

_RSS_PERIOD_NS = 100_000_000

_cuda_stats: Any = None  # torch._C._cuda_memoryStats once CUDA is in use
_device = 0
_last_counter = -1
_noted = 0

_rss_file = -1
_rss_pid = -1
_rss_ns = 0
_rss = -1
_page_bytes = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def read():
    """``(allocated, reserved, peak, rss)`` in bytes; -1 for what cannot be measured. Never initialises CUDA."""
    if _cuda_stats is None:
        return -1, -1, -1, rss()
    allocated, reserved, counter = _counters()
    return allocated, reserved, _peak_since_last(allocated, counter), rss()


def note():
    """Remember the allocated bytes at this point of the step, if they are the highest so far."""
    global _noted
    if _cuda_stats is not None:
        _noted = max(_noted, _counters()[0])


def activate(torch, device):
    """Read the allocator of CUDA device ``device`` from now on. The caller knows that CUDA is initialised."""
    global _cuda_stats, _device, _last_counter
    _device = device
    _cuda_stats = torch._C._cuda_memoryStats
    _last_counter = -1


def rss():
    """Resident set in bytes, read at most ten times a second; -1 where /proc is not there."""
    global _rss_ns, _rss
    now = monotonic_ns()
    if now - _rss_ns >= _RSS_PERIOD_NS:
        _rss_ns = now
        _rss = _read_rss()
    return _rss


def reset():
    """Forget what belongs to the parent process (called in a fork's child)."""
    global _cuda_stats, _rss_ns, _noted, _last_counter
    _cuda_stats = None
    _rss_ns = _noted = 0
    _last_counter = -1


def _counters():
    stats = _cuda_stats(_device)
    allocated = stats["allocated_bytes"]["all"]
    return allocated["current"], stats["reserved_bytes"]["all"]["current"], allocated["peak"]


def _peak_since_last(allocated, counter):
    global _last_counter, _noted
    highest = max(_noted, allocated)
    grew = counter != _last_counter  # up: a new peak; down: the user reset it, and it counts from there
    _last_counter = counter
    _noted = 0
    return max(highest, counter) if grew else highest


def _read_rss():
    global _rss_file, _rss_pid
    if not sys.platform.startswith("linux"):
        return -1
    try:
        if _rss_pid != os.getpid():  # /proc/self of an inherited descriptor is still the parent's
            if _rss_file >= 0:
                os.close(_rss_file)
            _rss_file = os.open("/proc/self/statm", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            _rss_pid = os.getpid()
        return int(os.pread(_rss_file, 128, 0).split()[1]) * _page_bytes
    except (OSError, ValueError, IndexError):
        return -1
