"""Names the code behind a phase: samples the training thread's stack, counts its lines."""

import os
import sys
from time import monotonic
from typing import NamedTuple, Tuple

from gputop_agent import wire
from gputop_agent.runtime import current, frames, looks, transport
from gputop_agent.runtime.session import OTHER, session
from gputop_agent.timing import tensor_work
from gputop_agent.timing.step_state import open_step
from gputop_agent.watchers.stacks import loops, shared_functions

_OFTEN = frozenset(wire.PHASES.index(name) for name in ("data", "h2d", "comm", "eval", "other"))
_SELDOM = frozenset(wire.PHASES.index(name) for name in ("forward", "backward", "optimizer"))
# ticks a look at those: a short run is to be known by more than some hundred looks
_SELDOM_EVERY_AT_FIRST, _SELDOM_EVERY, _FIRST_S = 2, 4, 60.0
_TOP = 12
_FOLDED = 12
_MAX_PATH = 16
_MIN_INTERVAL_S = 2.0
_MAX_INTERVAL_S = 30.0
_MAX_SITES = 512
_MAX_INSIDE = 32
#: parts of the standard library that only pass a call on
_TRANSPARENT = (
    "contextlib.py",
    "functools.py",
    "_weakrefset.py",
    "weakref.py",
    "typing.py",
    "abc.py",
    "enum.py",
)
#: before the first line of a loop, in a path
LOOP = "loop "
_CHECKPOINT_FILE = os.path.join("torch", "utils", "checkpoint.py")


class SampledPlace(NamedTuple):
    """Where a thread was seen; labels as ``describe`` and ``path_of`` give them."""

    site: str
    function: str
    caller: str
    path: Tuple[str, ...]
    after_update: bool = False
    """Between an update and the next forward."""


class StackSampler:
    """Counts by phase and place; ``flush`` sends them and starts anew."""

    def __init__(self):
        self._ticks = 0
        self._ticks_at_flush = 0
        self._counts = {}  # phase index -> {SampledPlace: {inside: count}}
        self._open = {}  # likewise, of the step that has not ended yet
        self._open_step = -1
        self._started = self._flushed = monotonic()
        self._seldom_every = _SELDOM_EVERY_AT_FIRST

    def sample(self, times=1):
        """Look once, if the phase of the moment is one that wants a name; count it as so many."""
        self._ticks += times
        if session.step != self._open_step:
            self._step_ended()
        frame = sys._current_frames().get(session.thread_ident)
        phase = current.phase(frame)
        if phase in _OFTEN or (phase in _SELDOM and self._ticks % self._seldom_every == 0):
            if frame is not None:
                stack = frames.still(frame)
                self._count(phase, describe(stack, phase == OTHER), path_of(stack), times)
                if phase in _SELDOM and not session.checkpointing_seen:
                    session.checkpointing_seen = _in_checkpoint(stack)

    def _step_ended(self):
        """Count the looks of the open step; those of a hang, which never ends, name no cost."""
        self._open_step = session.step
        counted, self._open = self._open, {}
        for phase, places in counted.items():
            for place, inside in places.items():
                for name, count in inside.items():
                    add(self._counts.setdefault(phase, {}), place, name, count)

    def flush_if_due(self):
        """Send one ``stacks`` event a phase, every 2 s at first, later less often."""
        now_s = monotonic()
        interval = looks.rarer(now_s - self._started, _MIN_INTERVAL_S, _MAX_INTERVAL_S)
        if now_s - self._flushed >= interval and self._counts:
            self.flush()

    def flush(self):
        """Send what was counted in steps that have ended."""
        if session.step != self._open_step:
            self._step_ended()
        counted, self._counts = self._counts, {}
        period_ms = self._end_window()
        for phase, places in counted.items():
            samples = most_seen(places)
            transport.send_event(
                "stacks",
                phase=wire.PHASES[phase],
                period_ms=round(period_ms * (self._seldom_every if phase in _SELDOM else 1), 3),
                total=sum(sum(inside.values()) for inside in places.values()),
                samples=samples,
            )
        if self._flushed - self._started >= _FIRST_S:
            self._seldom_every = _SELDOM_EVERY

    def _end_window(self):
        """Mean ms between two looks since the last flush; above a tick where the GIL is held."""
        now_s = monotonic()
        elapsed_ms = (now_s - self._flushed) * 1e3
        ticks = self._ticks - self._ticks_at_flush
        self._flushed, self._ticks_at_flush = now_s, self._ticks
        return elapsed_ms / max(1, ticks)

    def _count(self, phase, described, path, times):
        site, function, caller, inside = described
        after_update = phase == OTHER and (open_step.pending or not open_step.forwards)
        place = SampledPlace(site, function, caller, path, after_update)
        add(self._open.setdefault(phase, {}), place, inside, times)


def add(places, place, inside, count):
    """Count looks at a place, within the bounds of what is kept."""
    insides = places.get(place)
    if insides is None:
        if len(places) >= _MAX_SITES:
            return
        insides = places[place] = {}
    if inside in insides or len(insides) < _MAX_INSIDE:
        insides[inside] = insides.get(inside, 0) + count


def most_seen(places):
    """Entries of the event, most seen first; of many the rarer count at their callers' lines."""
    samples = sorted(
        (_sample(place, inside) for place, inside in places.items()),
        key=lambda s: -s["count"],
    )
    folded = {}
    for sample in samples[_TOP:]:
        above = tuple(sample["path"][:-1])
        site, _, function = _without_loop(above[-1] if above else sample["site"]).partition(" ")
        sample_ = folded.setdefault(
            above, dict(sample, site=site, function=function, path=list(above), code="", count=0)
        )
        sample_["count"] += sample["count"]
    return samples[:_TOP] + sorted(folded.values(), key=lambda s: -s["count"])[:_FOLDED]


def _without_loop(label):
    """The label of a loop as that of its first line."""
    return label[len(LOOP) :] if label.startswith(LOOP) else label


def _sample(place, inside):
    """One entry of the event; ``inside`` is what the line was seen waiting in most often."""
    sample = {
        "site": place.site,
        "function": place.function,
        "caller": place.caller,
        "path": list(place.path),
        "inside": max(inside, key=lambda name: inside[name]),
        "code": frames.source(place.site),
        "count": sum(inside.values()),
    }
    lines = [label for label in place.path if not label.startswith(LOOP)]
    shared = shared_functions.calls_in(lines)
    if shared:
        sample["shared_calls"] = shared
    if place.after_update:
        sample["after_update"] = True
    return sample


def describe(stack, look_closer=False):
    """``(site, function, caller, inside)`` of a stack (``frames.still``).

    ``site`` and ``function`` are the innermost line of user code, or of a package where there is
    none; ``caller`` is the next line of user code further out (of anything, if there is none), and
    ``inside`` the innermost frame of a package, torch or the standard library that it was waiting
    in (empty if none). ``look_closer`` asks whether the innermost line is inside one of torch's C
    functions.
    """
    user_frames = [f for f in stack if frames.origin(f.f_code.co_filename) != frames.AGENT]
    if not user_frames:
        return "", "", "", ""
    index = _first(user_frames, (frames.USER,))
    if index is None:
        index = _first(user_frames, (frames.LIBRARY,)) or 0
    chosen, outer = user_frames[index], user_frames[index + 1 :]
    caller = ""
    if outer:
        caller = frames.label(outer[_first(outer, (frames.USER,)) or 0])
    innermost = user_frames[0]
    inside = ""
    if look_closer and not index:
        inside = tensor_work.label(innermost)
    elif look_closer and frames.origin(innermost.f_code.co_filename) == frames.LIBRARY:
        inside = tensor_work.label_in_package(innermost, frames.package(innermost))
    if index and not inside:
        inside = frames.label(_telling(user_frames[:index]))
    library = _first(user_frames[:index], (frames.LIBRARY,))
    if library:  # below a trainer's own line the package says more than the torch function it calls
        inside = frames.label(user_frames[library])
    elif index and frames.origin(user_frames[0].f_code.co_filename) == frames.TORCH:
        inside = _on_behalf_of(user_frames[:index]) or inside
    return frames.site(chosen), chosen.f_code.co_name, caller, inside


def _telling(stack):
    """The innermost frame that does more than pass a call on; the innermost one where none does."""
    names = [os.path.basename(frame.f_code.co_filename) for frame in stack]
    return next((frame for frame, name in zip(stack, names) if name not in _TRANSPARENT), stack[0])


def path_of(stack):
    """Lines of user code from the outermost to the innermost frame, each after the loops that it
    is in; ``(package)`` where one lies between two of them.

    Of a deep stack the outermost are left out.
    """
    path = []
    for frame in stack:
        origin = frames.origin(frame.f_code.co_filename)
        if origin == frames.USER:
            path.append(frames.label(frame))
            around = loops.headers(frame.f_code, frame.f_lasti)
            path.extend(LOOP + frames.label(frame._replace(f_lineno=line)) for line in around[::-1])
        elif origin == frames.LIBRARY:
            name = "(%s)" % frames.package(frame)
            if path and path[-1] != name:
                path.append(name)
    return tuple(reversed(path[:_MAX_PATH]))


def _in_checkpoint(stack):
    """Whether activation checkpointing is on the stack: running a segment, or running it again."""
    return any(f.f_code.co_filename.endswith(_CHECKPOINT_FILE) for f in stack)


def _on_behalf_of(stack):
    """The standard library's frame that calls torch: a deepcopy of tensors is host code."""
    for frame in reversed(stack):
        name = frame.f_code.co_filename
        if frames.origin(name) == frames.STDLIB and os.path.basename(name) not in _TRANSPARENT:
            return frames.label(frame)
    return ""


def _first(stack, origins):
    for index, frame in enumerate(stack):
        if frames.origin(frame.f_code.co_filename) in origins:
            return index
    return None
