"""Crashes for lack of memory: on the device, on the host, in shared memory."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gputop_analysis.findings import advice
from gputop_analysis.findings.advice import Option
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import MEMORY, TRACEBACK
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.summary import steps_at
from gputop_analysis.text import MISSING, step_number
from gputop_analysis.units import GIB
from gputop_analysis.view import RunView
from gputop_analysis.vram.oom import explain, nearest_lever
from gputop_probes.record.layout import PROCESS_RANK, PROCESS_WORKER

if TYPE_CHECKING:
    from gputop_analysis.vram.estimate import Estimate
    from gputop_analysis.vram.levers import Lever

Event = dict[str, Any]

FRAGMENTED = 0.10
"""Reserved but unallocated memory, of the card, from which fragmentation comes first."""
_SHM_WORDS = (
    "unable to write to file </torch_",
    "unable to allocate shared memory",
    "unable to open shared memory object",
    "insufficient shared memory",
)
_BUS_ERROR = ("bus error", "sigbus")
ROOMY_BYTES = 1 << 30
"""Left in /dev/shm at the fullest moment seen: a batch does not fill that between two samples."""


@finding(
    id="HC04",
    name="CUDA out of memory",
    family="crash",
    cause="crash",
    trigger="torch.OutOfMemoryError ended a rank",
    fix="smaller micro-batch with gradient accumulation, activation checkpointing, "
    "expandable_segments:True",
    explains=("HC06", "HC09"),
    immediate=True,
    no_use="what is on already is not named again",
    reads="exception event of class OutOfMemoryError, memory at that time",
    silent="an error that the script caught and went on from",
    traps="a search for the largest batch, which runs out on purpose",
    pictures=(
        MEMORY,
        TRACEBACK,
    ),
)
def cuda_out_of_memory(view: RunView, spec: Spec) -> Finding | None:
    """The device had no room for one tensor more."""
    event = next((e for e in _by_time(view) if _is_cuda_oom(e)), None)
    if event is None:
        return None
    rank, step = event.get("rank"), steps_at(view.record, event)
    met = replace(explain(event), step=step)
    sizes, lever = met.sizes, nearest_lever(view, met)
    sizes_text = ", ".join(f"{name} {size / GIB:.2f} GiB" for name, size in sizes.items())
    growth, foreign = _growth(view, rank), _foreign_bytes(view)
    where = f"{event.get('site') or 'an unknown line'}, {met.where()}"
    layer = f", {met.phase} of {met.layer}" if met.layer else ""
    asked_text = ""
    if "asked" in sizes:
        asked_text = f" for {sizes['asked'] / GIB:.2f} GiB"
    return spec.make(
        severity="critical",
        title=f"rank {rank} ran out of GPU memory{asked_text} at step {step_number(step)}{layer}",
        evidence=f"{event.get('class')} at {where}"
        + (f"; held by {met.holders()}" if met.holders() else "")
        + (f"; {sizes_text}" if sizes_text else "")
        + (f"; peak grew by {growth / GIB:.2f} GiB since step 10" if growth > 0 else "")
        + _snapshot(view)
        + (f"; other processes hold {foreign / GIB:.2f} GiB" if foreign > 0 else ""),
        fix=Option(_advice(sizes, growth, foreign, lever[0] if lever else None), assumes=False),
        rank=rank,
        site=event.get("site"),
        host=event.get("host"),
        proof=Proof(
            statistic="memory that was asked for beyond what was free",
            value=sizes.get("asked", 0.0) / GIB,
            threshold=sizes.get("free", 0.0) / GIB,
            unit="GiB",
            formula="sizes as PyTorch's message says them; growth = last peak - peak of step 10",
            inputs=(
                *(
                    Input(name, size / GIB, "GiB", "exception.message")
                    for name, size in sizes.items()
                ),
                *(
                    Input(f"held by {name}", size / GIB, "GiB", "exception.memory")
                    for name, size in met.held.items()
                ),
                *_lever_inputs(lever),
                Input(
                    "growth since step 10",
                    growth / GIB,
                    "GiB",
                    f"steps.peak_allocated_bytes, rank {rank}",
                ),
                Input(
                    "held by other processes",
                    foreign / GIB,
                    "GiB",
                    "gpu.memory_foreign_bytes, last sample",
                ),
            ),
        ),
    )


@finding(
    id="HC05",
    name="host out of memory",
    family="crash",
    cause="crash",
    trigger="the command or a rank ended by SIGKILL while the kernel's "
    "count of out-of-memory kills grew",
    fix="fewer workers, smaller prefetch, pin_memory=False, or more memory for the job",
    explains=("HC06", "HC09", "ME05", "IN13"),
    immediate=True,
    no_use="fewer workers: without them; pin_memory=False: where batches are not pinned",
    reads="exit by SIGKILL together with growth of host.cgroup_oom_kill_total",
    silent="the counter did not grow",
    traps="a kill by the user or the scheduler",
    seen_on=CPU,
    pictures=(MEMORY,),
)
def host_out_of_memory(view: RunView, spec: Spec) -> Finding | None:
    """The kernel killed a process of the run for lack of host memory."""
    kills, codes = out_of_memory_kills(view), _exit_codes(view)
    if kills < 1 or not (128 + signal.SIGKILL in codes or _says(view, "killed by signal: killed")):
        return None
    largest_process, grown = _largest(view)
    limit = _memory_limit(view)
    return spec.make(
        severity="critical",
        title=f"the kernel killed {'a process' if kills == 1 else f'{kills} processes'} of the "
        "run: host memory is full",
        evidence=f"{kills} out-of-memory kill(s) during the run, exit by SIGKILL"
        + (f"; memory limit {limit / GIB:.2f} GiB" if limit > 0 else "")
        + (f"; largest was {largest_process}" if largest_process else ""),
        fix=_less_host_memory(Facts(view, view.ranks[0]) if view.ranks else None, grown),
        rank=view.ranks[0] if len(view.ranks) == 1 else None,
        proof=Proof(
            statistic="out-of-memory kills during the run, with an exit by SIGKILL",
            value=kills,
            threshold=0,
            unit="processes",
            formula="growth of host.cgroup_oom_kill_total or of the kernel's own count "
            "(run_end.oom_kills), the larger one",
            inputs=(
                Input(
                    "memory limit",
                    limit / GIB if limit > 0 else "none",
                    "GiB",
                    "host.cgroup_memory_max_bytes",
                ),
                Input(
                    "largest process",
                    largest_process or "not sampled",
                    "",
                    "process.rss_bytes, last samples",
                ),
            ),
        ),
    )


@finding(
    id="HC07",
    name="shared memory full",
    family="crash",
    cause="crash",
    trigger=f"a worker died of SIGBUS where /dev/shm had less than {ROOMY_BYTES >> 30} GiB left or "
    "was not looked at, or torch could not write to its shared memory file",
    fix="a larger /dev/shm (docker run --shm-size=16g), or the file_system sharing strategy",
    explains=("HC06", "HC09", "IN13"),
    immediate=True,
    no_use="where shared memory cannot be enlarged: then by file",
    reads="exit by SIGBUS, errors about /dev/shm, host.shm_total_bytes",
    silent="neither was seen",
    traps="another disk that is full",
    seen_on=CPU,
)
def shared_memory_full(view: RunView, spec: Spec) -> Finding | None:
    """Batches travel from workers through /dev/shm, and it was full."""
    event = next((e for e in _by_time(view) if _mentions(e, (*_SHM_WORDS, *_BUS_ERROR))), None)
    if event is None:
        return None
    used, total = _shm(view)
    if _mentions(event, _BUS_ERROR) and total - used > ROOMY_BYTES:
        return None  # a mapped file that is cut while it is read ends a worker so, too
    lines = [
        line
        for line in str(event.get("message")).splitlines()
        if _mentions({"message": line}, _SHM_WORDS + _BUS_ERROR)
    ]
    message = lines[-1].strip()[:160]
    full = ""
    if used > 0.5 * total:
        full = f"; /dev/shm {used / GIB:.2f} of {total / GIB:.2f} GiB"
    workers = (view.hello(event.get("rank")).get("dataloader") or {}).get("num_workers")
    fewer = ""
    if workers:
        fewer = f"; num_workers={workers} hold up to prefetch_factor batches each there"
    return spec.make(
        severity="critical",
        title=f"rank {event.get('rank')}: a worker found no room in shared memory, step "
        f"{event.get('step', MISSING)}",
        evidence=message + full,
        fix="enlarge /dev/shm (docker run --shm-size=16g, or an emptyDir of medium Memory in "
        "Kubernetes), or call torch.multiprocessing.set_sharing_strategy('file_system')" + fewer,
        rank=event.get("rank"),
        site=event.get("site"),
        host=event.get("host"),
        proof=Proof(
            statistic="exceptions that tell of SIGBUS or of a failed write to shared memory",
            value=1,
            threshold=0,
            unit="",
            formula="the words are looked for in the exception's message",
            inputs=(
                Input("message", message, "", f"exception event, rank {event.get('rank')}"),
                Input("/dev/shm used, at most", used / GIB, "GiB", "host.shm_used_bytes"),
                Input("/dev/shm", total / GIB, "GiB", "host.shm_total_bytes"),
            ),
        ),
    )


def _snapshot(view: RunView) -> str:
    """Where the allocator's own account of that moment is; empty without one."""
    taken = view.record.events("memory_snapshot")
    if not any(e.get("reason") == "out of memory" and e.get("path") for e in taken):
        return ""
    return f"; `gputop memory {view.record.path.name}` shows who held it, from a snapshot"


def out_of_memory_kills(view: RunView) -> int:
    """Processes killed by the kernel for lack of memory: of the job's cgroup, or the machine."""
    kills = sum(int(e.get("oom_kills") or 0) for e in view.record.events("run_end"))
    in_group = 0
    for host in view.record.hosts.values():
        if len(host.host.rows):
            counter = host.host.rows["cgroup_oom_kill_total"]
        else:
            counter = []
        if len(counter) and counter[0] >= 0:
            in_group += max(0, int(counter[-1]) - int(counter[0]))
    return max(kills, in_group)


def _by_time(view: RunView) -> list[Event]:
    return sorted(view.record.events("exception"), key=lambda e: e.get("t_ns", 0))


def _is_cuda_oom(event: Event) -> bool:
    return event.get("class") == "OutOfMemoryError" or _mentions(
        event, ("cuda out of memory", "hip out of memory")
    )


def _mentions(event: Event, words: tuple[str, ...]) -> bool:
    message = str(event.get("message") or "").lower()
    return any(word in message for word in words)


def _says(view: RunView, words: str) -> bool:
    return any(_mentions(event, (words,)) for event in view.record.events("exception"))


def _exit_codes(view: RunView) -> set[int]:
    return {int(h.state.exit_code) for h in view.record.hosts.values() if h.state.exit_code}


def _growth(view: RunView, rank: int | None) -> int:
    """Of the peak of allocated device memory since step 10; 0 where it was not measured."""
    series = view.per_rank.get(rank) if rank is not None else None
    if series is None or len(series.rows) < 12:
        return 0
    peak = series.rows["peak_allocated_bytes"][series.attempt_start :]
    if len(peak) > 11 and peak[10] > 0:
        return int(peak[-1] - peak[10])
    return 0


def _foreign_bytes(view: RunView) -> int:
    newest = [
        host.gpu.rows[-1]["memory_foreign_bytes"]
        for host in view.record.hosts.values()
        if len(host.gpu.rows)
    ]
    return max([0, *(int(size) for size in newest)])


def _lever_inputs(lever: tuple[Lever, Estimate] | None) -> list[Input]:
    if lever is None:
        return []
    change, answer = lever
    source = f"estimate by the {answer.peak.tier} tier, of the run as it described itself"
    return [
        Input("estimated for this run", answer.device_total / GIB, "GiB", source),
        Input(
            f"estimated with {change.change}",
            (answer.device_total - change.saves) / GIB,
            "GiB",
            source,
        ),
    ]


def _advice(sizes: dict[str, float], growth: int, foreign: int, lever: Lever | None) -> str:
    total = sizes.get("total", 0.0)
    first = []
    if foreign > 0.05 * (total or float("inf")):
        first.append("end the other processes on this GPU (`nvidia-smi`)")
    if total and sizes.get("idle", 0.0) > FRAGMENTED * total:
        first.append(
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (memory is "
            "reserved but in pieces)"
        )
    if growth > 0.1 * (sizes.get("allocated") or float("inf")):
        first.append(
            "look for what grows: losses kept with their graph (use loss.item()), longer inputs"
        )
    if lever is not None:
        first.append(
            f"nearest change that would have fitted: {lever.change} (saves "
            f"{lever.saves / GIB:.2f} GiB)"
        )
    else:
        first.append(
            "halve the micro-batch and accumulate twice as often, or use activation checkpointing"
        )
    return "; ".join(first)


def _largest(view: RunView) -> tuple[str, int]:
    """The process of the run with the most memory in the last samples, in words, and its kind."""
    best: tuple[int, str, int] = (0, "", -1)
    for host in view.record.hosts.values():
        rows = np.asarray(host.process.rows[-2000:])
        if len(rows):
            rows = rows[rows["t_ns"] >= rows["t_ns"][-1] - 3 * 10**9]
            row = rows[int(rows["rss_bytes"].argmax())]
            process_kinds = {
                PROCESS_RANK: f"rank {row['rank']}",
                PROCESS_WORKER: f"a worker of rank {row['rank']}",
            }
            name = process_kinds.get(int(row["kind"]), "another process")
            text = f"{name} (pid {row['pid']}) with {row['rss_bytes'] / GIB:.2f} GiB"
            best = max(best, (int(row["rss_bytes"]), text, int(row["kind"])))
    return best[1], best[2]


def _less_host_memory(run: Facts | None, grown: int) -> list[str | Option]:
    """What holds host memory in this run, and what would hold less."""
    loader = run.loader if run else {}
    options: list[str | Option] = []
    if workers := loader.get("num_workers"):
        words = (
            f"lower num_workers from {workers}, or prefetch_factor (each worker holds its batches)"
        )
        options.append(Option(words, lever=advice.MovedSetting("num_workers", -1)))
    if loader.get("pin_memory") and run is not None and run.on_gpu:
        options.append("pin_memory=False in the DataLoader: pinned memory cannot be swapped")
    if grown == PROCESS_WORKER:
        options.append(
            "arrays in place of lists of objects in the dataset (each worker "
            "copies what it touches)"
        )
    elif grown == PROCESS_RANK:
        options.append("look for what grows in the training process")
    return [*options, "give the job more memory"]


def _memory_limit(view: RunView) -> int:
    limits = [
        int(host.host.rows[-1]["cgroup_memory_max_bytes"])
        for host in view.record.hosts.values()
        if len(host.host.rows)
    ]
    return min((limit for limit in limits if limit > 0), default=-1)


def _shm(view: RunView) -> tuple[int, int]:
    """Most used and total bytes of /dev/shm; zeros where it was not sampled."""
    for host in view.record.hosts.values():
        rows = host.host.rows
        if len(rows):
            return max(0, int(rows["shm_used_bytes"].max())), max(
                0, int(rows["shm_total_bytes"][-1])
            )
    return 0, 0
