"""Hangs, crashes and how the command ended."""

from __future__ import annotations

import signal
from typing import Any

from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.sites import user_line
from gputop_analysis.model import Finding
from gputop_analysis.summary import run_state, steps_done
from gputop_analysis.view import RunView

Event = dict[str, Any]

_USERS_OWN = ("KeyboardInterrupt", "SystemExit")


@finding(
    id="HC01",
    name="hang",
    family="crash",
    cause="hang",
    trigger="no step for 30 s and 20 median steps; the stacks of all ranks say who holds up whom",
    fix="every rank must call the same collectives in the same order",
    explains=("HC09",),
    immediate=True,
)
def hang(view: RunView, spec: Spec) -> Finding | None:
    """All ranks stand still; one of them is not where the others wait for it."""
    suspected, over = _last_hang(view)
    if suspected is None:
        return None
    dumps = _dumps_after(view, suspected["t_ns"])
    rank = _holding_up(dumps, suspected)
    dump = dumps.get(rank, {}) if rank is not None else {}
    line = user_line(_training_frames(dump))
    waiting = sorted(r for r in dumps if r != rank)
    collective = next((dumps[r]["collective"] for r in waiting if dumps[r].get("collective")), None)
    silent_s = float(suspected.get("silent_s") or 0)
    who = f"rank {rank} stands at {line}" if rank is not None and line else f"no step on {_ranks(suspected)}"
    return spec.make(
        "high" if over else "critical",
        f"{'hung' if over else 'hang'}: {who}",
        f"no step for {silent_s:.0f} s (limit {float(suspected.get('limit_s') or 0):.0f} s)"
        + (
            f"; rank {rank} is in phase {dump.get('phase', '?')} of step {dump.get('step', '?')} at {line}"
            if line
            else ""
        )
        + (f"; {_names(waiting)} in {_collective(collective)}" if waiting and collective else "")
        + ("; steps came again later" if over else ""),
        f"look at {line or 'the stacks of all ranks'}: every rank must reach the same collective; a condition on the "
        "rank, an uneven number of batches or a blocking call on one rank keeps it from there",
        rank=rank,
        site=line,
        confidence=0.95 if rank is not None and len(dumps) > 1 else 0.7,
    )


def _last_hang(view: RunView) -> tuple[Event | None, bool]:
    """The newest suspected hang, and whether steps came again after it."""
    suspected: Event | None = None
    over = False
    for event in view.record.events("hang_suspected", "hang_over"):
        if event["type"] == "hang_over":
            over = True
        else:
            suspected, over = (event if suspected is None or over else suspected), False
    return suspected, over


def _dumps_after(view: RunView, t_ns: int) -> dict[int, Event]:
    """First stack dump of each rank since a second before ``t_ns``."""
    found: dict[int, Event] = {}
    for event in view.record.events("stack_dump"):
        if event.get("t_ns", 0) >= t_ns - 10**9 and event.get("rank") is not None:
            found.setdefault(int(event["rank"]), event)
    return found


def _holding_up(dumps: dict[int, Event], suspected: Event) -> int | None:
    """The rank that is not in a collective while others are, or that has started the fewest; None where unclear."""
    outside = [rank for rank, dump in dumps.items() if not _is_waiting(dump)]
    if len(outside) == 1:
        return outside[0]
    sequence = {rank: int((dump.get("collective") or {}).get("seq", -1)) for rank, dump in dumps.items()}
    behind = [rank for rank in sequence if sequence[rank] == min(sequence.values())]
    if len(behind) == 1 and len(dumps) > 1:
        return behind[0]
    silent = suspected.get("ranks") or []
    return int(silent[0]) if len(silent) == 1 else None


def _is_waiting(dump: Event) -> bool:
    collective = dump.get("collective")
    return bool(collective) and collective.get("state") != "completed"


def _training_frames(dump: Event) -> list[str]:
    threads = dump.get("threads") or []
    training = next((t for t in threads if t.get("training")), threads[0] if threads else {})
    return [str(frame) for frame in training.get("frames", ())]


def _collective(collective: Event) -> str:
    return f"{collective.get('op') or 'a collective'!s} (number {collective.get('seq', '?')})"


def _names(ranks: list[int]) -> str:
    return f"rank {ranks[0]} waits" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} wait"


def _ranks(suspected: Event) -> str:
    ranks = [str(rank) for rank in suspected.get("ranks") or []]
    return f"rank {', '.join(ranks)}" if ranks else "any rank"


@finding(
    id="HC06",
    name="first failing rank",
    family="crash",
    cause="crash",
    trigger="the earliest exception that ended a rank; later ones on other ranks follow from it",
    fix="mend what that traceback says; ignore the later ones",
    explains=("HC09",),
    immediate=True,
)
def first_failing_rank(view: RunView, spec: Spec) -> Finding | None:
    """Of many tracebacks, the one that came first."""
    raised = sorted(
        (e for e in view.record.events("exception") if e.get("class") not in _USERS_OWN), key=lambda e: e["t_ns"]
    )
    if not raised:
        return None
    first, later = raised[0], sorted({int(e.get("rank", -1)) for e in raised[1:]} - {int(raised[0].get("rank", -1))})
    rank, kind = first.get("rank"), first.get("class", "exception")
    message = str(first.get("message") or "").strip().splitlines()
    said = f"{kind}: {message[0][:120]}" if message else str(kind)
    _, exit_code, _ = run_state(view.record, first["t_ns"])
    return spec.make(
        "high" if exit_code == 0 else "critical",
        f"rank {rank} fails first at step {first.get('step', '?')}: {said}"[:140],
        f"{said}, at {first.get('site') or 'an unknown line'} in phase {first.get('phase', '?')}, step "
        f"{first.get('step', '?')}" + (f"; rank {', '.join(map(str, later))} failed after it" if later else ""),
        f"mend {first.get('site') or 'what the traceback says'}; later errors of other ranks follow from it",
        rank=rank,
        site=first.get("site"),
        host=first.get("host"),
    )


@finding(
    id="HC09",
    name="exit code",
    family="crash",
    cause="crash",
    trigger="the command ended with an exit code other than 0, or by a signal",
    fix="what the code means is in the finding",
    immediate=True,
)
def exit_decode(view: RunView, spec: Spec) -> Finding | None:
    """What an exit code means, and where the run was."""
    codes = [h.state.exit_code for h in view.record.hosts.values() if h.state.exit_code]
    if not codes:
        return None
    code = codes[0]
    number = code - 128 if 128 < code < 192 else None
    by_user = any(True for _ in view.record.events("interrupt"))
    rank, lost = _first_lost(view)
    step = max((steps_done(view.record, r) for r in view.ranks), default=0)
    killed = _out_of_memory_kills(view)
    title = f"exit {code}" + (f": ended by {_signal_name(number)}" if number else "")
    return spec.make(
        "info" if by_user else "critical",
        title + (" after an interrupt by the user" if by_user else "") + (f"; rank {rank} went first" if lost else ""),
        f"the command ended with exit code {code}"
        + (f" ({_signal_name(number)}, signal {number})" if number else "")
        + (f" after {step:,} steps" if step else " before its first step")
        + (f"; rank {rank} was lost first: {lost}" if lost else "")
        + (f"; the kernel killed {killed} process for lack of memory in the meantime" if killed else ""),
        _exit_advice(number, bool(killed), by_user),
        rank=rank,
    )


def _first_lost(view: RunView) -> tuple[int | None, str]:
    """The rank that vanished first without saying goodbye, and how; a single rank is the one meant in any case."""
    said_goodbye = {e.get("rank") for e in view.record.events("goodbye")}
    lost = sorted(view.record.events("rank_lost"), key=lambda e: e.get("t_ns", 0))
    lost = [e for e in lost if e.get("rank") not in said_goodbye]
    if len(view.ranks) == 1:
        return view.ranks[0], ""
    return (int(lost[0]["rank"]), str(lost[0].get("reason") or "gone")) if lost else (None, "")


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def _out_of_memory_kills(view: RunView) -> int:
    kills = 0
    for host in view.record.hosts.values():
        counter = host.host.rows["cgroup_oom_kill_total"] if len(host.host.rows) else []
        kills += max(0, int(counter[-1]) - int(counter[0])) if len(counter) and counter[0] >= 0 else 0
    return kills


def _exit_advice(number: int | None, out_of_memory: bool, by_user: bool) -> str:
    if by_user:
        return "nothing to mend: the run was stopped"
    if number == signal.SIGKILL:
        cause = "the host ran out of memory" if out_of_memory else "the out-of-memory killer, the scheduler or a person"
        return f"SIGKILL cannot be caught: it came from {cause}; see `dmesg -T | grep -i oom` and the scheduler's log"
    if number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE):
        return "a crash in native code: run with PYTHONFAULTHANDLER=1 for the line; for SIGBUS look at /dev/shm (df -h)"
    if number == signal.SIGABRT:
        return "native code gave up: the reason stands in the output just before; NCCL's watchdog ends runs in this way"
    if number == signal.SIGTERM:
        return "somebody asked it to end: the scheduler at its time limit, or a launcher after another rank had failed"
    return "the script chose this code: its last lines of output say why (`gputop open` shows them)"
