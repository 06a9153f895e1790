"""The trace of the caller's ``nn.Module``, in its process: it may exist nowhere else."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gputop_analysis.vram.eventlog import EventLog
    from gputop_analysis.vram.setup import Setup

_NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def is_module(model: Any) -> bool:
    """Whether it is an ``nn.Module``; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def setup_of_module(model: Any, options: Mapping[str, Any]) -> Setup:
    """How a module is trained: in the types of its own weights, where the options name none.

    Raises:
        ValueError: an option that there is not, or of no use.
    """
    from gputop_analysis.vram.options import setup_of
    from gputop_analysis.vram.setup import ModelShape

    name = type(model).__name__
    kinds = {str(weight.dtype).rpartition(".")[2] for weight in model.parameters()}
    dtype_name = next((_NAMES[dtype] for dtype in kinds if dtype in _NAMES), "fp32")
    if options.get("dtype", dtype_name) != dtype_name and "weights" not in options:
        mixed = {"weights": dtype_name}
    else:
        mixed = {}
    return setup_of(ModelShape(name=name, source=name), {"dtype": dtype_name, **mixed, **options})


def trace_module(model: Any, inputs: Any, setup: Setup) -> EventLog:
    """The memory events of two steps of a module; neither it nor its values are touched.

    Args:
        model: an ``nn.Module``.
        inputs: what one call takes: a tensor, a tuple of arguments or a dict of named ones; None:
            by the names of ``forward``'s arguments.
        setup: how it is trained.

    Raises:
        ValueError: it cannot be traced; the message says why.
    """
    from gputop_analysis.vram.eventlog import ordered, parse
    from gputop_tracer import model_trace

    # it prints the traceback of what is told here in a line
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was, logger.disabled = logger.disabled, True
    try:
        tracker = model_trace.trace(asdict(setup), made_by=model, inputs=inputs)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"cannot trace the {type(model).__name__}: {reason}") from error
    finally:
        logger.disabled = was
    return ordered(parse(tracker.log.document(tracker.meta)))
