"""The recorder's life: sleep, drain, look after things, until the command has ended.

Rank connections are drained on a timer and never waited on: a sleeping reader costs a sender
nothing to wake.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable
from typing import Any

from gputop_probes import procfs, stop
from gputop_probes.recorder import command as commands
from gputop_probes.recorder.command import WatchedCommand
from gputop_probes.recorder.intake import Intake, Peer
from gputop_probes.recorder.journal import Journal
from gputop_probes.recorder.ranks import RankAssignment
from gputop_probes.recorder.requests import Requests
from gputop_probes.recorder.server import RecorderServer
from gputop_probes.recorder.signals import LeaveRequest

TICK_S = 0.05
QUIET_TICK_S = 0.1
"""While no rank is connected there is nothing to drain."""
DRAIN_AT_END_S = 1.0


class Recorder:
    """Ties the parts together; every part may fail without ending it."""

    def __init__(
        self,
        journal: Journal,
        server: RecorderServer,
        ranks: RankAssignment,
        command: WatchedCommand,
        leave_request: LeaveRequest,
    ):
        self.journal = journal
        self.server = server
        self.ranks = ranks
        self.command = command
        self.leave_request = leave_request
        self.intake = Intake(journal, ranks, self._on_request)
        self.requests = Requests(self)
        self.stopped_by_us = False
        """Whether the command was told to end through gputop."""
        self.known_pids: Callable[[], list[int]] = list
        """Pids seen in the command's process tree."""
        self.chores: list[tuple[str, Callable[[], None]]] = []
        """Run on every tick, each guarded."""
        self.farewells: list[tuple[str, Callable[[], None]]] = []
        """Run once at the end, before the last state is written."""
        self.at_end: list[tuple[str, Callable[[], None]]] = []
        """Run once when the command and all its processes have ended."""
        self._selector = selectors.DefaultSelector()
        self._killed_before = procfs.out_of_memory_kills()

    def run(self) -> bool:
        """Record until the command ends or a signal says to leave. Returns whether it ended."""
        self._watch(self.leave_request, self.leave_request.clear)
        self._watch(self.server.listener, self._accept)
        if self.command.pidfd is not None:
            self._watch(self.command.pidfd, lambda: None)
        while not self.command.poll():
            if self.leave_request.due():
                self._leave()
                return False
            self._turn()
        self._end()
        return True

    def guard(self, where: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``work``; an exception of it is counted and logged."""
        return self.journal.guard(where, work, *arguments)

    def watch(self, descriptor: int, work: Callable[[], None]) -> None:
        """Call ``work`` as soon as the descriptor can be read."""
        self._watch(descriptor, work)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor."""
        self._selector.unregister(descriptor)

    def socket_chore(self) -> None:
        """Bind again when somebody deleted the socket's file."""
        if not self.server.file_is_there():
            self._selector.unregister(self.server.listener)
            self.server.listen_again()
            self._watch(self.server.listener, self._accept)

    def save_state(self, **changes: Any) -> None:
        """Write ``host.json`` with what was lost so far."""
        dropped = sum(rank.dropped for rank in self.ranks.by_number.values())
        self.journal.save_state(
            dropped_records=dropped, garbled_messages=self.intake.garbled, **changes
        )

    def _turn(self) -> None:
        started = time.monotonic()
        if self.intake.peers:
            tick = TICK_S
        else:
            tick = QUIET_TICK_S
        for key, _ in self._selector.select(tick):
            self.guard("event", key.data)
        if self.intake.peers:
            self._rest_of_tick(started)
        self.guard("drain", self.intake.drain)
        for name, chore in self.chores:
            self.guard(name, chore)

    def _rest_of_tick(self, started: float) -> None:
        """An early wake-up must not make the drain more frequent than the tick."""
        remaining_s = TICK_S - (time.monotonic() - started)
        if remaining_s > 0 and not self.command.poll():
            self._selector_pause(remaining_s)

    def _selector_pause(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            self.guard("event", key.data)

    def _watch(self, target: Any, work: Callable[[], None]) -> None:
        self._selector.register(target, selectors.EVENT_READ, work)

    def _accept(self) -> None:
        for connection in self.server.accept():
            self.intake.add(connection)

    def _on_request(self, peer: Peer, request: dict[str, Any]) -> None:
        self.requests.answer(peer, request)

    def _leave(self) -> None:
        self.guard("drain", self.intake.drain)
        for name, farewell in self.farewells:
            self.guard(name, farewell)
        self.save_state()
        self.guard("socket", self.server.close)
        self.journal.writer.close()

    def _end(self) -> None:
        self._drain_to_the_end()
        if self.stopped_by_us:
            self.guard("survivors", self._end_survivors)
            self._drain_to_the_end()
        for name, farewell in self.farewells:
            self.guard(name, farewell)
        status = self.command.wait_status
        code = self.command.exit_code()
        if status is None:
            number = None
        else:
            number = commands.death_signal(status)
        now_ns = self.journal.now_ns()
        seconds = (now_ns - self.journal.state["started_ns"]) / 1e9
        orphans = self.guard("orphans", self._note_orphans)
        for name, work in self.at_end if not orphans else []:
            self.guard(name, work)
        kills = None
        if self._killed_before >= 0:
            kills = procfs.out_of_memory_kills() - self._killed_before
        self.journal.event(
            "run_end", exit_code=code, signal=number, duration_s=round(seconds, 3), oom_kills=kills
        )
        self.save_state(state="ended", ended_ns=now_ns, exit_code=code, signal=number)
        self.guard("socket", self.server.close)
        self.journal.writer.close()

    def _drain_to_the_end(self) -> None:
        """Read until every rank has hung up, for at most a second."""
        deadline = time.monotonic() + DRAIN_AT_END_S
        while True:
            self.guard("accept", self._accept)
            self.guard("drain", self.intake.drain)
            if (
                not any(not peer.is_client for peer in self.intake.peers)
                or time.monotonic() > deadline
            ):
                return
            time.sleep(0.01)

    def _end_survivors(self) -> None:
        """Ranks that outlived a command which was stopped through gputop."""
        run_id = self.journal.state["run_id"]
        survivors = stop.terminate(run_id, self.command.pgid, self.known_pids())
        if survivors:
            self.journal.event(
                "interrupt", signal=int(signal.SIGTERM), by="recorder", pids=survivors
            )

    def _note_orphans(self) -> list[int]:
        """Processes that a command left behind; when it ended by itself they are told of and not
        touched. One that began without us has others beside it that are none of the run's.
        """
        if self.command.followed:
            return []
        orphans = stop.processes(self.journal.state["run_id"], self.command.pgid, self.known_pids())
        orphans = [pid for pid in orphans if pid != os.getpid()]
        if orphans and not self.stopped_by_us:
            self.journal.event("orphans", pids=orphans)
        return orphans
