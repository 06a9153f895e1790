"""The screen's knowledge at one moment. Plain values: widgets need no NumPy and record."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from gputop_analysis.overview import RunSummary, Verdict
from gputop_probes.record import layout

if TYPE_CHECKING:
    from gputop.feed.prediction import Prediction
    from gputop.output.progress_bar import ProgressBar
    from gputop_analysis.model import Finding


class Timeline(NamedTuple):
    """The last minutes in bins of equal length, newest last; NaN: no step was under way."""

    bin_s: float = 1.0
    phases_ms: tuple[tuple[float, ...], ...] = ()
    """Per bin: milliseconds a step of the ten phases, averaged over the ranks."""
    wait_ms: tuple[float, ...] = ()
    """Per bin: waiting for other ranks inside backward, a step; NaN where no timer tells."""
    steps: tuple[float, ...] = ()
    """Per bin: steps of one rank that lie in it; of a step that is longer, its part."""
    of_ranks: int = 0

    @property
    def step_ms(self) -> tuple[float, ...]:
        """Step time of each bin."""
        return tuple(sum(phases) for phases in self.phases_ms)

    @property
    def steps_per_s(self) -> tuple[float, ...]:
        """Speed in each bin."""
        return tuple(count / self.bin_s for count in self.steps)


class Useful(NamedTuple):
    """How much of the time is useful compute, and of the device's peak; NaN: unknown."""

    share: float = float("nan")
    mfu: float = float("nan")
    queued: float = 0.0
    """Waiting for a core, which ``share`` leaves out."""


class Curve(NamedTuple):
    """A value over the steps of the whole run, thinned."""

    steps: tuple[float, ...] = ()
    values: tuple[float, ...] = ()


class Track(NamedTuple):
    """One quantity over the run."""

    name: str
    unit: str
    values: tuple[float, ...]
    """At the times of ``Resources.t_s``."""
    top: float
    """Upper end of its scale; NaN: the largest value decides."""
    style: str


class Resources(NamedTuple):
    """What the run used of its machines over its whole length."""

    t_s: tuple[float, ...] = ()
    """Seconds since the first look at the machine."""
    tracks: tuple[Track, ...] = ()

    def newest(self, name: str) -> float:
        """The last value of a track; NaN where there is none."""
        return next((t.values[-1] for t in self.tracks if t.name == name), float("nan"))


class History(NamedTuple):
    """Short series for the meters, oldest first, one value a sample.

    Keys are ``gpu HOST INDEX`` and ``cpu HOST`` in percent, ``memory HOST INDEX`` in GiB, and
    ``rank RANK``: percent of one core.
    """

    series: Mapping[str, tuple[float, ...]] = MappingProxyType({})

    def of(self, key: str) -> tuple[float, ...]:
        """The series of that key, empty where there is none."""
        return self.series.get(key, ())


class Position(NamedTuple):
    """Where a replay stands."""

    at_ns: int
    start_ns: int
    end_ns: int
    speed: float
    playing: bool

    @property
    def share(self) -> float:
        """Of the recording, 0..1."""
        return (self.at_ns - self.start_ns) / max(1, self.end_ns - self.start_ns)


class Notice(NamedTuple):
    """What an agent sent on request, or nobody can miss: a stack dump, profile, exception."""

    t_ns: int
    kind: str
    rank: int | None
    body: dict[str, object]


class Snapshot(NamedTuple):
    """Everything the panels draw."""

    summary: RunSummary
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    timeline: Timeline = Timeline()
    useful: Useful = Useful()
    history: History = History()
    panels: Mapping[str, Any] = MappingProxyType({})
    """What the table of panels reads for one of them, by its id."""
    devices: Mapping[int, tuple[str, int]] = MappingProxyType({})
    """Rank -> host and NVML index of the GPU that it uses; ranks on a CPU are not in it."""
    name: str = ""
    run_dir: Path = Path()
    recording: str | None = None
    gpu_note: str = ""
    output_note: str = ""
    bar: ProgressBar | None = None
    """What the command's own progress bar says, where nothing tells how many steps it will be."""
    output_lengths: Mapping[str, int] | None = None
    """Bytes of each log, by path within the record, written at this moment; None: all."""
    damage: str = ""
    """What of the record was left out because it cannot be true; empty where nothing was."""
    position: Position | None = None
    hang: str = ""
    """What hangs, in words; empty while nothing does."""
    unread: bool = False
    """Whether nothing of the record has been read yet: what is not known is not missing."""
    problem: str = ""
    """Why the record could not be read this time; the rest is then what was last known."""
    notices: tuple[Notice, ...] = ()
    sequence: int = 0
    window_steps: int | None = None
    """Steps that the figures look back; None: all of the run."""
    prediction: Prediction | None = None
    """What was estimated for this run; None while it is not known what is trained."""
    page: object | None = None
    """What the screen above the main one asked for (``feed.pages``); None: none, or unread."""

    @property
    def unreadable(self) -> bool:
        """Whether nothing of the record has been read, and why is known."""
        return self.unread and bool(self.problem)

    @property
    def averaged_steps(self) -> str:
        """Of which steps the means are: ``last 1,000`` or ``steps 11+``."""
        run = self.summary
        if self.window_steps is not None and run.steps > self.window_steps + run.steps_left_out:
            return f"last {self.window_steps:,}"
        if run.steps_left_out:
            return f"steps {run.steps_left_out + 1}+"
        return "all steps"

    @property
    def ended(self) -> bool:
        """Whether the command has ended as far as this snapshot knows."""
        return self.summary.state in ("ended", "lost")


def empty_summary(
    command: tuple[str, ...] = (), now_ns: int = 0, started_ns: int = 0
) -> RunSummary:
    """A run of which nothing is known yet but its command."""
    nan = float("nan")
    return RunSummary(
        command=command,
        state="starting",
        exit_code=None,
        started_ns=started_ns or now_ns,
        ended_ns=None,
        now_ns=now_ns,
        world_size=0,
        steps=0,
        total_steps=None,
        steps_per_s=nan,
        samples_per_s=nan,
        tokens_per_s=nan,
        step_time_p50_ms=nan,
        step_time_p95_ms=nan,
        phases=(),
        ranks=(),
        gpus=(),
        hosts=(),
        context={},
    )


def first_snapshot(run_dir: Path, now_ns: int = 0) -> Snapshot:
    """What can be said before the record is mapped: the command, read from ``run.json`` alone.
    Never raises.

    Args:
        run_dir: the record.
        now_ns: the moment that is shown, for a run that goes on; a replay shows its beginning.
    """
    from gputop_probes.record import files, schema
    from gputop_probes.record.fields import Tally

    head: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        head = schema.manifest(files.read_json(run_dir / layout.MANIFEST_FILE), Tally())
    command, started = tuple(head.get("command", ())), head.get("created_ns", now_ns)
    return Snapshot(
        summary=empty_summary(command, max(now_ns, started), started),
        verdict=Verdict("waiting", "opening the record"),
        name=head.get("name", ""),
        run_dir=run_dir,
        recording=head.get("recording"),
        unread=True,
    )
