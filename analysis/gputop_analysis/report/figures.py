"""Every number of the report: what it means, where it comes from, how much was read for it.

``gputop report RUN --explain NAME`` prints one of them. The names are the paths of ``--json``, with
dots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gputop_analysis.report.build import Report
from gputop_analysis.report.data import as_data
from gputop_analysis.report.definitions import DEFINITIONS, Definition
from gputop_analysis.text import counted


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of one run's report."""

    name: str
    """``ranks.0.wait_mean_ms``: a rank by its number, a GPU by its index."""
    value: float | None
    """None: not measured."""
    unit: str
    definition: str
    source: str
    """Columns and events of the record."""
    read: str
    """Amount of them that was read."""


def figures(report: Report) -> list[Figure]:
    """All numbers of a report in the order of ``--json``, but findings', which have proofs."""
    numbers_read = []
    for name, value in numbers(as_data(report)):
        if (meaning := definition(name)) is not None:
            numbers_read.append(
                Figure(
                    name,
                    value,
                    unit=meaning.unit,
                    definition=meaning.text,
                    source=meaning.source,
                    read=_read(report, name, meaning),
                )
            )
    return numbers_read


def numbers(data: dict[str, Any]) -> Iterator[tuple[str, float | None]]:
    """Names and values of the numbers in ``as_data``, without findings, spikes and machine."""
    for key, value in data.items():
        if key in ("ranks", "gpus"):
            for item in value:
                number = item["rank" if key == "ranks" else "index"]
                yield from _leaves(item, f"{key}.{number}")
        elif key not in ("findings", "context", "command", "baseline", "trace"):
            yield from _leaves(value, key)


def definition(name: str) -> Definition | None:
    """The definition of a dotted name: a rank, GPU, part or phase stands for any."""
    parts = name.split(".")
    if parts[0] in ("ranks", "gpus"):
        parts[1] = "*"
    if parts[:2] == ["startup", "parts"]:
        parts[2] = "*"
    if len(parts) > 1 and parts[-2] == "phases_mean_ms":
        parts[-1] = "*"
    return DEFINITIONS.get(".".join(parts))


def _leaves(value: Any, name: str) -> Iterator[tuple[str, float | None]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key != "spikes":  # each says itself at which step it is
                yield from _leaves(item, f"{name}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{name}.{index}")
    elif value is None:
        if definition(name) is not None:
            yield name, None
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield name, value


def _read(report: Report, name: str, meaning: Definition) -> str:
    if meaning.table != "steps":
        return meaning.table
    parts = name.split(".")
    if parts[0] == "ranks":
        ranks = [int(parts[1])]
    else:
        ranks = report.view.ranks
    records = sum(len(report.view.per_rank[rank].rows) for rank in ranks)
    recorded = sum(len(report.record.steps(rank)) for rank in ranks)
    steps = sum(report.view.per_rank[rank].total_steps() for rank in ranks)
    of = ""
    if records < recorded:
        of = f", evenly spread blocks of {recorded:,}"
    if len(ranks) == 1:
        whose = f"rank {ranks[0]}"
    else:
        whose = counted(len(ranks), "rank")
    return f"{counted(records, 'record')} for {counted(steps, 'step')}, {whose}{of}"
