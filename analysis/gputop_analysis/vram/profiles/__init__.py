"""Estimates from shipped event profiles: what a trace of the real modules would find, without
torch.

A profile holds the events of a step whose sizes are products of dimensions (``recognise``). It is
made for four layers and for each way of training that changes the order of events (``variant``). At
the time of asking the layers are repeated, the optimizer is added (``steps``), the dimensions are
put in and the log goes through the allocator, as that of a trace does.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from gputop_analysis.vram import conf, formula
from gputop_analysis.vram.answer import Peak
from gputop_analysis.vram.deepen import TRACED
from gputop_analysis.vram.eventlog import EventLog
from gputop_analysis.vram.profiles import store
from gputop_analysis.vram.profiles.dims import dims
from gputop_analysis.vram.profiles.optimizers import UPDATES
from gputop_analysis.vram.profiles.sharded import Sharding, sharded
from gputop_analysis.vram.profiles.stacks import deepened, depths_of
from gputop_analysis.vram.profiles.steps import Course, StepCourse, course
from gputop_analysis.vram.profiles.term import Size
from gputop_analysis.vram.profiles.variant import is_ddp, is_tied, sharding_of, variant
from gputop_analysis.vram.replay import Replay, summary
from gputop_analysis.vram.setup import Setup

WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2}
REMEMBERED = 64
"""Answers that are kept: a screen asks for the same setups again and again."""
PLAYED = 4
"""Replays that are kept, to be played again with less room."""


@lru_cache(REMEMBERED)
def peak(setup: Setup, capacity: int | None = None) -> Peak | None:
    """What a setup needs; None for one that no profile covers.

    Args:
        setup: the model and how it is trained.
        capacity: bytes that segments may take; None: as many as they want.
    """
    replay = replay_of(setup)
    if replay is None:
        return None
    replayed = summary(replay.log, replay.played(capacity), "profile")
    replayed = _recorded(replayed, recorded(setup), capacity)
    versions = ", ".join(f"{name} {version}" for name, version in store.index()["versions"].items())
    return replace(replayed, sources=(f"event profile {variant(setup)}, traced with {versions}",))


def covers(setup: Setup) -> bool:
    """Whether a profile covers a setup."""
    is_traced = setup.optimizer in UPDATES and min(depths_of(setup.model)) >= TRACED
    return is_traced and variant(setup) in store.index()["profiles"]


@lru_cache(REMEMBERED)
def reserved(setup: Setup) -> int | None:
    """The peak of reserved bytes alone; None for a setup that no profile covers."""
    replay = replay_of(setup)
    if replay is None:
        return None
    return max(replay.reserved(), recorded(setup))


def _recorded(peak: Peak, size: int, capacity: int | None) -> Peak:
    """With the segments that recorded blocks keep; out of memory without room."""
    if capacity is not None and capacity < size:
        return replace(peak, oom=peak.oom or peak.operation)
    reserved = max(peak.reserved, size)
    return replace(peak, reserved=reserved, fragmentation=reserved - peak.allocated)


@lru_cache(REMEMBERED)
def recorded(setup: Setup) -> int:
    """Bytes without which a run under FSDP1 goes out of memory, though a replay has room: blocks
    that are recorded for another stream are not free at once (``RECORDED_FULL`` of
    ``formula/reserved.py``); 0 of others.
    """
    sharding = sharding_of(setup)
    if sharding is not None and sharding.flat:
        return formula.peak(setup).least
    return 0


def least(setup: Setup) -> int:
    """Bytes that are surely reserved, without a play; 0 for a setup that no profile covers."""
    replay = replay_of(setup)
    return 0 if replay is None else replay.least()


@lru_cache(PLAYED)
def replay_of(setup: Setup) -> Replay | None:
    """What plays the events of a setup; None for one that no profile covers."""
    log = events(setup)
    return None if log is None else Replay(log, conf.parse(setup.allocator))


def events(setup: Setup) -> EventLog | None:
    """Memory events of a setup's training steps, all layers; None if no profile covers it."""
    name = variant(setup)
    if name is None or setup.optimizer not in UPDATES or min(depths_of(setup.model)) < TRACED:
        return None
    width = WIDTHS[setup.lora.dtype if setup.lora else setup.weights or setup.dtype]
    sharding = sharding_of(setup)
    training = StepCourse(
        setup.optimizer, width, setup.accumulation > 1, is_ddp(setup), is_tied(setup.model)
    )
    terms_and_course = _course(name, setup.model.family, depths_of(setup.model), training, sharding)
    if terms_and_course is None:
        return None
    terms, course = terms_and_course
    known_dims = dims(setup)
    return course.sized([term.bytes(known_dims) for term in terms], width)


@lru_cache(REMEMBERED)
def _course(
    name: str,
    family: str,
    depths: tuple[int, ...],
    training: StepCourse,
    sharding: Sharding | None,
) -> tuple[tuple[Size, ...], Course] | None:
    """The terms of a profile, and its steps with all layers of a model."""
    profile = store.load(name)
    if profile is None:
        return None
    sizes: tuple[Size, ...] = profile.terms
    log = _deepened(name, family, depths)
    if sharding is not None:
        sizes, log = sharded(profile.terms, log, sharding)
    return sizes, course(log, training)


@lru_cache(PLAYED)
def _deepened(name: str, family: str, depths: tuple[int, ...]) -> EventLog:
    """The pass over a micro-batch with all layers; other optimizers ask for it again."""
    course = store.load(name)
    assert course is not None, name
    return deepened(course.log, family, depths)
