"""Whether a configuration fits on a GPU: by the file or command, and the user's additions."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gputop.cli.fit.estimate_options import given
from gputop.cli.named import gpu_named
from gputop_analysis.units import GIB

if TYPE_CHECKING:
    from gputop_analysis.launch.problems import Problem
    from gputop_analysis.vram.estimate import Estimate
    from gputop_analysis.vram.setup import ModelShape

TIGHT = 0.10
"""Of the memory; with less to spare an estimate's error decides."""


def memory_of_text(
    text: str, name: str, options: argparse.Namespace
) -> tuple[list[Problem], dict[str, Any] | None]:
    """Problems and figures of a configuration file."""
    from gputop_analysis.launch import memory

    try:
        values = memory.of_text(text, name, options.gpus)
    except ValueError as error:
        return _not_checked(str(error))
    return _checked(None, values, options)


def memory_of_command(
    words: list[str], world: int | None, options: argparse.Namespace
) -> tuple[list[Problem], Any]:
    """The same of a command; one that is not Megatron-LM's says nothing of its memory."""
    from gputop_analysis.launch import memory

    shape, values = memory.of_megatron(words, world)
    if shape is None and not options.model:
        return _not_checked(
            "the command does not tell the whole model (--vocab-size is needed): give --model"
        )
    return _checked(shape, values, options)


def _checked(
    shape: ModelShape | None, values: Mapping[str, Any], options: argparse.Namespace
) -> tuple[list[Problem], dict[str, Any] | None]:
    from gputop.cli.named import model_of
    from gputop_analysis.vram.options import setup_of

    model = model_of(options.model) if options.model else shape
    if model is None:
        return _not_checked("the file does not tell the model: give --model")
    values_ = {**values, **given(options)}
    if "micro_batch" not in values_:
        return _not_checked("the file leaves the micro-batch to the script: give --micro-batch")
    try:
        setup = setup_of(model, values_)
        largest = max(
            (_estimate(setup.but(pipeline_stage=stage), options.gpu) for stage in _ends(setup)),
            key=_total,
        )
    except (ValueError, LookupError) as error:
        return _not_checked(str(error))
    return _judged(largest, options.gpu)


def _ends(setup: Any) -> tuple[int, ...]:
    return (0, setup.parallel.pp - 1) if setup.parallel.pp > 1 else (0,)


def _estimate(setup: Any, gpu: str) -> Estimate:
    from gputop.api import answer

    return answer(setup, gpu=gpu, advice=False)


def _total(estimate: Estimate) -> int:
    return estimate.device_total


def _judged(estimate: Estimate, gpu: str) -> tuple[list[Problem], dict[str, Any]]:
    from gputop_analysis.launch.problems import error, warning
    from gputop_analysis.vram.fits import usable

    spec = gpu_named(gpu)
    total, room = estimate.device_total / GIB, usable(spec, estimate.setup) / GIB
    data = {
        "gpu": spec.name,
        "device_total_gib": total,
        "usable_gib": room,
        "headroom_gib": room - total,
        "fits": bool(estimate.runs_in_capacity),
        "tier": estimate.peak.tier,
        "model": estimate.setup.model.name,
        "micro_batch": estimate.setup.micro_batch,
        "seq": estimate.setup.seq,
    }
    sizes = (
        f"{total:.1f} of {room:.1f} GiB on {spec.name} ({estimate.setup.micro_batch} x "
        f"{estimate.setup.seq} tokens)"
    )
    if not data["fits"]:
        largest = max(
            estimate.peak.breakdown, key=lambda name: estimate.peak.breakdown[name]
        ).replace("_", " ")
        return [error("memory", f"needs {sizes}: does not fit, most of it {largest}")], data
    if total > (1 - TIGHT) * room:
        return [
            warning("memory", f"needs {sizes}: tight, the estimate may miss by as much as is left")
        ], data
    return [], data


def _not_checked(why: str) -> tuple[list[Problem], None]:
    from gputop_analysis.launch.problems import warning

    return [warning("memory", f"not checked: {why}")], None
