"""Runs that stand still: in a collective, in the loader, on storage, or busy without a step."""

from __future__ import annotations

import math

from gputop_analysis.ending import ended_well
from gputop_analysis.findings.advice import Fix
from gputop_analysis.findings.crash.hang_advice import advice_on
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import STACKS, UTILISATION
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.stack_samples import LOOP
from gputop_analysis.hangs.cause import BUSY_SHARE
from gputop_analysis.hangs.standstill import (
    Event,
    Standstill,
    is_waiting,
    standstill,
)
from gputop_analysis.hangs.user_line import dumped_line, endless_line, training_frames
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.summary import steps_at
from gputop_analysis.text import MISSING, step_number
from gputop_analysis.view import RunView

_SILENT = "no step for 30 s and 20 median steps"


@finding(
    id="HC01",
    name="hang",
    family="crash",
    cause="hang",
    trigger=f"{_SILENT}; the stacks of all ranks say who holds up whom",
    fix="every rank must call the same collectives in the same order",
    explains=("HC09",),
    immediate=True,
    no_use="with one rank",
    reads="hang_suspected and stack_dump events, flight recorder, the rank that is behind",
    silent="ranks in eval, checkpoint or compile",
    traps="a long evaluation on one rank",
    seen_on=CPU,
    pictures=(STACKS,),
)
def hang(view: RunView, spec: Spec) -> Finding | None:
    """All ranks stand still; one of them is not where the others wait for it."""
    still = standstill(view)
    if still is None or still.kind != "collective":
        return None
    rank, dumps, line, cause = still.rank, still.dumps, _line(still), still.cause
    if cause is not None and cause.rank is not None:
        return _finding(
            view,
            spec,
            still,
            what=cause.words,
            more=cause.waiting,
            fix=advice_on(cause, still.thread),
            site=cause.site,
            confidence=cause.confidence,
        )
    waiting = sorted(r for r in dumps if r != rank and is_waiting(dumps[r]))
    collective = next((dumps[r]["collective"] for r in waiting if dumps[r].get("collective")), None)
    if still.departed is not None:
        culprit = f"rank {rank} has {_left(still.departed)}, and the others wait for it"
    elif rank is not None and line:
        culprit = f"rank {rank} is stuck at {line}"
    else:
        culprit = f"no step on {_ranks(still.suspected)}"
    return _finding(
        view,
        spec,
        still,
        what=culprit,
        more=f"{_names(waiting)} in {_collective(collective)}" if waiting and collective else "",
        fix=_advice(view, line) if still.departed is None else _advice_on_departed(still.departed),
        confidence=0.95 if rank is not None and len(dumps) > 1 else 0.7,
    )


def _left(departed: Event) -> str:
    if departed.get("type") == "goodbye":
        return "ended its training"
    return f"gone ({departed.get('reason') or 'no reason told'})"


def _advice_on_departed(departed: Event) -> str:
    if departed.get("type") == "goodbye":
        return (
            "give every rank the same number of batches (DistributedSampler, drop_last=True), or "
            "wrap the loop in torch.distributed.algorithms.join.Join: a rank that ends early "
            "leaves the others in their collective"
        )
    return (
        f"look at why rank {departed.get('rank')} ended: its last output and the kernel's log "
        "(`dmesg -T`) say more; torchrun ends the other ranks where one is gone"
    )


def _advice(view: RunView, line: str | None) -> str:
    if view.world_size == 1:
        return (
            f"look at {line or 'the stacks'}: what it waits for (a lock, a queue, a process, a "
            "server) does not come"
        )
    return (
        f"look at {line or 'the stacks of all ranks'}: every rank must reach the same collective; "
        "a condition on the rank, an uneven number of batches or a blocking call on one rank "
        "keeps it from there"
    )


@finding(
    id="HC02",
    name="loader hang",
    family="crash",
    cause="hang",
    trigger=f"{_SILENT}, the training waits for a batch, and no worker uses a core or all of "
    "them are gone",
    fix="DataLoader(timeout=...), start workers by spawn or forkserver, take no locks in a dataset",
    explains=("HC01", "HC09"),
    immediate=True,
    no_use="without workers",
    reads="hang_suspected in the data phase, state of the workers, stacks",
    silent="storage that is slow (HC03)",
    traps="a first batch that takes long",
    seen_on=CPU,
    pictures=(STACKS,),
)
def loader_hang(view: RunView, spec: Spec) -> Finding | None:
    """The next batch never comes."""
    still = standstill(view)
    if still is None or still.kind != "loader":
        return None
    loader = view.hello(still.rank).get("dataloader") or {}
    workers = int(loader.get("num_workers") or 0)
    alive = len(still.workers)
    if workers and alive:
        doing = f"{alive} of {workers} workers live, and none of them does anything"
    elif workers:
        if _sampled(still):
            doing = f"none of the {workers} workers is left"
        else:
            doing = "nothing is known of the workers"
    else:
        doing = "the training process makes batches itself (num_workers=0)"
    where = loader.get("site") or _line(still)
    if workers:
        second = (
            "start workers with multiprocessing_context='forkserver': a lock that a thread held at "
            "the fork, of a logging handler or of the dataset, is never released"
        )
    else:
        second = (
            f"look at {_line(still) or 'the dataset'}: __getitem__ waits for a lock, a socket or a "
            "queue"
        )
    return _finding(
        view,
        spec,
        still,
        what=f"rank {still.rank} waits for a batch that does not come: {doing}",
        more=f"loader at {where}" if where else "",
        fix=("pass timeout=60 to the DataLoader, so that it raises and says which worker", second),
        inputs=(
            Input(
                "busiest worker",
                _number(still.workers_cpu_share),
                "cores",
                "process.cpu_ns_total, kind worker",
            ),
        ),
        site=where,
        confidence=0.9 if workers else 0.7,
    )


@finding(
    id="HC03",
    name="storage hang",
    family="crash",
    cause="hang",
    trigger=f"{_SILENT}, and the training thread sleeps uninterruptibly (state D) outside of "
    "compute",
    fix="look at the mount it reads from or writes to: NFS, FUSE, a full or failing disk",
    explains=("HC01", "HC02", "HC09"),
    immediate=True,
    no_use="where the machine is not yours to mend: whoever runs it must",
    reads="hang_suspected in a checkpoint or data phase, a thread in state D",
    silent="no thread waits for a disk",
    traps="a large first checkpoint",
    seen_on=CPU,
    pictures=(STACKS,),
)
def storage_hang(view: RunView, spec: Spec) -> Finding | None:
    """The kernel does not return from a read or a write."""
    still = standstill(view)
    if still is None or still.kind != "storage":
        return None
    path, mount, wchan = (str(still.thread.get(k) or "") for k in ("path", "mount", "wchan"))
    target = f" on {path}" if path else ""
    symptoms = [f"state D in {wchan}" if wchan else "state D", f"mount {mount}" if mount else ""]
    return _finding(
        view,
        spec,
        still,
        what=f"rank {still.rank} is stuck in the kernel{target}, phase {still.phase}",
        more=", ".join(text for text in symptoms if text),
        fix=f"look at {mount or 'the file system that ' + (_line(still) or 'it') + ' uses'}: "
        "`dmesg -T | tail`, `cat /proc/mounts`; a network or FUSE mount that does not answer, or "
        "a failing disk; nothing in the script",
        inputs=(Input("kernel function", wchan or "not told", "", "/proc/PID/task/TID/wchan"),),
        confidence=0.9 if wchan or path else 0.7,
    )


@finding(
    id="HC08",
    name="busy without a step",
    family="crash",
    cause="hang",
    trigger=f"{_SILENT}, while the process uses or waits for over {BUSY_SHARE:.1f} cores or its "
    "GPU is over 95 % utilised",
    fix="look at the line: an endless loop, a spinning wait, a kernel that does not end",
    explains=("HC01", "HC09"),
    immediate=True,
    no_use="where the step needs that long",
    reads="gpu.util_pct or process CPU against the time since the last step",
    silent="a step was seen",
    traps="one very long step",
    seen_on=CPU,
    pictures=(
        STACKS,
        UTILISATION,
    ),
)
def busy_without_a_step(view: RunView, spec: Spec) -> Finding | None:
    """Utilisation says 100 %, progress says none."""
    still = standstill(view)
    if still is None or still.kind != "busy":
        return None
    line = _endless_line(view, still)
    on_gpu = not still.cpu_share > BUSY_SHARE and still.gpu_util_pct > 0
    cause = "a loop that does not end, or a wait that spins"
    if _sampled(still):
        busy = f"{still.cpu_share:.2f} cores in use or waited for"
    else:
        busy = "its thread runs"
    if on_gpu:
        busy = f"GPU {still.gpu_util_pct:.0f} % utilised"
        cause = (
            "a kernel that does not end, or a collective that spins on the device while "
            "a peer is missing"
        )
    subject = f"rank {still.rank}" if still.rank is not None else "the run"
    if _excuse(view, still):
        what, where = f"{subject} was busy without a step", f" at {line}"
    else:
        what, where = f"{subject} is busy but makes no step", f": stuck at {line}"
    return _finding(
        view,
        spec,
        still,
        what=what + (where if line else ""),
        more=busy,
        fix=f"look at {line or 'the stack'}: {cause}; utilisation is not progress",
        inputs=(
            Input(
                "CPU",
                _number(still.cpu_share),
                "cores",
                "process.cpu_ns_total + run_wait_ns_total while silent",
            ),
            Input("GPU utilisation", _number(still.gpu_util_pct), "%", "gpu.util_pct while silent"),
        ),
        site=line,
        confidence=0.8,
    )


def _endless_line(view: RunView, still: Standstill) -> str | None:
    """The loop that goes on, as far as the training's own loops are known from samples of it; else
    the innermost line.
    """
    loops = _sampled_loops(view, still.rank)
    return (endless_line(still.dump, loops) if loops else None) or _line(still)


def _sampled_loops(view: RunView, rank: int | None) -> set[str]:
    """Lines of the loops around stack samples of a rank's steps, ``train.py:40``."""
    entries = (
        str(entry)
        for event in view.events("stacks", rank=rank)
        for sample in event.get("samples", ())
        for entry in sample.get("path", ())
    )
    return {entry.removeprefix(LOOP).split(" ")[0] for entry in entries if entry.startswith(LOOP)}


COMPUTED = 0.3
"""Of a core: a rank that used more while it was silent has done work, if it came back from it."""
_DEBUGGERS = (
    "pdb.py:",
    "bdb.py:",
    "IPython/core/debugger",
    "debugpy/",
    "pydevd",
    "_pydevd_bundle/",
)


def _excuse(view: RunView, standstill: Standstill) -> str:
    """Why a silence is no hang; empty where it is one as far as can be known."""
    frames, path = training_frames(standstill.dump), str(standstill.thread.get("path") or "")
    if any(frame.startswith(_DEBUGGERS) for frame in frames):
        return "a debugger holds the training"
    if path.startswith(("/dev/pts/", "/dev/tty")) and standstill.thread.get("state") == "S":
        return "the training waits for somebody to type"
    if ended_well(view.record) and not standstill.over:
        return "the command ended well after it"
    worked = standstill.cpu_share > COMPUTED and not is_waiting(standstill.dump)
    if standstill.over and worked:
        return "the rank computed all the time and went on"
    return ""


def _finding(
    view: RunView,
    spec: Spec,
    standstill: Standstill,
    *,
    what: str,
    more: str,
    fix: Fix,
    inputs: tuple[Input, ...] = (),
    site: str | None = None,
    confidence: float = 0.9,
) -> Finding:
    line, dump, excuse = _line(standstill), standstill.dump, _excuse(view, standstill)
    step = steps_at(view.record, dump)
    where = (
        f"rank {standstill.rank} is in phase {dump.get('phase', MISSING)} of step "
        f"{step_number(step)} at {line}"
    )
    parts = [
        f"suspected after {standstill.silent_s:.0f} s "
        f"without a step (limit {standstill.limit_s:.0f} s)",
        where if line else "",
        more,
    ]
    parts.append("steps came again later" if standstill.over else "")
    parts.append(excuse)
    over = "hung" if standstill.over else "hang"
    if excuse:
        severity = "info"
    elif standstill.over:
        severity = "high"
    else:
        severity = "critical"
    return spec.make(
        severity=severity,
        title=f"{'a long pause' if excuse else over}: {what}"[:140],
        evidence="; ".join(part for part in parts if part),
        fix=fix,
        rank=standstill.rank,
        site=site or line,
        confidence=confidence,
        proof=Proof(
            statistic="time without a step on the ranks that stand still",
            value=standstill.silent_s,
            threshold=standstill.limit_s,
            unit="s",
            formula="limit = max(30 s or GPUTOP_HANG_S, 20 x median step); what the rank does "
            "there is read from its stack, its last collective and /proc",
            inputs=(
                Input(
                    "ranks without a step", _ranks(standstill.suspected), "", "hang_suspected.ranks"
                ),
                Input("stacks", len(standstill.dumps), "ranks", "stack_dump events"),
                Input("phase", standstill.phase or "not told", "", "stack_dump.phase"),
                Input(
                    "thread state",
                    str(standstill.thread.get("state") or "not told"),
                    "",
                    "/proc/PID/task/TID/stat",
                ),
                *inputs,
            ),
        ),
    )


def _line(standstill: Standstill) -> str | None:
    return dumped_line(standstill.dump)


def _sampled(standstill: Standstill) -> bool:
    return standstill.cpu_share == standstill.cpu_share


def _number(value: float) -> float | str:
    return "not sampled" if math.isnan(value) else value


def _collective(collective: Event) -> str:
    return f"{collective.get('op') or 'a collective'!s} (number {collective.get('seq', MISSING)})"


def _names(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} waits"
    return f"ranks {', '.join(map(str, ranks))} wait"


def _ranks(suspected: Event) -> str:
    ranks = [str(rank) for rank in suspected.get("ranks") or []]
    return f"rank {', '.join(ranks)}" if ranks else "any rank"
