"""The catalog's entry of a name that the user gave; what it leaves open goes to stderr."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from gputop.cli.errors import CliError
from gputop.cli.notices import notice

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
        notice(match.note)
    return match


def refuse_two_names(gpu: str, gpus: str) -> NoReturn:
    """``--gpu A100 --gpus 2xH100``.

    Raises:
        CliError: always.
    """
    raise CliError(f"--gpu {gpu!r} and --gpus {gpus!r} both name a GPU: leave one out")


def refuse_two_counts(gpu: str | None, named: int, gpus: int) -> None:
    """``--gpu 8xA100 --gpus 4``; a name alone says one.

    Raises:
        CliError: the name says another number of GPUs than ``--gpus``.
    """
    if named not in (1, gpus):
        raise CliError(f"--gpu {gpu!r} says {named} GPUs, --gpus {gpus}: leave one out")


def refuse_uneven(gpus: int, nodes: int | None) -> None:
    """``--gpus 12 --nodes 8``.

    Raises:
        CliError: the GPUs do not lie evenly over the nodes.
    """
    if nodes is not None and (nodes < 1 or gpus % nodes):
        raise CliError(
            f"{gpus} GPUs do not divide over {nodes} nodes: give --gpus as a multiple of --nodes"
        )


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
        notice(note)
    return shape
