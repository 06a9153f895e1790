"""What the operating system limits and what is nearly used up: shared memory, open files."""

from __future__ import annotations

import numpy as np

from gputop_analysis.findings.advice import WORKERS, MovedSetting, Option
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import percent
from gputop_analysis.units import GIB
from gputop_analysis.view import RunView
from gputop_probes.record.reader import HostFiles

NEARLY_FULL = 0.85
NEARLY_ALL_FILES = 0.80


@finding(
    id="IN13",
    name="shared memory or open files run out",
    family="input",
    cause="input",
    trigger=f"/dev/shm is over {percent(NEARLY_FULL)} full, or a rank has over "
    f"{percent(NEARLY_ALL_FILES)} of the files open that it may",
    fix="a larger /dev/shm (--shm-size), a higher ulimit -n, or sharing_strategy file_system",
    no_use="sharing strategy and prefetching: without workers",
    reads="host.shm_used_bytes and shm_total_bytes, process.open_files against the limit",
    silent="neither is sampled",
    traps="other programs that use the same /dev/shm",
    seen_on=CPU,
)
def running_out(view: RunView, spec: Spec) -> list[Finding]:
    """Workers pass batches in shared memory, a file a tensor: without either, training dies."""
    of_hosts = (_shared_memory(spec, host) for host in view.record.hosts.values())
    return list(filter(None, of_hosts)) + _open_files(view, spec)


def _shared_memory(spec: Spec, host: HostFiles) -> Finding | None:
    last = host.host.rows[-3:]
    last = last[last["shm_total_bytes"] > 0]
    if len(last) < 3:
        return None
    used, total = (float(np.median(last[name])) for name in ("shm_used_bytes", "shm_total_bytes"))
    share = used / total
    if share <= NEARLY_FULL:
        return None
    return spec.make(
        severity="high" if share > 0.95 else "medium",
        title=f"/dev/shm is {share * 100:.0f} % full",
        evidence=f"{used / GIB:.2f} of {total / GIB:.2f} GiB are in use on {host.name}, by this "
        "run or another one; DataLoader workers hand batches over there, and a full one ends the "
        "training with a bus error",
        fix=(
            "start the container with a larger --shm-size (or --ipc=host)",
            Option(
                "lower prefetch_factor or num_workers",
                needs=(WORKERS,),
                lever=MovedSetting("num_workers", -1),
            ),
            Option("torch.multiprocessing.set_sharing_strategy('file_system')", needs=(WORKERS,)),
        ),
        host=host.name,
        proof=Proof(
            statistic="used / size of /dev/shm, median of the last three samples",
            value=100 * share,
            threshold=100 * NEARLY_FULL,
            unit="%",
            formula="no time is lost until it is full",
            inputs=(
                Input("used", used / GIB, "GiB", f"host.shm_used_bytes, {host.name}"),
                Input("size", total / GIB, "GiB", f"host.shm_total_bytes, {host.name}"),
            ),
        ),
    )


def _open_files(view: RunView, spec: Spec) -> list[Finding]:
    findings = []
    for rank, rows in view.rank_processes.items():
        limit = (view.hello(rank).get("limits") or {}).get("open_files")
        if rank in view.per_rank:
            ended_ns = int(view.per_rank[rank].rows["t_end_ns"][-1])
        else:
            ended_ns = 0
        # a process that ends closes its files
        last = rows["open_files"][rows["t_ns"] <= ended_ns][-3:]
        if not limit or len(last) < 3 or (last < 0).any():
            continue
        share = float(np.median(last)) / limit
        if share > NEARLY_ALL_FILES:
            findings.append((share, rank, int(np.median(last)), int(limit)))
    if not findings:
        return []
    share, rank, used, limit = max(findings)
    return [
        spec.make(
            severity="high" if share > 0.95 else "medium",
            title=f"rank {rank} has {used:,} of {limit:,} files open that it may",
            evidence=f"{share * 100:.0f} % of the limit (ulimit -n)"
            + (f", {len(findings)} ranks alike" if len(findings) > 1 else "")
            + "; each tensor that a DataLoader worker hands over is an open file until it is freed",
            fix=(
                "raise the limit with `ulimit -n 65536` before the start",
                Option("keep no batches that workers made", needs=(WORKERS,)),
                Option(
                    "torch.multiprocessing.set_sharing_strategy('file_system')", needs=(WORKERS,)
                ),
                Option("close files that are no longer read", last=True),
            ),
            rank=rank,
            proof=Proof(
                statistic="open files / limit, median of the last three samples",
                value=100 * share,
                threshold=100 * NEARLY_ALL_FILES,
                unit="%",
                formula="no time is lost until they run out",
                inputs=(
                    Input("open files", used, "", f"process.open_files, rank {rank}"),
                    Input("limit", limit, "", f"hello.limits.open_files, rank {rank}"),
                ),
            ),
        )
    ]
