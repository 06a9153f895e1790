"""The injected faults, in files by family. ``tests/faults`` runs them, ``bench/faults.py`` makes
the table.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """A training script with one fault in it, and the finding that must come."""

    id: str
    """Catalogue id of the finding."""
    name: str
    """The fault in words: ``a sleep in __getitem__``."""
    script: str
    """File in ``tests/faults/scripts``; its last line is ``{"truth_ms_per_step": ...}`` where the
    fault costs time.
    """
    environment: dict[str, object] = field(default_factory=dict)
    rank: int | None = 0
    """The rank that the finding must name; None: all of them."""
    site: str = ""
    """Regular expression that the finding's ``site`` must match."""
    title: str = ""
    """The same for its title."""
    absorbed: tuple[str, ...] = ()
    """Ids that the finding must have taken in."""
    also: tuple[str, ...] = ()
    """Other findings that are as true of this script."""
    exit_code: int = 0
    until: str | None = None
    """Stop the run once every rank has sent an event of this type."""
    severity: tuple[str, ...] = ("critical", "high", "medium")
    """What the finding's severity may be; with ``info`` for those that are never more."""
    alone: bool = False
    """Nothing else may run on the machine meanwhile: the fault is a lack of cores, or costs less
    time than the start of a neighbour takes from it.
    """
    baseline: bool = False
    """The script is run without the fault first, and the run with it is compared with that one."""
    suite: bool = True
    """Run by the tests too; the others are near kin of one that is, and run by ``bench/faults.py``
    only.
    """
    by_cores: bool = False
    """The finding promises no more than the cores can give: at most the truth, where the script
    tells what all of the wait is.
    """
    needs: str = ""
    """What the machine must give for this fault, ``root`` or ``cgroup``: see ``missing``."""

    @property
    def label(self) -> str:
        """Name of the test."""
        return f"{self.id}-{self.name.replace(' ', '_')}"


@dataclass(frozen=True)
class Clean:
    """A training that nothing is wrong with: no finding above info may come."""

    name: str
    script: str
    environment: dict[str, object] = field(default_factory=dict)
    suite: bool = True
    """Run by the tests too; the others are near kin of one that is, and run by ``bench/faults.py``
    only.
    """

    @property
    def label(self) -> str:
        """Name of the test."""
        return self.name.replace(" ", "_")


def _gather(name: str) -> list:
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [
        one
        for module in modules
        for one in getattr(importlib.import_module(f"{__name__}.{module}"), name, ())
    ]


def missing(case: Case) -> str:
    """Why the fault cannot be injected on this machine; empty where it can."""
    if case.needs and os.geteuid() != 0:
        return "only root can inject it"
    if case.needs == "cgroup" and not _writable_cgroup():
        return "no cgroup here that may be written"
    return ""


def _writable_cgroup() -> bool:
    """Whether a cgroup of its own can be made, in version 2 or 1."""
    roots = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu"))
    return any(os.access(root, os.W_OK) and (root / "cgroup.procs").exists() for root in roots)


def cases() -> list[Case]:
    """All faults, in the order of their files."""
    return _gather("CASES")


def clean_runs() -> list[Clean]:
    """All clean runs."""
    return _gather("CLEAN")
