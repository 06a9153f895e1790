"""A peak on GPUs: the device total, where it fits, whether a given GPU has room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from gputop_analysis.text import gib
from gputop_analysis.units import GIB
from gputop_analysis.vram import overhead
from gputop_analysis.vram.answer import Peak
from gputop_analysis.vram.estimate import Estimate
from gputop_analysis.vram.fits import Need, fits
from gputop_analysis.vram.formula.discarded import modules_of
from gputop_analysis.vram.intervals import interval
from gputop_analysis.vram.residuals import axes, spread
from gputop_analysis.vram.setup import Setup
from gputop_analysis.vram.tiers import Solver, two_stacks

WORTH_NAMING = 1.05
OPEN_LENGTHS = (
    "lengths are not said: for batches as long as their longest text, the upper end is what these "
    "reserve; --lengths fixed or varied says it"
)


class _OpenBytes(NamedTuple):
    """What is reserved besides, in bytes, if what a setup leaves open turns out the larger way."""

    by_varied_lengths: int
    by_upcast: int
    by_core_attention: int


def sized(setup: Setup, solver: Solver, capacity: int | None = None) -> tuple[Estimate, Need]:
    """The estimate of a setup without advice, and what it asks of a GPU.

    Args:
        setup: the model and how it is trained.
        solver: what answers it.
        capacity: bytes of the GPU that it is to run on; a replay then tells retries and where
            memory runs out.
    """
    peak = solver(None)
    need = Need(peak.allocated, peak.reserved, _runs_in(setup, peak, solver))
    nccl = overhead.nccl(setup)
    if capacity is None:
        room = None
    else:
        room = max(capacity - overhead.CONTEXT - nccl, 0)
    measured = spread(axes(setup)) if peak.tier == "formula" else None
    more = _OpenBytes(
        _by_varied_lengths(setup, peak),
        _by_upcast(setup, peak),
        _by_core_attention(setup, peak),
    )
    estimate = Estimate(
        setup=setup,
        peak=peak if room is None else _crowded(solver, peak, room),
        context=overhead.CONTEXT,
        nccl=nccl,
        interval_pct=interval(setup, peak.tier),
        fits=fits(setup, need),
        typical_pct=measured and (measured.typical_low, measured.typical_high),
        uncalibrated=measured.uncalibrated if measured else (),
        most_reserved=peak.reserved + sum(more) if any(more) else 0,
        notes=tuple(_open_points(setup, more)),
        runs_in_capacity=None if room is None else need.within(room),
        sources=overhead.SOURCES if setup.parallel.world > 1 else overhead.SOURCES[:1],
    )
    return estimate, need


def _open_points(setup: Setup, more: _OpenBytes) -> Iterator[str]:
    """What a reader has to know of how the setup was taken."""
    if more.by_varied_lengths:
        yield OPEN_LENGTHS
    if more.by_upcast:
        yield (
            f"embeddings, head and norms count in {setup.dtype}; --weights fp32 where peft's "
            f"prepare_model_for_kbit_training has cast them: {gib(more.by_upcast / GIB)} GiB more"
        )
    if more.by_core_attention:
        yield (
            f"selective recomputes {' and '.join(modules_of(setup.model))}; Megatron's default, "
            "core_attn, frees next to nothing beside flash attention: "
            f"{gib(more.by_core_attention / GIB)} GiB more with it"
        )
    if setup.server_share:
        yield (
            f"a server beside it takes {setup.server_share:.0%} of each GPU, which is not counted "
            "in its need but in where it fits; --server-share 0 where it sleeps or runs elsewhere"
        )


def _by_varied_lengths(setup: Setup, peak: Peak) -> int:
    """Bytes that are reserved besides if batches turn out to be of varying length, where that is
    left open and ``WORTH_NAMING``; else 0.
    """
    is_open = setup.recipe == "transformers" and not setup.lengths
    if not is_open or peak.tier == "trace":
        return 0
    return _more_reserved(setup.but(lengths="fixed"), setup.but(lengths="varied"), peak)


def _by_upcast(setup: Setup, peak: Peak) -> int:
    """The same if what is not quantised turns out to be in fp32, as ``peft`` makes it before
    training (its ``utils/other.py``: ``prepare_model_for_kbit_training``).
    """
    by_peft = setup.recipe == "transformers" and setup.lora is not None
    by_bitsandbytes = by_peft and setup.quantized in ("nf4", "int8")
    is_counted = bool(setup.model.hidden)
    if not by_bitsandbytes or not is_counted or setup.weights or setup.dtype == "fp32":
        return 0
    return _more_reserved(setup, setup.but(weights="fp32"), peak)


def _by_core_attention(setup: Setup, peak: Peak) -> int:
    """The same if Megatron's selective recomputation turns out to be of attention alone, which is
    its default.
    """
    is_open = setup.recipe == "megatron" and setup.checkpointing == "selective"
    if not is_open or setup.attention == "eager" or peak.tier == "trace":
        return 0
    return _more_reserved(setup, setup.but(checkpointing="none"), peak)


def _more_reserved(usual: Setup, other: Setup, peak: Peak) -> int:
    """Bytes that the other setup reserves besides by the formula, if ``WORTH_NAMING``; else 0."""
    if two_stacks(usual):
        return 0
    from gputop_analysis.vram import formula

    more = formula.peak(other).reserved - formula.peak(usual).reserved
    return more if more > (WORTH_NAMING - 1) * peak.reserved else 0


def _runs_in(setup: Setup, peak: Peak, solver: Solver) -> Callable[[int], bool]:
    """Whether it runs where segments may take so many bytes."""
    if peak.tier != "profile":
        return lambda room: not solver(room).oom
    from gputop_analysis.vram import profiles

    def runs(room: int) -> bool:
        replay = profiles.replay_of(setup)
        return replay is not None and room >= profiles.recorded(setup) and replay.runs_in(room)

    return runs


def _crowded(solver: Solver, free: Peak, room: int) -> Peak:
    """The peak on a GPU with less room than would be reserved, or where it runs out."""
    if room >= free.reserved:
        return free
    tight = solver(room)
    if tight.oom:
        return replace(free, oom=tight.oom, retries=tight.retries)
    return tight
