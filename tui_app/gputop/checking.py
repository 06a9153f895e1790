"""Two commands measured in turns on one machine: one runs while the other is stopped.

Turns last half a second. Where both do nothing but compute on the CPU they last some steps' time,
and those of a second count together: what else the machine does at the time then meets both alike.

Both are ordinary runs of gputop. A run that ends, or has run for a round, is started anew. Beside
the clock the kernel's count of how long the training's thread waited for a core is read, which is
what other programs take from it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gputop_agent import wire
from gputop_probes import procfs
from gputop_probes.launch import RunHandle, StartError, attach
from gputop_probes.record import layout
from gputop_probes.record.files import json_or_empty
from gputop_probes.record.reader import RecordError, RunRecord

SLICE_S = 0.5
STEPS_A_SLICE = 8
TURN_S = 0.02
"""Of commands that never sleep: some steps, and short beside the time in which load changes."""
ONE_THREAD = 1.2
"""Times the training thread's CPU time, from which all threads' together are more than its own."""
NEVER_SLEEPS = 0.98
"""Of the time, from which share on CPU or waiting for one a thread does nothing else. A sleep or a
transfer goes on while its process is stopped: short turns would hide it.
"""
LONGEST_SLICE_S = 10.0
ROUND_S = 12.0
"""Starting both commands takes some five seconds: shorter rounds are mostly starts."""
SHORTEST_ROUND_S = 4.0
PAIRS_A_ROUND = 8
FEWEST_ROUNDS = 2
_STEADY_ROWS = 5
_START_S = 120.0
_FLUSH_S = 0.25
_STOPPED_S = 0.5
_END_S = 20.0


class CheckError(Exception):
    """A command cannot be measured, and why."""


class Work(NamedTuple):
    """A command and where it runs."""

    words: list[str]
    cwd: Path


class Moment(NamedTuple):
    """Of a process, at the start or the end of a slice."""

    t_ns: int
    """On the record's clock."""
    waited_ns: int
    """How long its first thread has waited for a core; -1: not known."""
    ran_ns: int = -1
    """How long that thread has had one."""
    cpu_ns: int = -1
    """How long all its threads together have had one."""


class Turn(NamedTuple):
    """One turn of one side."""

    began: Moment
    ended: Moment
    slice: int = 0
    """Turns of one slice count together; 0: before the first."""

    @property
    def wall_ns(self) -> int:
        """By the clock."""
        return self.ended.t_ns - self.began.t_ns

    @property
    def own_ns(self) -> float:
        """Without waits for a core; NaN: not known."""
        if min(self.began.waited_ns, self.ended.waited_ns) < 0:
            return float("nan")
        return self.wall_ns - (self.ended.waited_ns - self.began.waited_ns)

    @property
    def never_slept(self) -> bool:
        """Whether the thread had a core or waited for one all the time."""
        busy_ns = (
            self.ended.ran_ns - self.began.ran_ns + self.ended.waited_ns - self.began.waited_ns
        )
        return self.began.waited_ns >= 0 and busy_ns >= NEVER_SLEEPS * self.wall_ns


class Side:
    """One of the two commands, one process after the other."""

    def __init__(self, work: Work, folder: Path, name: str):
        self.work, self.name = work, name
        self._folder = folder
        self._count = 0
        self._offset_ns = 0
        self._pid = 0
        self._deadline = 0.0
        self._handle: RunHandle | None = None
        self._front: subprocess.Popen[bytes] | None = None
        self._turns: list[Turn] = []
        self._slice = 0
        self._pidfd: int | None = None
        """Of a single process that computes on the CPU: its number may pass to another one."""

    @property
    def run_dir(self) -> Path:
        """Of the process that runs now."""
        return self._folder / f"{self.name}-{self._count}"

    def start(self) -> None:
        """Start a process in place of the one before."""
        self.end()
        self._count += 1
        self._pid = 0
        words = [
            sys.executable,
            "-m",
            "gputop",
            "run",
            "--headless",
            "--run-dir",
            str(self.run_dir),
        ]
        self._deadline = time.monotonic() + _START_S
        self._turns = [Turn(Moment(time.time_ns(), -1), Moment(time.time_ns(), -1))]
        self._slice = 0
        with (self._folder / f"{self.name}.log").open("wb") as log:
            self._front = subprocess.Popen(
                [*words, "--", *self.work.words],
                cwd=self.work.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def is_ready(self) -> bool:
        """Whether its steps are steady; then it is stopped there.

        Raises:
            CheckError: it ended, or takes no steps.
        """
        if len(_steady(_rows(self.run_dir))) < _STEADY_ROWS:
            if not self.runs():
                raise CheckError(
                    f"{self.name}: it ended before its steps were steady: give it more steps"
                )
            if time.monotonic() > self._deadline:
                raise CheckError(f"{self.name}: no steady steps within {_START_S:.0f} s")
            return False
        self._handle = attach(self.run_dir)
        state = json_or_empty(self._handle.host_dir / layout.STATE_FILE)
        self._offset_ns = int(state.get("clock_offset_ns", 0))
        record = RunRecord.open(self.run_dir)
        hello = record.hello(record.ranks()[0]) or {}
        self._pid = int(hello.get("pid", 0))
        self._suspend()
        if hello.get("device") == "cpu" and self._handle.suspended == [self._pid]:
            with contextlib.suppress(OSError):  # an old kernel has none
                self._pidfd = os.pidfd_open(self._pid)
        self._turns = [self._turns[0]._replace(ended=self._moment())]
        return True

    def turn(self, seconds: float) -> bool:
        """Run for a slice of so long and stop again. Returns whether it is still there."""
        if self._handle is None or not self.runs():
            return False
        self._slice += 1
        self._handle.resume()
        began = self._moment()
        time.sleep(seconds)
        self._suspend()
        self._turns.append(Turn(began, self._moment(), self._slice))
        return self.runs()

    def can_turn_fast(self) -> bool:
        """Whether the last turn showed a single process that computes on the CPU all the time."""
        return self._pidfd is not None and self._turns[-1].never_slept

    def resume_stopped(self) -> None:
        """Let the recorder take its steps again; the process itself waits for its turn."""
        assert self._handle is not None
        self._handle.resume()
        self._send(signal.SIGSTOP)
        self._wait_until_stopped()

    def begin_slice(self) -> None:
        """Begin a slice of short turns."""
        self._slice += 1

    def pin(self, core: int) -> None:
        """Leave one core to all its threads."""
        with contextlib.suppress(OSError):  # it or a thread of it has ended meanwhile
            for thread in os.listdir(f"/proc/{self._pid}/task"):
                os.sched_setaffinity(int(thread), {core})

    def cores(self) -> list[int]:
        """Those that it may use, where one is all that it needs; else none."""
        began, ended = self._turns[-1].began, self._turns[-1].ended
        ran_ns = ended.ran_ns - began.ran_ns
        if ended.cpu_ns - began.cpu_ns > ONE_THREAD * ran_ns:
            return []
        return sorted(os.sched_getaffinity(self._pid))

    def turn_fast(self) -> None:
        """A short turn: the recorder is not told of what lies between two."""
        self._send(signal.SIGCONT)
        began = self._moment()
        time.sleep(TURN_S)
        self._send(signal.SIGSTOP)
        self._wait_until_stopped()
        self._turns.append(Turn(began, self._moment(), self._slice))

    def _send(self, number: int) -> None:
        assert self._pidfd is not None
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def _suspend(self) -> None:
        assert self._handle is not None
        self._handle.suspend()
        self._wait_until_stopped()

    def _wait_until_stopped(self) -> None:
        """On a busy machine that takes its time."""
        until = time.monotonic() + _STOPPED_S
        while time.monotonic() < until:
            stat = procfs.stat(self._pid)
            if stat is None or stat.state not in "RSD":
                return
            time.sleep(0.0003)

    def _moment(self) -> Moment:
        words = (procfs.read_bytes(f"/proc/{self._pid}/schedstat") or b"").split()
        ran_ns, waited_ns = (int(words[0]), int(words[1])) if len(words) == 3 else (-1, -1)
        stat = procfs.stat(self._pid)
        cpu_ns = stat.cpu_ticks * procfs.NS_PER_TICK if stat else -1
        return Moment(time.monotonic_ns() + self._offset_ns, waited_ns, ran_ns, cpu_ns)

    def runs(self) -> bool:
        """Whether its process lives.

        Raises:
            CheckError: it failed.
        """
        assert self._front is not None
        code = self._front.poll()
        if code:
            raise CheckError(f"{self.name}: {self._last_words(code)}")
        return code is None

    def step_ns(self) -> np.ndarray:
        """Mean step of each slice so far, by the clock and without waits for a core; NaN where it
        is not known. Shape (slices, 2).
        """
        count = len(self._turns)
        if self.runs():
            self.turn(_FLUSH_S)  # what the guest still holds is written
        steps = _steps_in(_rows(self.run_dir), self._turns)[1:count]
        turns = self._turns[1:count]
        slices = np.array([turn.slice - 1 for turn in turns], int)
        wall_ns = np.bincount(slices, [float(turn.wall_ns) for turn in turns])
        own_ns = np.bincount(slices, [float(turn.own_ns) for turn in turns])
        slice_steps = np.bincount(slices, np.array(steps, float))
        return np.stack([wall_ns, own_ns], 1) / slice_steps[:, None]

    def typical_s(self) -> float:
        """Median step in seconds."""
        rows = _steady(_rows(self.run_dir))
        return float(np.median(rows["wall_ns"] / rows["n_steps"])) / 1e9

    def kill(self) -> None:
        """Kill its process, if there is one, and do not wait for it."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.kill()
        elif self._front is not None and self._front.poll() is None:
            self._front.terminate()

    def end(self) -> None:
        """End its process, if there is one."""
        self.kill()
        if self._front is not None:
            try:
                self._front.wait(_END_S)
            except subprocess.TimeoutExpired:  # a machine too busy to end it in time
                self._front.kill()
        self._front = None

    def _last_words(self, code: int) -> str:
        log = (self._folder / f"{self.name}.log").read_text(errors="replace").splitlines()
        words = [line for line in log if line.strip() and not line.startswith("gputop:")]
        return f"exit code {code}: {(words or ['no output'])[-1][:200]}"


def rounds(a: Side, b: Side, until_s: float) -> Iterator[np.ndarray]:
    """Ratios B / A of the pairs of each round, by the clock and without waits for a core; who goes
    first changes.

    Args:
        a: the baseline.
        b: what is judged.
        until_s: monotonic time at which the last round ends; none is begun that would be too short
            for some pairs, were its start as long as the one before.
    """
    for count, order in enumerate(itertools.cycle(((a, b), (b, a))), 1):
        began_s = time.monotonic()
        for side in order:
            side.start()
        starting = list(order)
        while starting:
            time.sleep(0.05)
            starting = [side for side in starting if not side.is_ready()]
        start_s = time.monotonic() - began_s
        slice_s = _slice_s(*order)
        round_s = max(ROUND_S, PAIRS_A_ROUND * 2 * slice_s)
        if count > FEWEST_ROUNDS:
            round_s = min(round_s, until_s - time.monotonic())
        yield _round(*order, a, slice_s, round_s)
        least_s = start_s + max(SHORTEST_ROUND_S, 4 * slice_s)
        if time.monotonic() + least_s > until_s and count >= FEWEST_ROUNDS:
            return


def _slice_s(first: Side, second: Side) -> float:
    longest = max(first.typical_s(), second.typical_s())
    return min(LONGEST_SLICE_S, max(SLICE_S, STEPS_A_SLICE * longest))


def _round(first: Side, second: Side, a: Side, seconds: float, round_s: float) -> np.ndarray:
    ends = time.monotonic() + round_s
    for leading, following in itertools.cycle(((first, second), (second, first))):
        if not (leading.turn(seconds) and following.turn(seconds)) or time.monotonic() >= ends:
            break
        if leading.can_turn_fast() and following.can_turn_fast():
            _fast_turns(leading, following, seconds, ends)
            break
    times = {side: side.step_ns() for side in (first, second)}
    b = second if a is first else first
    count = min(len(times[a]), len(times[b]))
    ratios = times[b][:count] / times[a][:count]
    return ratios[np.isfinite(ratios[:, 0])]


def _fast_turns(first: Side, second: Side, seconds: float, ends: float) -> None:
    """Slices of short turns until the time is up or one of both ends."""
    sides = (first, second)
    for side in sides:
        side.resume_stopped()
    shared = [core for core in first.cores() if core in second.cores()]
    for core in itertools.cycle(shared or [None]):
        if time.monotonic() >= ends:
            return
        for side in sides:
            side.begin_slice()
            if core is not None:
                side.pin(core)
        for turn in range(math.ceil(seconds / TURN_S)):
            for side in sides if turn % 2 else reversed(sides):
                side.turn_fast()
        if not all(side.runs() for side in sides):
            return


def _rows(run_dir: Path) -> np.ndarray:
    """Records of the first rank; empty where there is none yet."""
    names = ("wall_ns", "n_steps", "t_end_ns", "step", "flags")
    nothing = np.zeros(0, [(name, "i8") for name in names])
    try:
        record = RunRecord.open(run_dir)
        ranks = record.ranks()
        return record.steps(ranks[0]) if ranks else nothing
    except (RecordError, StartError, OSError):
        return nothing


def _steady(rows: np.ndarray) -> np.ndarray:
    return rows[(rows["flags"] & wire.F_UNSTEADY) == 0]


def _steps_in(rows: np.ndarray, turns: list[Turn]) -> np.ndarray:
    """How many steps each turn did, the parts of steps at its ends too; NaN where that is not
    known, or where gputop itself was at work. Time in which the process was stopped counts as none.
    """
    edges = np.array([(turn.began.t_ns, turn.ended.t_ns) for turn in turns])
    lengths = edges[:, 1] - edges[:, 0]
    until = np.cumsum(lengths)
    active = np.stack([until - lengths, until], 1)
    if not len(rows):
        return np.full(len(turns), np.nan)
    rows = rows[rows["t_end_ns"] <= edges[-1, 1]]
    ends = np.interp(rows["t_end_ns"], edges.ravel(), active.ravel())
    done = np.interp(active, ends, rows["step"].astype(float) + 1, left=np.nan, right=np.nan)
    ours = ends[(rows["flags"] & (wire.F_AGENT | wire.F_FIRST)) != 0]
    free = np.searchsorted(ours, active[:, 0]) == np.searchsorted(ours, active[:, 1])
    return np.where(free, done[:, 1] - done[:, 0], np.nan)
