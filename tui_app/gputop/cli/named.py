"""The catalog's entry of a name that the user gave; what it leaves open goes to stderr."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from gputop.cli.errors import CliError

if TYPE_CHECKING:
    from gputop_analysis.catalog import GpuMatch, GpuSpec
    from gputop_analysis.vram.setup import ModelShape


def gpu_named(name: str) -> GpuSpec:
    """The GPU that a name means.

    Raises:
        CliError: none has it; with the nearest names.
    """
    return gpus_named(name).spec


def gpus_named(name: str) -> GpuMatch:
    """The GPU that a name means, and how many the name says, as the 8 of ``8xA100``.

    Raises:
        CliError: none has it; with the nearest names.
    """
    from gputop_analysis.catalog import match_gpu

    _refuse_a_size(name)
    try:
        match = match_gpu(name)
    except LookupError as error:
        raise CliError(error.args[0]) from None
    if match.note:
        print(f"gputop: {match.note}", file=sys.stderr)
    return match


def _refuse_a_size(name: str) -> None:
    """``24GB``: a size of memory names no GPU.

    Raises:
        CliError: it is one; with GPUs that have so much.
    """
    size = re.fullmatch(r"\s*(\d+)\s*(?:g|gb|gib)\s*", name.lower())
    if size is None:
        return
    from gputop_analysis.catalog import gpus

    having = [spec.name for spec in gpus() if round(spec.memory_gb) == int(size[1])]
    like = f": {', '.join(having[:6])}" if having else ", and no GPU of the catalog has so much"
    raise CliError(f"{name.strip()} is a size of memory, no GPU{like}")


def model_of(name: str, traces: bool = False) -> ModelShape:
    """The architecture of the model that the user named; with ``traces`` also one that only a trace
    can answer for.

    Raises:
        CliError: there is none, or its configuration is of no use.
    """
    from gputop.models import resolved

    try:
        shape, note = resolved(name, traces)
    except (LookupError, ValueError) as error:
        raise CliError(str(error)) from None
    if note:
        print(f"gputop: {note}", file=sys.stderr)
    return shape
