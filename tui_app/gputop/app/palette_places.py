"""Where the command palette can go besides actions: the findings, ranks and other runs, by name."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

from textual.app import SystemCommand

from gputop.app.source import Source
from gputop.feed.snapshot import Snapshot
from gputop.render.rows import shorten

MAX_RANKS = 1024
MAX_RUNS = 30
"""The newest of them."""


class Opens(Protocol):
    """What goes there: the app."""

    def open_finding(self, index: int) -> None:
        """Show the evidence of a finding by its place in the list."""
        ...

    def open_rank(self, rank: int) -> None:
        """Show one rank among all."""
        ...

    def compare_with(self, other: Path) -> None:
        """Show this run beside another one."""
        ...

    def show_recorded_stacks(self) -> None:
        """Show the newest stacks of the record."""
        ...

    def open_run(self, run_dir: Path) -> None:
        """Show another run in place of this one."""
        ...


def findings(app: Opens, snapshot: Snapshot | None) -> Iterator[SystemCommand]:
    """Findings in their order, the first ones of the palette."""
    for index, finding in enumerate(snapshot.findings if snapshot is not None else ()):
        title = f"Finding {finding.id}: {shorten(finding.title, 70)}"
        yield SystemCommand(title, finding.fix, partial(app.open_finding, index))


def places(
    app: Opens, source: Source, snapshot: Snapshot | None, listens: bool
) -> Iterator[SystemCommand]:
    """Ranks; then the runs that can be opened in place of this one, which are not listed before
    something is searched: they would bury the keys.

    Where a training ``listens`` it is asked for its stacks, else those in the record are offered.
    """
    if snapshot is not None:
        if not listens and any(n.kind == "stack_dump" for n in snapshot.notices):
            words = "Where every rank's threads stood when they were last asked."
            yield SystemCommand("Recorded stacks", words, app.show_recorded_stacks)
        for rank in snapshot.summary.ranks[:MAX_RANKS]:
            words = f"Every figure of rank {rank.rank} on {rank.host}."
            yield SystemCommand(f"Rank {rank.rank}", words, partial(app.open_rank, rank.rank))
    from gputop_probes.runs import newest_runs

    for run in newest_runs(MAX_RUNS):
        if run.path == source.run_dir:
            continue
        command = shorten(" ".join(run.command), 70)
        if source.mode != "live":
            words = f"Replay it in place of this one: {command}"
            open_it = partial(app.open_run, run.path)
            yield SystemCommand(f"Run {run.name}", words, open_it, discover=False)
        words = f"What differs between this run and that one: {command}"
        title = f"Compare with {run.name}"
        compare = partial(app.compare_with, run.path)
        yield SystemCommand(title, words, compare, discover=False)
