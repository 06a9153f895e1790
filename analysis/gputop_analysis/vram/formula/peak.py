"""The peak of a step, for one setup or for arrays of configurations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gputop_analysis.vram.answer import CATEGORIES, Peak
from gputop_analysis.vram.formula.dims import Number, dims
from gputop_analysis.vram.formula.elementwise import most
from gputop_analysis.vram.formula.phases import step
from gputop_analysis.vram.formula.releases import single_experts
from gputop_analysis.vram.formula.reserved import reserved
from gputop_analysis.vram.setup import Setup

OPERATIONS = {
    "forward": "loss: lm_head: cross entropy",
    "loss": "backward: lm_head: cross entropy",
    "backward": "backward: last layer",
    "backward end": "backward: first layer",
    "embedding": "backward: embedding",
    "optimizer": "optimizer: update",
}
MOMENTS = (0.33, 0.36, 0.4, 0.95, 0.96, 1.0)
"""Where in a step the phases have their worst moments, as shares of its time: the backward pass
takes twice the forward's.
"""
NAMES = {"backward end": "backward", "embedding": "backward", "loss": "backward"}
LOWER = {"zero2": "zero1", "zero3": "zero2"}
SOURCES = (
    "activations: Korthikanti et al. 2022, section 4",
    "states: Rajbhandari et al. 2020, section 3; Narayanan et al. 2021",
)


def peak(setup: Setup, capacity: int | None = None) -> Peak:
    """The peak of one step on the rank that needs the most: of the first and the last pipeline
    stage, unless a later stage is asked about.

    Args:
        setup: the model and how it is trained.
        capacity: bytes that segments may take; the answer then says whether the step runs out of
            memory.

    Raises:
        ValueError: the model has no dimensions.
    """
    if not (setup.model.hidden and setup.model.layers):
        raise ValueError(
            f"the dimensions of {setup.model.name or 'the model'} are not known: no hidden size "
            "or layers"
        )
    stages = {setup.parallel.pipeline_stage}
    if setup.parallel.pp > 1 and not setup.parallel.pipeline_stage:
        stages.add(setup.parallel.pp - 1)
    peaks = [_capped(setup.but(pipeline_stage=stage)) for stage in sorted(stages)]
    highest = _of_all_stages(max(peaks, key=lambda peak: peak.allocated), peaks)
    return highest if capacity is None else _crowded(highest, capacity)


def _of_all_stages(highest: Peak, peaks: Sequence[Peak]) -> Peak:
    """The stage that allocates most, with the most that any of them reserves: no rank takes more
    of its GPU than that.
    """
    least, reserved = max(peak.least for peak in peaks), max(peak.reserved for peak in peaks)
    if (least, reserved) == (highest.least, highest.reserved):
        return highest
    return replace(
        highest, least=least, reserved=reserved, fragmentation=reserved - highest.allocated
    )


def _capped(setup: Setup) -> Peak:
    """A stage of ZeRO as the one before where so few ranks share so small a model that its buffers
    outweigh what it shards; not DeepSpeed's, whose buffers are as large as they are.
    """
    peak = _peak(setup)
    before = LOWER.get(setup.parallel.sharding)
    deepspeed = setup.by_engine().recipe == "deepspeed"
    if before is None or setup.parallel.offload == "all" or deepspeed:
        return peak
    lower = _capped(setup.but(sharding=before))
    if peak.allocated > lower.allocated:
        note = (
            f"the buffers of {setup.parallel.sharding} outweigh what it shards here: what "
            f"{before} needs is given"
        )
        return replace(lower, notes=(*lower.notes, note))
    least, reserved = min(peak.least, lower.least), min(peak.reserved, lower.reserved)
    return replace(peak, least=least, reserved=reserved, fragmentation=reserved - peak.allocated)


def _crowded(peak: Peak, capacity: int) -> Peak:
    """On a GPU with less room the allocator gives its cache back, while that is enough."""
    if capacity < peak.least:
        return replace(peak, oom=peak.operation)
    capped = min(peak.reserved, capacity)
    return replace(peak, reserved=capped, fragmentation=capped - peak.allocated)


def _peak(setup: Setup) -> Peak:
    d = dims(setup)
    phases = step(d)
    sums = {name: _whole(by) for name, by in phases.phases.items()}
    totals = {name: sum(by.values()) for name, by in sums.items()}
    worst = max(totals, key=lambda name: totals[name])
    plenty, least_reserved = (int(size) for size in reserved(d, phases.blocks, totals[worst]))
    return Peak(
        tier="formula",
        allocated=totals[worst],
        reserved=plenty,
        least=least_reserved,
        breakdown={name: size for name, size in sums[worst].items() if size},
        operation=OPERATIONS[worst],
        phases=_highest(totals),
        timeline=tuple(zip(MOMENTS, totals.values(), strict=True)),
        layers=tuple(
            (f"layers.{index}", round(float(phases.layer)))
            for index in range(round(float(d.layers)))
        ),
        sources=SOURCES,
        notes=tuple(_notes(setup)),
        fragmentation=plenty - totals[worst],
    )


def _notes(setup: Setup) -> Iterator[str]:
    if setup.parallel.pp > 1:
        yield f"of pipeline stage {setup.parallel.pipeline_stage}"
    if setup.quantized and setup.model.experts and not single_experts(setup):
        yield (
            "experts are counted in 16 bits: since version 5 transformers keeps those of a layer "
            f"in one tensor, which bitsandbytes does not quantise; in {setup.quantized} they are "
            "with --transformers 4.57"
        )


def _highest(totals: dict[str, int]) -> dict[str, int]:
    """The peak of each phase by its public name."""
    highest: dict[str, int] = {}
    for name, total in totals.items():
        public = NAMES.get(name, name)
        highest[public] = max(highest.get(public, 0), total)
    return highest


def _whole(by: dict[str, Number]) -> dict[str, int]:
    return {name: round(float(by.get(name, 0))) for name in CATEGORIES}


def peak_bytes(setup: Setup, **arrays: Number) -> Number:
    """Peak of allocated bytes for arrays of configurations that share the kinds of ``setup``.

    ``arrays`` replace counts of the setup (``seq``, ``micro_batch``, ``accumulation``, ``dp``,
    ``tp``, ``pp``, ``vpp``, ``cp``, ``ep``, ``replicas``, ``pipeline_stage``) and must broadcast;
    returns their broadcast shape.
    """
    return peak_sizes(setup, **arrays)[0]


def peak_sizes(setup: Setup, **arrays: Number) -> tuple[Number, Number, Number]:
    """Allocated and reserved bytes, and the least that still runs; as ``peak_bytes``."""
    d = dims(setup, **arrays)
    phases = step(d)
    allocated = most(*(sum(by.values()) for by in phases.phases.values()))
    plenty, needed = reserved(d, phases.blocks, allocated)
    return allocated, plenty, needed
