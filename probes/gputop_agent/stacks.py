"""Names the code behind a phase: samples the training thread's stack and counts the lines it was seen in."""

import os
import sys
from time import monotonic

from . import frames, lane, tensor_work, transport, wire
from .state import OTHER, S

_OFTEN = frozenset(wire.PHASES.index(name) for name in ("data", "h2d", "eval", "other"))
_SELDOM = frozenset(wire.PHASES.index(name) for name in ("forward", "backward"))
_SELDOM_EVERY = 4
_TOP = 8
_MIN_INTERVAL_S = 2.0
_MAX_INTERVAL_S = 30.0
_MAX_SITES = 512
_MAX_INSIDE = 32
_CHECKPOINT_FILE = os.path.join("torch", "utils", "checkpoint.py")


class Sampler:
    """Counts by phase and place; ``flush`` sends them and starts anew."""

    def __init__(self):
        self._ticks = 0
        self._ticks_at_flush = 0
        self._counts = {}  # phase index -> {(site, function, caller): {inside: count}}
        self._late = {}  # phase index -> looks that came where the training let them, and so name no line
        self._started = self._flushed = monotonic()

    def wants_look(self):
        """Whether the phase of the moment is one that wants a name each time."""
        frame = sys._current_frames().get(S.thread_ident) if lane.L.thin else None
        return lane.phase(frame) in _OFTEN

    def sample(self, fair=True):
        """Look once, if the phase of the moment is one that wants a name; ``fair``: see ``looks``."""
        self._ticks += 1
        frame = sys._current_frames().get(S.thread_ident) if lane.L.thin else None
        phase = lane.phase(frame)
        if phase in _OFTEN or (phase in _SELDOM and self._ticks % _SELDOM_EVERY == 0):
            frame = frame or sys._current_frames().get(S.thread_ident)
            if not fair:
                self._late[phase] = self._late.get(phase, 0) + 1
                self._counts.setdefault(phase, {})
            elif frame is not None:
                self._count(phase, describe(frame, phase == OTHER))
                if phase in _SELDOM and not S.checkpointing_seen:
                    S.checkpointing_seen = _in_checkpoint(frame)

    def flush_if_due(self):
        """Send one ``stacks`` event a phase, every 2 s at first and less often as the run gets long."""
        now = monotonic()
        interval = min(_MAX_INTERVAL_S, max(_MIN_INTERVAL_S, (now - self._started) / 60))
        if now - self._flushed >= interval and self._counts:
            self.flush()

    def flush(self):
        """Send what was counted."""
        counted, self._counts = self._counts, {}
        late, self._late = self._late, {}
        period_ms = self._end_window()
        for phase, places in counted.items():
            samples = sorted((_sample(place, inside) for place, inside in places.items()), key=lambda s: -s["count"])
            transport.send_event(
                "stacks",
                phase=wire.PHASES[phase],
                period_ms=round(period_ms * (_SELDOM_EVERY if phase in _SELDOM else 1), 3),
                total=sum(sample["count"] for sample in samples) + late.get(phase, 0),
                late=late.get(phase, 0),
                samples=samples[:_TOP],
            )

    def _end_window(self):
        """Mean milliseconds between two looks since the last flush; above a tick where the GIL is held."""
        now = monotonic()
        elapsed_ms = (now - self._flushed) * 1e3
        ticks = self._ticks - self._ticks_at_flush
        self._flushed, self._ticks_at_flush = now, self._ticks
        return elapsed_ms / max(1, ticks)

    def _count(self, phase, found):
        place, inside = found[:3], found[3]
        places = self._counts.setdefault(phase, {})
        counts = places.get(place)
        if counts is None:
            if len(places) >= _MAX_SITES:
                return
            counts = places[place] = {}
        if inside in counts or len(counts) < _MAX_INSIDE:
            counts[inside] = counts.get(inside, 0) + 1


def _sample(place, inside):
    """One entry of the event; ``inside`` is what the line was seen waiting in most often."""
    site, function, caller = place
    return {
        "site": site,
        "function": function,
        "caller": caller,
        "inside": max(inside, key=lambda name: inside[name]),
        "code": frames.source(site),
        "count": sum(inside.values()),
    }


def describe(frame, look_closer=False):
    """``(site, function, caller, inside)`` of a stack whose innermost frame is given.

    ``site`` and ``function`` are the innermost line of user code, or of a package where there is none; ``caller`` is
    the next line of user code further out (of anything, if there is none), and ``inside`` the innermost frame of a
    package, torch or the standard library that it was waiting in (empty if none). ``look_closer`` asks of a line of
    user code whether it is inside one of torch's C functions.
    """
    found = [f for f in frames.stack(frame) if frames.origin(f.f_code.co_filename) != frames.AGENT]
    if not found:
        return "", "", "", ""
    index = _first(found, (frames.USER,))
    if index is None:
        index = _first(found, (frames.LIBRARY,)) or 0
    chosen, outer = found[index], found[index + 1 :]
    caller = frames.label(outer[_first(outer, (frames.USER,)) or 0]) if outer else ""
    inside = frames.label(found[0]) if index else tensor_work.label(found[0]) if look_closer else ""
    library = _first(found[:index], (frames.LIBRARY,))
    if library:  # below a trainer's own line the package says more than the torch function it calls
        inside = frames.label(found[library])
    return frames.site(chosen), chosen.f_code.co_name, caller, inside


def _in_checkpoint(frame):
    """Whether activation checkpointing is on the stack: running a segment, or running it again."""
    return any(f.f_code.co_filename.endswith(_CHECKPOINT_FILE) for f in frames.stack(frame))


def _first(found, origins):
    for index, frame in enumerate(found):
        if frames.origin(frame.f_code.co_filename) in origins:
            return index
    return None
