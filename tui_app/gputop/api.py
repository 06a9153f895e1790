"""``gputop.estimate(...)``: how much GPU memory a training needs, from Python."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gputop_analysis.vram.estimate import Estimate
    from gputop_analysis.vram.eventlog import EventLog
    from gputop_analysis.vram.setup import ModelShape, Setup


def estimate(
    model: Any,
    *,
    tier: str | None = None,
    gpu: str = "",
    python: str | None = None,
    calibrate: bool = True,
    inputs: Any = None,
    **options: Any,
) -> Estimate:
    """How much memory one GPU needs to train a model.

    Args:
        model: a name or path (see ``gputop.models.resolve``), a Hugging Face ``config`` or
            ``nn.Module`` that has one, any other ``nn.Module`` or ``module:factory``, which are
            traced, a ``ModelShape``, or a ``Setup``, from which ``options`` then differ.
        tier: ``trace`` (runs the real modules on fake tensors in ``python``), ``profile`` or
            ``formula``; None: the first of the last two that covers it.
        gpu: the GPU that the largest micro-batch is asked for, as ``"H100"``; the smallest that
            fits without.
        python: the interpreter that traces; this one by default.
        calibrate: whether to start from what runs of this model measured on this machine.
        inputs: what one call of an ``nn.Module`` takes (a tensor, a tuple of arguments, a dict of
            named ones), which is then traced in this process; without, the names of ``forward``'s
            arguments say it.
        **options: as on the command line, with underscores: ``seq=4096, lora_rank=16,
        sharding="fsdp2", dp=8``.

    Returns:
        The estimate; sizes are bytes, ``to_json()`` has them in GiB.

    Raises:
        LookupError: no such model or GPU; the message names the five nearest.
        ValueError: an option that there is not, or a combination that cannot be trained, with the
            rule.
    """
    from gputop.module_tracing import is_module, setup_of_module, trace_module
    from gputop_analysis.vram.idle import refuse
    from gputop_analysis.vram.options import setup_of
    from gputop_analysis.vram.setup import Setup

    if is_module(model) and (inputs is not None or not hasattr(model, "config")):
        if tier not in (None, "trace"):
            raise ValueError(
                f"a module is traced: the {tier} tier knows models by name or configuration only"
            )
        setup = setup_of_module(model, options)
        return answer(
            setup, "trace", gpu, calibrate=calibrate, log=trace_module(model, inputs, setup)
        )
    if is_factory(model):
        setup = setup_of(factory_shape(model), options)
        return answer(setup, "trace", gpu, python=python, calibrate=calibrate, factory=model)
    base = model if isinstance(model, Setup) else None
    setup = setup_of(base.model if base else shape_of(model), options, base)
    refuse(options, setup)
    return answer(setup, tier, gpu, python=python, calibrate=calibrate)


def answer(
    setup: Setup,
    tier: str | None = None,
    gpu: str = "",
    *,
    python: str | None = None,
    calibrate: bool = True,
    advice: bool = True,
    progress: Callable[[str], None] | None = None,
    factory: str = "",
    log: EventLog | None = None,
) -> Estimate:
    """A setup's estimate, calibrated by what was measured here; ``log``: its trace's events."""
    from gputop.calibration import recall
    from gputop.models import configuration
    from gputop_analysis import catalog
    from gputop_analysis.vram.fits import usable
    from gputop_analysis.vram.question import estimate
    from gputop_analysis.vram.rules import check

    check(setup)
    if tier is None and log is None and (is_undimensioned(setup.model) or setup.peft):
        tier = "trace"
    advice = advice and bool(setup.model.hidden)  # levers are estimated from the architecture
    if tier == "trace" and log is None:
        from gputop.tracing import trace

        log = trace(
            setup, python, config=configuration(setup.model), factory=factory, progress=progress
        )
    capacity = usable(catalog.gpu(gpu), setup) if gpu else None
    estimated = estimate(setup, tier, capacity, log=log, gpu=gpu, advice=advice)
    if estimated.peak.tier == "trace":
        from gputop_analysis.experimental import of_trace

        estimated = replace(estimated, notes=(*estimated.notes, *of_trace(setup.parallel)))
    records = recall() if calibrate else []
    if not records:
        return estimated
    from gputop_analysis.vram.recalibrated import recalibrated

    return recalibrated(estimated, records, gpu, advice)


def is_factory(model: Any) -> bool:
    """Whether a name is ``module:callable`` or ``file.py:callable``."""
    if not isinstance(model, str) or os.path.exists(model):  # unlike Path's: False for any text
        return False
    module, colon, name = model.rpartition(":")
    if not colon or not name.isidentifier():
        return False
    return os.path.isfile(module) or all(part.isidentifier() for part in module.split("."))


def is_undimensioned(model: ModelShape) -> bool:
    """Whether only a trace can answer for a model, by its configuration."""
    from gputop.models import configuration

    return not model.hidden and bool(configuration(model))


def factory_shape(name: str) -> ModelShape:
    """What is known of a model that only a trace can tell: its name."""
    from gputop_analysis.vram.setup import ModelShape

    return ModelShape(name=name, source=name)


def shape_of(model: Any) -> ModelShape:
    """The architecture of what the caller has: a name, a path, a module, a configuration or a
    shape.

    Raises:
        LookupError: no model of that name.
        ValueError: an object that has no configuration.
    """
    from gputop_analysis import catalog
    from gputop_analysis.vram.setup import ModelShape

    if isinstance(model, ModelShape):
        return model
    if isinstance(model, (str, Path)):
        from gputop.models import resolved

        return resolved(str(model), traces=True)[0]
    config = getattr(model, "config", model)
    fields = config.to_dict() if hasattr(config, "to_dict") else config
    if not isinstance(fields, dict):
        raise ValueError(
            f"an object of type {type(model).__name__} is no model: give a name, a path, "
            "module:factory, an nn.Module or a Hugging Face `config`; or trace the script that "
            "trains it with `gputop estimate train.py`"
        )
    return catalog.shape_from_config(fields)
