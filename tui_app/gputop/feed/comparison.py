"""Two runs compared, as plain data for a screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gputop.feed.plots import Trouble

if TYPE_CHECKING:
    from gputop_analysis.diff import Diff


class RunSide(NamedTuple):
    """One of both runs."""

    name: str
    """Of its directory: several runs may be given the same name."""
    command: str


class ComparedRuns(NamedTuple):
    """The comparison, and the runs A and B."""

    diff: Diff
    sides: tuple[RunSide, RunSide]


def read_comparison(a: Path, b: Path) -> ComparedRuns | Trouble:
    """Compare run ``b`` with the baseline ``a``, as ``gputop diff`` does; why not, where they
    cannot be compared. Takes seconds for long runs.
    """
    from gputop_analysis.changed_findings import with_findings
    from gputop_analysis.diff import compare
    from gputop_probes.record.reader import RecordError, RunRecord

    try:
        records = [RunRecord.open(path) for path in (a, b)]
        for record in records:
            if not record.ranks():
                return Trouble(
                    f"Run {record.name} has no training step: there is nothing to compare."
                )
        diff = with_findings(compare(records[0], records[1]), records[0], records[1])
    except RecordError as error:
        return Trouble(f"{error}")
    except Exception as error:  # the screen says so, and the app goes on
        return Trouble(f"They cannot be compared: {type(error).__name__}: {error}")
    first, second = (
        RunSide(record.path.name, " ".join(record.manifest.command)) for record in records
    )
    return ComparedRuns(diff, (first, second))
