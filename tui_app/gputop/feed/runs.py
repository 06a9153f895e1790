"""The screen of runs as plain data: the runs, a filter, marks, what is read of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gputop_analysis.overview import Health
    from gputop_probes.runs import RunInfo

MOST_MARKED = 2
FOREIGN = "foreign"
"""State of a directory that stands among the runs and is no record."""


_READ: dict[Path, tuple[RunInfo, Figures]] = {}
"""What was read already, with the run as it was then: who comes back to the list need not wait."""


class Figures(NamedTuple):
    """What a record says of its run."""

    step_ms: float
    """Median time of a step; NaN where there was none."""
    health: Health | None
    """None where the record cannot be read."""
    headline: str
    """The verdict in one line, or why there is none."""
    fix: str = ""
    """Of the first finding above ``info``."""


class RunRow(NamedTuple):
    """One line of the screen."""

    run: RunInfo
    figures: Figures | None = None
    """None while they were not read."""
    fresh: bool = False
    """Whether they are of the run as it is."""

    @property
    def path(self) -> Path:
        return self.run.path

    @property
    def readable(self) -> bool:
        """Whether it can be opened."""
        broken = self.figures is not None and self.figures.health is None
        return self.run.state not in ("damaged", FOREIGN) and not broken

    @property
    def words(self) -> str:
        """All that a filter looks at, in lower case."""
        run = self.run
        parts = [run.name, run.given_name, state_of(run), *run.command]
        if self.figures is not None:
            parts.append(self.figures.headline)
        return " ".join(parts).lower()


@dataclass(frozen=True, slots=True)
class RunsView:
    """Which runs are seen, and which of them are marked; the newest stands first."""

    everything: tuple[RunRow, ...] = ()
    filter: str = ""
    marked: tuple[Path, ...] = ()
    listed: bool = False
    """Whether the directory of runs was looked at yet."""

    @property
    def shown(self) -> list[RunRow]:
        """Runs that have all the words of the filter."""
        words = self.filter.lower().split()
        return [row for row in self.everything if all(word in row.words for word in words)]

    def with_runs(self, runs: list[RunInfo]) -> RunsView:
        """As the directory is now; what was read of a run that has not moved since stays."""
        before = {row.path: row for row in self.everything}
        rows = []
        for run in runs:
            old = before.get(run.path)
            if old is None or old.run != run:
                old = RunRow(run, old.figures if old is not None else None)
            rows.append(old)
        paths = {run.path for run in runs}
        marked = tuple(path for path in self.marked if path in paths)
        return replace(self, everything=tuple(rows), marked=marked, listed=True)

    def with_figures(self, path: Path, figures: Figures) -> RunsView:
        """With what was read of one run."""
        rows = [
            row._replace(figures=figures, fresh=True) if row.path == path else row
            for row in self.everything
        ]
        return replace(self, everything=tuple(rows))

    def filtered(self, words: str) -> RunsView:
        """Only those with these words."""
        return replace(self, filter=words)

    def toggled(self, path: Path) -> RunsView:
        """With a mark set or taken away; the oldest mark goes where there are two."""
        remaining = tuple(other for other in self.marked if other != path)
        if len(remaining) == len(self.marked):
            remaining = (*remaining, path)[-MOST_MARKED:]
        return replace(self, marked=remaining)

    @property
    def letters(self) -> dict[Path, str]:
        """``A``, the baseline, and ``B`` by the marked run; one alone has a dot."""
        pair = self.pair(None)
        if pair is None:
            return dict.fromkeys(self.marked, "●")
        return dict(zip(pair, "AB", strict=True))

    def pair(self, chosen: Path | None) -> tuple[Path, Path] | None:
        """What is to be compared, the earlier run first: the two marked ones, or the marked one and
        the ``chosen`` one.
        """
        paths = list(self.marked)
        if len(paths) == 1 and chosen is not None and chosen not in paths:
            paths.append(chosen)
        if len(paths) != MOST_MARKED:
            return None
        started = {row.path: row.run.started_ns for row in self.everything}
        first, second = sorted(paths, key=lambda path: started.get(path, 0))
        return first, second


def by_time(a: Path, b: Path) -> tuple[Path, Path]:
    """Both runs, the earlier first."""
    return (a, b) if _started_ns(a) <= _started_ns(b) else (b, a)


def _started_ns(path: Path) -> int:
    """When a run began; 0 where there is no record of one."""
    from gputop_probes.runs import read_run

    run = read_run(path)
    return run.started_ns if run else 0


def list_all() -> list[RunInfo]:
    """All runs, the newest first, then what else lies in the directory of runs."""
    from gputop_probes.runs import list_runs

    runs = list_runs()
    return [*runs, *_foreign({run.path for run in runs})]


def _foreign(records: set[Path]) -> list[RunInfo]:
    """Directories beside the runs that are no records."""
    from gputop_probes import locations
    from gputop_probes.record.plain import plain_line
    from gputop_probes.runs import RunInfo

    rows = []
    for root in (locations.runs_root(), *locations.fallback_roots()):
        try:
            folders = sorted(
                path for path in root.iterdir() if path not in records and path.is_dir()
            )
        except OSError:
            continue
        for path in folders:
            name = plain_line(path.name)
            rows.append(RunInfo(name, path, [], 0, None, FOREIGN, None, 0, 0))
    return rows


def read_figures(run: RunInfo) -> Figures:
    """Step time and verdict, as ``gputop open`` shows them; why not, where that cannot be told.

    Whatever a record holds, this answers.
    """
    if run.state == FOREIGN:
        return Figures(float("nan"), None, "not a record of gputop")
    before = _READ.get(run.path)
    if before is None or before[0] != run:
        before = _READ[run.path] = run, _read(run)
    return before[1]


def _read(run: RunInfo) -> Figures:
    from gputop_probes.record.head import RecordError

    try:
        return _judged(run.path)
    except RecordError as error:
        reason = f"{error}".replace(f"{run.path}/", "").replace(str(run.path), "it")
        return Figures(float("nan"), None, reason)
    except Exception as error:  # one bad record must not take the list away
        return Figures(float("nan"), None, f"cannot be read: {type(error).__name__}: {error}")


def _judged(path: Path) -> Figures:
    from gputop.feed.window import STEPS, short
    from gputop_analysis.findings import evaluate
    from gputop_analysis.summary import summarise
    from gputop_analysis.verdict import verdict
    from gputop_probes.record.reader import RunRecord

    record = RunRecord.open(path)
    window = None if short(record) else STEPS
    summary = summarise(record, window)
    live = summary.state in ("running", "starting")
    findings = evaluate(record, STEPS if live else window, live=live)
    serious = [finding for finding in findings if finding.severity != "info"]
    judged = verdict(summary, findings)
    fix = serious[0].fix if serious else ""
    return Figures(summary.step_time_p50_ms, judged.health, judged.headline, fix)


def state_of(run: RunInfo) -> str:
    """``running``, ``exit 0``, ``stopped``, ``SIGTERM``, ``lost``, ``damaged`` or ``foreign``."""
    if run.stopped_by:
        return "stopped" if run.stopped_by == "you" else run.stopped_by
    return run.state if run.exit_code is None else f"exit {run.exit_code}"
