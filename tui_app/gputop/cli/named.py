"""What the catalog calls by a name that the user gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop.cli.errors import CliError

if TYPE_CHECKING:
    from gputop_analysis.catalog.gpus import GpuSpec


def gpu_named(name: str) -> GpuSpec:
    """The GPU of that name or alias.

    Raises:
        CliError: none has it; with the nearest names.
    """
    from gputop_analysis.catalog import gpu

    try:
        return gpu(name)
    except LookupError as error:
        raise CliError(error.args[0]) from None
