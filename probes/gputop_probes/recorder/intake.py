"""Takes in what ranks send: checks it, gives it its rank, and appends it to the record."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from gputop_agent import wire
from gputop_probes import procfs
from gputop_probes.record import layout
from gputop_probes.recorder.journal import Journal
from gputop_probes.recorder.pauses import Pauses
from gputop_probes.recorder.ranks import Rank, RankAssignment
from gputop_probes.recorder.server import Connection

_TABLES = {
    wire.MSG_STEPS: ("steps", wire.STEP.size),
    wire.MSG_DEVICE: ("device", wire.DEVICE.size),
    wire.MSG_COMM: ("comm", wire.COMM.size),
}
_PROGRESS = frozenset(
    (
        "hello",
        "compile",
        "checkpoint",
        "exception",
        "nonfinite",
        "nan_origin",
        "spike_origin",
        "log",
        "named_phase",
        "ddp",
        "ddp_progress",
    )
)
"""Events that only come while the training moves; the guest's thread sends others too."""
_HELD_BEFORE_HELLO = 64
_PATIENCE_TICKS = 40


class Peer:
    """A connection and what is known of who is behind it."""

    def __init__(self, connection: Connection):
        self.connection = connection
        self.rank: Rank | None = None
        self.is_client = False
        self.held: list[bytes] = []
        """Messages from before the hello, which says the rank."""
        self.ticks_waited = 0


class Intake:
    """The messages of all ranks."""

    def __init__(
        self,
        journal: Journal,
        ranks: RankAssignment,
        on_request: Callable[[Peer, dict[str, Any]], None],
    ):
        self.journal = journal
        self.ranks = ranks
        self.peers: list[Peer] = []
        self.garbled = 0
        self.pauses = Pauses()
        self._on_request = on_request
        self._pending: dict[tuple[str, int], bytearray] = {}

    def add(self, connection: Connection) -> None:
        """Listen to one more peer."""
        self.peers.append(Peer(connection))

    def drain(self) -> int:
        """Read what has arrived from all peers and write it. Returns the number of messages."""
        count = 0
        for peer in list(self.peers):
            for message in peer.connection.messages():
                count += 1
                self._take_safely(peer, message)
            self._look_after(peer)
        self.flush()
        return count

    def flush(self) -> None:
        """Write the records that were gathered, one write a file."""
        pending, self._pending = self._pending, {}
        for (table, rank), records in pending.items():
            self.journal.writer.append_rank(table, rank, bytes(records))

    def send_to_ranks(self, command: dict[str, Any], only: int | None = None) -> int:
        """Send a command to every rank, or to one. Returns how many took it."""
        message = wire.MSG_COMMAND + json.dumps(command).encode()
        return sum(
            peer.connection.send(message)
            for peer in self.peers
            if peer.rank is not None and only in (None, peer.rank.number)
        )

    def _take_safely(self, peer: Peer, message: bytes) -> None:
        try:
            self._take(peer, message)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.garbled += 1

    def _take(self, peer: Peer, message: bytes) -> None:
        message_type = message[:1]
        if message_type == wire.MSG_COMMAND:
            peer.is_client = True
            self._on_request(peer, _json_object(message))
        elif message_type == wire.MSG_EVENT:
            self._take_event(peer, message)
        elif message_type not in _TABLES:
            raise ValueError("unknown kind of message")
        elif peer.rank is None:
            self._hold(peer, message)
        else:
            self._take_records(peer.rank, message_type, message[1:])

    def _take_records(self, rank: Rank, message_type: bytes, records: bytes) -> None:
        table, size = _TABLES[message_type]
        if not records or len(records) % size:
            raise ValueError("not whole records")
        if message_type == wire.MSG_STEPS:
            records = self.pauses.cut_steps(records)
            rank.saw_steps(records)
        elif message_type == wire.MSG_COMM:
            records = self.pauses.cut_comm(records)
            rank.comm_records += len(records) // size
        self._pending.setdefault((table, rank.number), bytearray()).extend(records)

    def _take_event(self, peer: Peer, message: bytes) -> None:
        event = _json_object(message)
        event_type = event["type"]
        if not isinstance(event_type, str) or not isinstance(event.get("t_ns"), int):
            raise ValueError("an event without type and time")
        if event_type == "startup":  # from before its process is a rank, over a connection apart
            event.update(pid=peer.connection.pid, host=self.journal.state["host"])
            self.journal.writer.append_event(event)
            return
        if event_type == "loader_worker":  # the same of a loader's worker
            self._take_workers(peer, event)
            return
        if event_type == "hello":
            self._identify(peer, event.get("rank"))
        elif peer.rank is None:
            self._hold(peer, message)
            return
        rank = peer.rank
        assert rank is not None
        if event_type == "hello" and isinstance(event.get("tid"), int):
            rank.tid = event["tid"]
        elif event_type == "goodbye":
            rank.said_goodbye = True
        if event_type == "moving":  # every 2 s: not worth a line of the record
            rank.moves()
            return
        if event_type in _PROGRESS:
            rank.progress_s = time.monotonic()
        event.update(rank=rank.number, pid=rank.pid, host=self.journal.state["host"])
        self.journal.writer.append_event(event)

    def _take_workers(self, peer: Peer, event: dict[str, Any]) -> None:
        """Keep what a worker of a rank's loader says; nothing of a process that is no rank."""
        rank = self.ranks.of_pid(int(event["parent"]))
        if rank is not None:
            event.update(rank=rank.number, pid=peer.connection.pid, host=self.journal.state["host"])
            self.journal.writer.append_event(event)

    def _hold(self, peer: Peer, message: bytes) -> None:
        if len(peer.held) >= _HELD_BEFORE_HELLO:
            self._identify(peer, None)
            self._take(peer, message)
        else:
            peer.held.append(message)

    def _identify(self, peer: Peer, wanted: Any) -> None:
        """Settle a peer's rank: what its hello says, else its ``RANK`` variable, else the next free
        one.
        """
        if (
            not isinstance(wanted, int)
            or isinstance(wanted, bool)
            or not 0 <= wanted <= wire.MAX_RANK
        ):
            wanted = _rank_from_environment(peer.connection.pid)
        before = peer.rank
        if before:
            rank, is_new = (before, False)
        else:
            rank, is_new = self.ranks.claim(peer.connection.pid, wanted)
        peer.rank = rank
        if is_new:
            self.flush()
            self.journal.event(
                "rank_start",
                rank=rank.number,
                pid=rank.pid,
                host=self.journal.state["host"],
                record_index=self._records_so_far(rank.number),
                attempt=rank.attempt,
            )
        early, peer.held = peer.held, []
        for message in early:
            self._take_safely(peer, message)

    def _records_so_far(self, rank: int) -> int:
        path = layout.rank_file(self.journal.writer.run_dir, "steps", rank)
        try:
            return path.stat().st_size // wire.STEP.size
        except OSError:
            return 0

    def _look_after(self, peer: Peer) -> None:
        """Peers that never say hello get a rank after two seconds; those gone are let go."""
        if peer.held and peer.rank is None:
            peer.ticks_waited += 1
            if peer.ticks_waited > _PATIENCE_TICKS or peer.connection.closed:
                self._identify(peer, None)
        if peer.connection.closed:
            peer.connection.close()
            self.peers.remove(peer)
            self._lost(peer.rank)

    def _lost(self, rank: Rank | None) -> None:
        if rank is None or any(peer.rank is rank for peer in self.peers):
            return
        rank.connected = False
        if not rank.said_goodbye:
            self.flush()
            reason = why_gone(rank.pid)
            self.journal.event(
                "rank_lost", rank=rank.number, pid=rank.pid, reason=reason, step=rank.last_step
            )


def why_gone(pid: int) -> str:
    """End that ``/proc`` tells of a process whose connection ended without a goodbye."""
    stat = procfs.stat(pid)
    if stat is None:
        return "process gone"
    if stat.state in "ZX":
        return "process ended"
    return "connection closed, process still there"


def _rank_from_environment(pid: int) -> int | None:
    text = (procfs.environment(pid) or {}).get("RANK", "")
    if text.isdigit() and int(text) <= wire.MAX_RANK:
        return int(text)
    return None


def _json_object(message: bytes) -> dict[str, Any]:
    if len(message) > wire.MAX_MESSAGE_BYTES:
        raise ValueError("too long")
    value = json.loads(message[1:])
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value
