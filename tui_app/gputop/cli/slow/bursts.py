"""Profiles of a few steps of a running training: asked for, waited for, printed."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputop.cli.errors import CliError
from gputop.cli.notices import notice

if TYPE_CHECKING:
    from gputop_analysis.traces.model import Lane
    from gputop_probes.record.reader import RunRecord

STEADY_STEPS = 10
_FIRST_LOOK_S = 1.0
_POLL_S = 0.5


def ask(run_dir: Path, steps: int, rank: int | None = None) -> int:
    """Ask the ranks of a run for a profile of their next steps.

    Returns:
        How many ranks were reached.

    Raises:
        CliError: no recorder answers, or no rank has begun to train.
    """
    from gputop_probes.client import send_command

    command: dict[str, Any] = {"cmd": "profile", "steps": steps}
    if rank is not None:
        command["rank"] = rank
    answer = send_command(run_dir, command)
    if answer is None:
        raise CliError(
            f"{run_dir.name} is not running here: `gputop runs` lists the runs and their state"
        )
    if not answer.get("ok"):
        which = "no rank" if rank is None else f"no rank {rank}"
        raise CliError(f"{which} of {run_dir.name} trains yet: ask again once it makes steps")
    return int(answer.get("ranks", 1))


def profiles(record: RunRecord, since_ns: int = 0) -> list[dict[str, Any]]:
    """The ``profile`` events since a time, by rank."""
    events = [event for event in record.events("profile") if event["t_ns"] >= since_ns]
    return sorted(events, key=lambda event: (event.get("rank", 0), event["t_ns"]))


def is_steady(record: RunRecord) -> bool:
    """Whether each rank has made ten steps in a row without compile, checkpoint, eval, set-up."""
    from gputop_probes.record.reader import steady

    ranks = record.ranks()
    return bool(ranks) and all(
        _last_in_a_row(record, rank, steady) >= STEADY_STEPS for rank in ranks
    )


def _last_in_a_row(record: RunRecord, rank: int, steady: Any) -> int:
    rows = record.steps(rank)[-STEADY_STEPS:]
    unsteady = (~steady(rows)).nonzero()[0]
    return int(rows["n_steps"][unsteady[-1] + 1 if len(unsteady) else 0 :].sum())


class WhenSteady:
    """Takes a profile once the run is steady, from a thread of the front: no screen knows."""

    def __init__(self, run_dir: Path, steps: int):
        self._run_dir, self._steps = run_dir, steps
        self.asked_ns: int | None = None
        """When it was asked for; None: the run has not been steady yet."""
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="gputop-profile-when-steady", daemon=True).start()

    def print_result(self) -> None:
        """At the run's end: the analysis on stderr, or why there is none."""
        from gputop_probes.record.reader import RunRecord

        self._ended.set()
        if self.asked_ns is None:
            notice(f"no profile: the run had no {STEADY_STEPS} steady steps in a row")
            return
        events = profiles(RunRecord.open(self._run_dir), self.asked_ns)
        print("\n".join(["", *result_lines(events, 100)]), file=sys.stderr)

    def _watch(self) -> None:
        pause = _FIRST_LOOK_S
        while not self._ended.wait(pause):
            pause = _POLL_S
            try:
                if self._ask_if_steady():
                    return
            except Exception:  # the record is being set up, or a rank is gone: look again
                continue

    def _ask_if_steady(self) -> bool:
        from gputop_probes.record.reader import RunRecord

        if not is_steady(RunRecord.open(self._run_dir)):
            return False
        now_ns = time.time_ns()
        ask(self._run_dir, self._steps)
        self.asked_ns = now_ns
        return True


def result_lines(events: list[dict[str, Any]], width: int) -> list[str]:
    """What the profiles show: the first rank's trace in full, of the others one line each."""
    if not events:
        return ["gputop: no profile arrived before the end"]
    lines: list[str] = []
    for index, event in enumerate(events):
        head = f"rank {event.get('rank', 0)}"
        if event.get("error"):
            lines.append(f"{head}: no profile: {event['error']}")
        elif index == 0:
            lines += [f"{head}, {event['steps']} steps from step {event['first_step']} on", ""]
            lines += _in_full(event, width)
        else:
            lines.append(f"{head}: {_in_short(event)}")
    return lines


def _in_full(event: dict[str, Any], width: int) -> list[str]:
    from gputop_analysis.traces import TraceError, analyse_trace
    from gputop_analysis.traces.text import as_text

    try:
        return as_text(analyse_trace(event["trace_path"]), width).splitlines()
    except (TraceError, KeyError, TypeError):
        return _table(event, width)


def _in_short(event: dict[str, Any]) -> str:
    from gputop_analysis.traces import TraceError, analyse_trace

    try:
        lanes = analyse_trace(event["trace_path"]).lanes
    except (TraceError, KeyError, TypeError):
        return f"{event['steps']} steps"
    return "; ".join(map(_lane_in_short, lanes)) + f"   {event['trace_path']}"


def _lane_in_short(lane: Lane) -> str:
    """``18.2 ms: compute 71 %, idle 29 %``."""
    shares = [
        f"{name.replace('_', ' ')} {100 * value / lane.wall_ms:.0f} %"
        for name, value in lane.parts_ms.items()
    ]
    return f"{lane.wall_ms:.1f} ms: {', '.join(shares)}"


def _table(event: dict[str, Any], width: int) -> list[str]:
    """The agent's own table, where its trace cannot be read from here."""
    room = width - 34
    lines = [f"{'operator':<{room}}{'calls':>10}{'cpu ms':>12}{'device ms':>12}"]
    for row in event.get("table") or []:
        times = f"{row['cpu_ms']:>12.2f}{row['device_ms']:>12.2f}"
        lines.append(f"{row['op'][: room - 1]:<{room}}{row['calls']:>10,}{times}")
    return lines
