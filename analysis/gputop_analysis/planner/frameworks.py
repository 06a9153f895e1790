"""Training frameworks and what each does that costs time or memory: rows of data/frameworks.csv."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from gputop_analysis.data import table
from gputop_analysis.planner.job import FrameworkHabits, Job
from gputop_analysis.vram.setup import KEEP_MASTER_WEIGHTS

IN_16_BITS = "fsdp"
"""What trains weights of 16 bits where no framework is named."""
_YEAR = re.compile(r"20\d\d\b(?!\.)")


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework, from one release on where ``release`` says so."""

    name: str
    release: str
    """Where it begins, in each way of counting: NeMo ``2``, in containers ``25`` (as 25.04)."""
    recipe: str
    """Of the memory estimate (``gputop_analysis.vram.setup.RECIPES``)."""
    zero: int
    """What is sharded unless it is told: the stage of ZeRO."""
    sequence_parallel: bool
    """Whether tensor parallelism comes with sequence parallelism."""
    splits: tuple[str, ...]
    """Degrees that it can be given besides data parallelism: ``tp``, ``pp``, ``cp``, ``ep``."""
    habits: FrameworkHabits
    words: str
    """Regular expression of what logs and tables call it."""
    source: str


@cache
def frameworks() -> tuple[Framework, ...]:
    """All rows, in the order in which texts are matched."""
    return tuple(_framework(row) for row in table("frameworks.csv"))


def named(text: str) -> Framework:
    """The framework that a user names: ``nemo``, ``nemo==2`` for a release, ``megatron==2021`` for
    that of a year, or as logs write it: ``Megatron-Core v0.9``.

    Raises:
        LookupError: there is none of that name, or not that release; the message lists them.
    """
    name, _, release = text.strip().lower().partition("==")
    rows = [row for row in frameworks() if row.name == name]
    if not rows and (written := of_text(text)):
        return written
    if not rows:
        names = ", ".join(dict.fromkeys(row.name for row in frameworks()))
        raise LookupError(f"no framework is called {text!r}; there are {names}")
    plain = next((row for row in rows if not row.release), rows[-1])
    if not release:
        return plain
    if _YEAR.match(release):
        of_year = next(row for row in rows if re.search(row.words, f"{name} {release}"))
        return of_year if of_year.release else plain
    wanted = _number(release)
    if wanted is None:
        return _exactly(rows, release)
    begun = [(start, row) for row in rows for start in _starts(row) if start <= wanted]
    return max(begun, key=lambda begin: begin[0], default=(0.0, plain))[1]


def _exactly(rows: list[Framework], release: str) -> Framework:
    """The row of a release that is no number."""
    for row in rows:
        if row.release == release:
            return row
    releases = ", ".join(word for row in rows for word in row.release.split()) or "none apart"
    raise LookupError(f"{rows[0].name} has no release {release!r}; told apart: {releases}")


def in_16_bits(job: Job) -> Job:
    """A job with weights, gradients and moments in 16 bits, without an fp32 copy, as a model trains
    that was made or loaded so.

    Raises:
        ValueError: what trains has no such way; the message says why.
    """
    if job.dtype == "fp32":
        raise ValueError("products in fp32 need weights in fp32")
    if job.trainable_share < 1:
        raise ValueError("adapters are trained over weights of 16 bits already")
    framework = named(job.framework or IN_16_BITS)
    if framework.recipe in KEEP_MASTER_WEIGHTS:
        raise ValueError(f"{framework.name} keeps an fp32 copy of the weights; fsdp need not")
    if not job.framework:
        job = job.of_framework(framework.name, framework.recipe, framework.habits)
    return job.but(master_weights=False, gradient_bytes=2)


def stages_of(framework: Framework) -> tuple[int, ...]:
    """Stages of ZeRO that are tried with it (3 is FSDP)."""
    if framework.name == "deepspeed":
        return (1, 2, 3)
    return (3,) if framework.zero == 3 else (0, 1)


def of_text(text: str) -> Framework | None:
    """The framework that free text means: the first row whose words are in it."""
    lowered = text.lower()
    return next((row for row in frameworks() if re.search(row.words, lowered)), None)


def _starts(row: Framework) -> list[float]:
    return [start for word in row.release.split() if (start := _number(word)) is not None]


def _number(release: str) -> float | None:
    """The leading number of a release, as 2.7 of ``2.7.1``."""
    match = re.match(r"\d+(?:\.\d+)?", release)
    return float(match[0]) if match else None


def _framework(row: dict[str, str]) -> Framework:
    changes = dict(word.split("=", 1) for word in row["habits"].split(";") if word)
    kinds = {name: type(getattr(FrameworkHabits(), name)) for name in changes}
    values: dict[str, Any] = {name: _plain(kinds[name], text) for name, text in changes.items()}
    return Framework(
        name=row["name"],
        release=row["release"],
        recipe=row["recipe"],
        zero=int(row["zero"]),
        sequence_parallel=row["sequence_parallel"] == "1",
        splits=tuple(row["splits"].split()),
        habits=FrameworkHabits(**values),
        words=row["words"],
        source=row["source"],
    )


def _plain(kind: type, text: str) -> Any:
    return text == "1" if kind is bool else kind(text)
