"""The recorder's duties besides reading: set up after the command's start."""

from __future__ import annotations

import os
import time
from _thread import start_new_thread
from collections.abc import Callable

from gputop_probes.record import layout
from gputop_probes.record.writer import RecordWriter
from gputop_probes.recorder.hang import HangWatch
from gputop_probes.recorder.journal import Journal, usable_cores
from gputop_probes.recorder.loop import Recorder
from gputop_probes.recorder.ranks import RankAssignment
from gputop_probes.recorder.strangers import StrangerWatch
from gputop_probes.recorder.suspicion import SkewWatch
from gputop_probes.samplers.inbox import Inbox, SamplerThread
from gputop_probes.samplers.neighbours import NeighbourWatch
from gputop_probes.samplers.processes import RankPids
from gputop_probes.samplers.system import PERIOD_S, SystemSampler

_STATE_PERIOD_S = 10.0
_FINAL_SAMPLE_WAIT_S = 0.3


def install(recorder: Recorder, hang_s: float | None, command: list[str], cwd: str) -> None:
    """Give the recorder its chores and samplers.

    Args:
        recorder: a recorder whose command runs.
        hang_s: silence that counts as a hang; None: from the environment.
        command: as typed.
        cwd: where it was started.
    """
    journal, intake = recorder.journal, recorder.intake
    inbox = Inbox()
    hang = HangWatch(journal, recorder.ranks, intake.send_to_ranks, hang_s)
    skew = SkewWatch(recorder.ranks, intake.send_to_ranks)
    recorder.chores += [
        ("inbox", lambda: empty(inbox, journal)),
        ("hang watch", every(1.0, hang.check)),
        ("skew watch", every(1.0, skew.check)),
        ("socket", every(2.0, recorder.socket_chore)),
        ("state", every(_STATE_PERIOD_S, recorder.save_state)),
    ]
    recorder.guard("sweep", recorder.server.sweep)
    _start_samplers(recorder, inbox)
    recorder.farewells.append(("inbox", lambda: empty(inbox, journal)))
    _collect_context(inbox, command, cwd, journal)


def _start_samplers(recorder: Recorder, inbox: Inbox) -> None:
    journal = recorder.journal
    system = SystemSampler(
        inbox,
        recorder.command.pid,
        run_id=journal.state["run_id"],
        ranks=lambda: rank_pids(recorder.ranks),
        now_ns=journal.now_ns,
        cpu_count=usable_cores(),
        logs=[journal.writer.host_dir / name for name in layout.LOG_LENGTHS],
    )
    recorder.known_pids = system.known_pids
    strangers = StrangerWatch(
        journal,
        system.tree,
        lambda: (
            {peer.connection.pid for peer in list(recorder.intake.peers)}
            | rank_pids(recorder.ranks).keys()
        ),
        lambda event_type, fields: inbox.events.append((event_type, fields)),
    )

    neighbours = NeighbourWatch(
        system.tree,
        journal.state["host"],
        lambda event_type, fields: inbox.events.append((event_type, fields)),
    )

    def sample() -> None:
        if system.sample():
            strangers.check()
            neighbours.check()

    from gputop_probes.samplers.gpu import GpuSampler

    gpu = GpuSampler(inbox, system.known_pids, journal.now_ns)
    threads = [
        SamplerThread("system sampler", PERIOD_S, sample, journal.failed),
        SamplerThread("gpu sampler", PERIOD_S, gpu.sample, journal.failed),
    ]
    gpu.give_up = threads[1].stop
    for thread in threads:
        thread.start()
    recorder.farewells += [("samplers", lambda: _stop(threads)), ("strangers", strangers.finish)]


def rank_pids(ranks: RankAssignment) -> RankPids:
    """Pid -> rank and training thread."""
    return {rank.pid: (rank.number, rank.tid) for rank in list(ranks.by_number.values())}


def empty(inbox: Inbox, journal: Journal) -> None:
    """Write what the samplers have left."""
    writer: RecordWriter = journal.writer
    while inbox.records:
        writer.append_host(*inbox.records.popleft())
    while inbox.events:
        event_type, fields = inbox.events.popleft()
        journal.event(event_type, **fields)
    while inbox.state:
        journal.save_state(**inbox.state.popleft())


def every(seconds: float, work: Callable[[], None]) -> Callable[[], None]:
    """``work``, but no more often than every so many seconds."""
    due = time.monotonic() + seconds

    def chore() -> None:
        nonlocal due
        now_s = time.monotonic()
        if now_s >= due:
            due = now_s + seconds
            work()

    return chore


def _stop(threads: list[SamplerThread]) -> None:
    for thread in threads:
        thread.stop()
    for thread in threads:
        thread.join(_FINAL_SAMPLE_WAIT_S)


def _collect_context(inbox: Inbox, command: list[str], cwd: str, journal: Journal) -> None:
    """Once, beside everything else: git may be slow on a network disk."""
    if journal.state.get("context"):
        return

    def work() -> None:
        from gputop_probes import context

        try:
            inbox.state.append({"context": context.collect(command, cwd, dict(os.environ))})
        except Exception:
            journal.failed("run context")

    start_new_thread(work, ())  # waits for nothing, see ``SamplerThread``
