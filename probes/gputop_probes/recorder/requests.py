"""Answers clients on the recorder's socket: app, ``gputop attach``, front with a Ctrl-C."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from typing import Any, Protocol

from gputop_agent import wire
from gputop_probes import stop
from gputop_probes.recorder.command import WatchedCommand
from gputop_probes.recorder.intake import Intake, Peer
from gputop_probes.recorder.journal import Journal
from gputop_probes.recorder.ranks import RankAssignment

_PASSED_TO_RANKS = ("dump", "profile", "layers", "flight_recorder", "memory_snapshot")
_MOST_REASON = 300
_MAX_PROFILED_STEPS = 100
_MAX_WATCHED_STEPS = 20


class RecorderState(Protocol):
    """What of the recorder a request reads or changes."""

    journal: Journal
    ranks: RankAssignment
    command: WatchedCommand
    intake: Intake
    stopped_by_us: bool
    known_pids: Callable[[], list[int]]


class Requests:
    """Answers to what a client may ask for. The server has checked the peer's user already."""

    def __init__(self, recorder: RecorderState):
        self._recorder = recorder

    def answer(self, peer: Peer, request: dict[str, Any]) -> None:
        """Do what is asked and say how it went."""
        reply = self._reply(request)
        peer.connection.send(wire.MSG_COMMAND + json.dumps(reply).encode())

    def _reply(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request.get("cmd")
        if name == "ping":
            return {
                "ok": True,
                "run_id": self._recorder.journal.state["run_id"],
                "ranks": self._ranks(),
            }
        if name in _PASSED_TO_RANKS:
            return self._pass_on(name, request)
        if name in ("stop", "stopping"):
            return self._stop(name, request)
        if name in ("suspended", "resumed"):
            return self._pause(name, request)
        if name == "end":
            return self._end(request)
        return {"ok": False, "error": f"unknown command {name!r}"}

    def _ranks(self) -> list[int]:
        return [rank.number for rank in self._recorder.ranks.connected()]

    def _pass_on(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        command: dict[str, Any] = {"cmd": name}
        if name == "profile":
            command["steps"] = min(_MAX_PROFILED_STEPS, max(1, int(request.get("steps", 3))))
            command["trace_dir"] = str(self._recorder.journal.writer.run_dir.absolute() / "traces")
        elif name == "layers":
            command["steps"] = min(_MAX_WATCHED_STEPS, max(1, int(request.get("steps", 3))))
        elif name == "memory_snapshot":
            command["folder"] = str(self._recorder.journal.writer.run_dir.absolute() / "memory")
        elif name in ("dump", "flight_recorder"):
            command["reason"] = str(request.get("reason", "asked"))
        reached = self._recorder.intake.send_to_ranks(command, request.get("rank"))
        return {"ok": reached > 0, "ranks": reached}

    def _stop(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        """``stop`` sends the signal; ``stopping`` only says that the client does."""
        recorder = self._recorder
        number = int(request.get("signal", signal.SIGINT))
        if not 1 <= number < signal.NSIG:
            return {"ok": False, "error": "no such signal"}
        recorder.stopped_by_us = True
        why = {}
        if request.get("why"):
            why = {"why": str(request["why"])[:_MOST_REASON]}
        recorder.journal.event(
            "interrupt", signal=number, by=str(request.get("by", "client")), **why
        )
        if name == "stop":
            run_id = recorder.journal.state["run_id"]
            stop.deliver(number, recorder.command.pgid, run_id, recorder.known_pids())
        return {"ok": True}

    def _end(self, request: dict[str, Any]) -> dict[str, Any]:
        """The script says that its run is over; its process, a notebook's kernel, lives on."""
        if not self._recorder.command.followed:
            return {"ok": False, "error": "the run ends with its command"}
        self._recorder.command.end_run(int(request.get("exit_code", 0)) & 0xFF)
        return {"ok": True}

    def _pause(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        """The front has stopped every process of the run, or lets them go on."""
        recorder = self._recorder
        pauses = recorder.intake.pauses
        t_ns = int(request["monotonic_ns"]) + recorder.journal.clock_offset_ns
        if name == "suspended":
            pauses.begin(t_ns)
            recorder.journal.event("suspended", by="user")
        else:
            stopped_ns = pauses.end(t_ns)
            recorder.journal.event("resumed", stopped_ms=round(stopped_ns / 1e6, 3))
            for rank in recorder.ranks.connected():
                rank.progress_s = time.monotonic()
        return {"ok": True}
