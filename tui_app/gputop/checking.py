"""Two commands measured in turns on one machine: slices of a second, one runs while the other is
stopped.

Both are ordinary runs of gputop. A run that ends, or has run for a round, is started anew.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gputop_agent import wire
from gputop_probes.ending import read_json
from gputop_probes.launch import RunHandle, StartError, attach
from gputop_probes.record.reader import RecordError, RunRecord

SLICE_S = 0.5
STEPS_A_SLICE = 8
LONGEST_SLICE_S = 10.0
ROUND_S = 14.0
PAIRS_A_ROUND = 8
FEWEST_ROUNDS = 2
_STEADY_ROWS = 5
_START_S = 120.0
_FEWEST_ROWS = 2


class CheckError(Exception):
    """A command cannot be measured, and why."""


class Work(NamedTuple):
    """A command and where it runs."""

    words: list[str]
    cwd: Path


class Slice(NamedTuple):
    """One turn of one side, on the record's clock."""

    began_ns: int
    ended_ns: int


class Side:
    """One of the two commands, one process after the other."""

    def __init__(self, work: Work, folder: Path, name: str):
        self.work, self.name = work, name
        self._folder = folder
        self._count = 0
        self._offset_ns = 0
        self._handle: RunHandle | None = None
        self._front: subprocess.Popen[bytes] | None = None
        self._slices: list[Slice] = []

    @property
    def run_dir(self) -> Path:
        """Of the process that runs now."""
        return self._folder / f"{self.name}-{self._count}"

    def start(self) -> None:
        """Start a process, wait until its steps are steady, and stop it there.

        Raises:
            CheckError: it ended, or takes no steps.
        """
        self.end()
        self._count += 1
        self._slices = []
        words = [
            sys.executable,
            "-m",
            "gputop",
            "run",
            "--headless",
            "--run-dir",
            str(self.run_dir),
        ]
        with (self._folder / f"{self.name}.log").open("wb") as log:
            self._front = subprocess.Popen(
                [*words, "--", *self.work.words],
                cwd=self.work.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._await_steady()
        self._handle = attach(self.run_dir)
        state = read_json(self._handle.host_dir / "host.json")
        self._offset_ns = int(state.get("clock_offset_ns", 0))
        self._handle.suspend()

    def turn(self, seconds: float) -> bool:
        """Run for so long and stop again. Returns whether it is still there."""
        if self._handle is None or not self.runs():
            return False
        self._handle.resume()
        began_ns = time.monotonic_ns() + self._offset_ns
        time.sleep(seconds)
        self._handle.suspend()
        self._slices.append(Slice(began_ns, time.monotonic_ns() + self._offset_ns))
        return self.runs()

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

    def step_ms(self) -> list[float]:
        """Median step of each slice so far, in milliseconds; NaN where too few steps
        ended in it.
        """
        if self._handle is not None and self.runs():
            self._handle.resume()  # what the guest still holds is written
            time.sleep(0.25)
            self._handle.suspend()
        rows = _rows(self.run_dir)
        return [_median_ms(rows, part) for part in self._slices]

    def typical_s(self) -> float:
        """Median step in seconds."""
        rows = _rows(self.run_dir)
        return float(np.median(rows["wall_ns"] / rows["n_steps"])) / 1e9

    def end(self) -> None:
        """End its process, if there is one."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.kill()
        if self._front is not None:
            if handle is None and self._front.poll() is None:
                self._front.terminate()
            self._front.wait(20)
        self._front = None

    def _await_steady(self) -> None:
        deadline = time.monotonic() + _START_S
        while len(_rows(self.run_dir)) < _STEADY_ROWS:
            if not self.runs():
                raise CheckError(f"{self.name}: it ended before its steps were steady")
            if time.monotonic() > deadline:
                raise CheckError(f"{self.name}: no steady steps within {_START_S:.0f} s")
            time.sleep(0.05)

    def _last_words(self, code: int) -> str:
        log = (self._folder / f"{self.name}.log").read_text(errors="replace").splitlines()
        words = [line for line in log if line.strip() and not line.startswith("gputop:")]
        return f"exit code {code}: {(words or ['no output'])[-1][:200]}"


def rounds(a: Side, b: Side, until_s: float) -> Iterator[np.ndarray]:
    """Ratios B / A of the pairs of each round; who goes first changes.

    Args:
        a: the baseline.
        b: what is judged.
        until_s: monotonic time from which on no round is begun.
    """
    for order in itertools.cycle(((a, b), (b, a))):
        for side in order:
            side.start()
        yield _round(a, b)
        if time.monotonic() >= until_s:
            return


def _round(a: Side, b: Side) -> np.ndarray:
    seconds = min(LONGEST_SLICE_S, max(SLICE_S, STEPS_A_SLICE * max(a.typical_s(), b.typical_s())))
    ends = time.monotonic() + max(ROUND_S, PAIRS_A_ROUND * 2 * seconds)
    for first, second in itertools.cycle(((a, b), (b, a))):
        if not (first.turn(seconds) and second.turn(seconds)) or time.monotonic() >= ends:
            break
    pairs = np.array(list(zip(a.step_ms(), b.step_ms(), strict=False)), float).reshape(-1, 2)
    pairs = pairs[np.isfinite(pairs).all(1)]
    return pairs[:, 1] / pairs[:, 0]


def _rows(run_dir: Path) -> np.ndarray:
    """Steady records of the first rank; empty where there is none yet."""
    nothing = np.zeros(0, [("wall_ns", "i8"), ("n_steps", "i8"), ("t_end_ns", "i8")])
    try:
        record = RunRecord.open(run_dir)
        ranks = record.ranks()
        rows = record.steps(ranks[0]) if ranks else nothing
    except (RecordError, StartError, OSError):
        return nothing
    if not len(rows):
        return nothing
    return rows[(rows["flags"] & wire.F_UNSTEADY) == 0]


def _median_ms(rows: np.ndarray, part: Slice) -> float:
    """Of the records that lie in the slice; the first may have begun before it."""
    began_ns = rows["t_end_ns"] - rows["wall_ns"]
    inside = rows[(began_ns >= part.began_ns) & (rows["t_end_ns"] <= part.ended_ns)]
    if len(inside) < _FEWEST_ROWS:
        return float("nan")
    return float(np.median(inside["wall_ns"] / inside["n_steps"])) / 1e6
