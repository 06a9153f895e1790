"""What surely mends a finding in a script's text: ``lint/mends.py`` makes the edit."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class ByRule(NamedTuple):
    """The edit of a lint rule, at the finding's line or where the script alone has it."""

    rule: str


class ByArguments(NamedTuple):
    """Arguments of one call, at the finding's line or the only one of its name in the script.

    Keys are keywords, or positions from 0.
    """

    call: str
    """Full name: ``torch.utils.data.DataLoader``."""
    gives: Mapping[str | int, object]
    """Values that the arguments get."""
    drops: tuple[str, ...] = ()
    """Keywords that are taken out."""
    had: Mapping[str | int, object] = MappingProxyType({})
    """Values that the call must have, written out or by torch's default, to be the one meant."""


Mend = ByRule | ByArguments
DATA_LOADER = "torch.utils.data.DataLoader"
DDP = "torch.nn.parallel.DistributedDataParallel"
