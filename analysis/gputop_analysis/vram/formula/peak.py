"""The peak of a step, for one setup or for arrays of configurations."""

from __future__ import annotations

import numpy as np

from gputop_analysis.vram.answer import CATEGORIES, Peak
from gputop_analysis.vram.formula.dims import Number, dims
from gputop_analysis.vram.formula.phases import step
from gputop_analysis.vram.formula.reserved import reserved
from gputop_analysis.vram.setup import Setup

OPERATIONS = {
    "forward": "loss: lm_head: cross entropy",
    "loss": "backward: lm_head: cross entropy",
    "backward": "backward: last layer",
    "backward end": "backward: first layer",
    "optimizer": "optimizer: update",
}
NAMES = {"backward end": "backward", "loss": "backward"}
SOURCES = (
    "activations: Korthikanti et al. 2022, section 4",
    "states: Rajbhandari et al. 2020, section 3; Narayanan et al. 2021",
)


def peak(setup: Setup) -> Peak:
    """The peak of one step on the rank that needs the most: of the first and the last pipeline stage, unless a later stage
    is asked about.

    Raises:
        ValueError: the model has no dimensions.
    """
    if not (setup.model.hidden and setup.model.layers):
        raise ValueError(f"the dimensions of {setup.model.name or 'the model'} are not known: no hidden size or layers")
    stages = {setup.parallel.pipeline_stage}
    if setup.parallel.pp > 1 and not setup.parallel.pipeline_stage:
        stages.add(setup.parallel.pp - 1)
    return max((_peak(setup.but(pipeline_stage=stage)) for stage in sorted(stages)), key=lambda found: found.allocated)


def _peak(setup: Setup) -> Peak:
    d = dims(setup)
    found = step(d)
    sums = {name: _whole(by) for name, by in found.phases.items()}
    worst = max(sums, key=lambda name: sum(sums[name].values()))
    allocated = sum(sums[worst].values())
    highest: dict[str, int] = {}
    for name, by in sums.items():
        public = NAMES.get(name, name)
        highest[public] = max(highest.get(public, 0), sum(by.values()))
    plenty, least = reserved(d, found.blocks, allocated)
    notes = [f"of pipeline stage {setup.parallel.pipeline_stage}"] if setup.parallel.pp > 1 else []
    return Peak(
        tier="formula",
        allocated=allocated,
        reserved=int(plenty),
        least=int(least),
        breakdown={name: size for name, size in sums[worst].items() if size},
        operation=OPERATIONS[worst],
        phases=highest,
        sources=SOURCES,
        notes=tuple(notes),
    )


def _whole(by: dict[str, Number]) -> dict[str, int]:
    return {name: round(float(by.get(name, 0))) for name in CATEGORIES}


def peak_bytes(setup: Setup, **arrays: Number) -> Number:
    """Peak of allocated bytes for arrays of configurations that share the kinds of ``setup``.

    ``arrays`` replace counts of the setup (``seq``, ``micro_batch``, ``accumulation``, ``dp``, ``tp``, ``pp``, ``vpp``, ``cp``, ``ep``,
    ``replicas``, ``pipeline_stage``) and must broadcast; returns their broadcast shape.
    """
    totals = [sum(by.values()) for by in step(dims(setup, **arrays)).phases.values()]
    return np.maximum.reduce(np.broadcast_arrays(*totals))
