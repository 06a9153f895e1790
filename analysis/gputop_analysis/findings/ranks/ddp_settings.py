"""Settings of DistributedDataParallel and its backend that cost time."""

from __future__ import annotations

from typing import Any

import numpy as np

from gputop_analysis.findings.dialect import phrase
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.option import Option
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.sites import called_from
from gputop_analysis.mend import ByArguments
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.view import RunView

Event = dict[str, Any]

SYNCHRONISED = 0.9
"""Of the micro-batches, from which each is synchronised: counts lag by a few iterations."""
ENOUGH_ITERATIONS = 500


@finding(
    id="CR07",
    name="no_sync missing",
    family="ranks",
    cause="comm",
    trigger="gradients are accumulated over micro-batches, and DDP "
    "all-reduces after every one of them",
    fix="with model.no_sync(): around all micro-batches but the last",
    explains=("CR06",),
    no_use="where each micro-batch is an update",
    reads="all-reduces per optimizer step against micro-batches",
    silent="no gradient accumulation; counts not known",
    traps="FSDP that reshards on purpose",
    seen_on=CPU,
)
def no_sync_missing(view: RunView, spec: Spec) -> Finding | None:
    """Sums that the next micro-batch makes worthless."""
    first, last = _progress(view)
    series = view.per_rank.get(last.get("rank", -1)) if last else None
    if first is None or last is None or series is None:
        return None
    rows = series.steady_rows
    steps = last["step"] - first["step"]
    updates = int(rows["n_steps"].sum())
    if steps < 16 or updates < 20:
        return None
    micro = float(rows["micro_batches"].sum()) / updates
    synchronised = (last["iterations"] - first["iterations"]) / steps
    if micro < 1.9 or synchronised < SYNCHRONISED * micro:
        return None
    each_ms = _exposed_each_ms(view)
    won = (micro - 1) * each_ms if each_ms is not None else None
    return spec.make(
        severity="medium",
        title=f"gradients are summed over the ranks {synchronised:.1f} times per update, once "
        "would do",
        evidence=f"{micro:.1f} micro-batches and "
        f"{synchronised:.1f} "
        "all-reduces of all gradients "
        f"per optimizer step ({steps:,} "
        "steps)" + (f"; each exposes {each_ms:.1f} ms" if each_ms else ""),
        fix=_sum_once(Facts(view, last["rank"]), round(micro)),
        rank=everybody(view),
        site=called_from(view, "backward", last["rank"]),
        recoverable_ms_per_step=won,
        interval_ms_per_step=(0.5 * won, won) if won is not None else None,
        proof=Proof(
            statistic="synchronised iterations per optimizer step, against micro-batches per "
            "optimizer step",
            value=synchronised,
            threshold=SYNCHRONISED * micro,
            unit="all-reduces per step",
            formula="recoverable = (micro-batches - 1) x exposed communication of one iteration, "
            "least over the ranks",
            inputs=(
                Input(
                    "micro-batches", micro, "per step", f"steps.micro_batches, rank {series.rank}"
                ),
                Input(
                    "synchronised iterations",
                    last["iterations"] - first["iterations"],
                    "",
                    "ddp_progress events",
                ),
                Input("steps between them", steps, "", "ddp_progress events"),
                Input(
                    "exposed by one iteration",
                    "not measured" if each_ms is None else each_ms,
                    "ms",
                    "comm.wait_ns",
                ),
            ),
        ),
    )


_NO_SEARCH = ByArguments(
    "torch.nn.parallel.DistributedDataParallel",
    {"find_unused_parameters": False},
    had={"find_unused_parameters": True},
)


@finding(
    id="CR08",
    name="find_unused_parameters needless",
    family="ranks",
    cause="comm",
    trigger=f"find_unused_parameters=True, and no parameter lay idle in {ENOUGH_ITERATIONS} "
    "iterations",
    fix="find_unused_parameters=False",
    no_use="where branches of the model are taken rarely",
    reads="ddp event: find_unused_parameters and the unused bytes over many steps",
    silent="unused parameters were seen",
    traps="branches of the model that are rarely taken",
    seen_on=CPU,
)
def needless_search(view: RunView, spec: Spec) -> Finding | None:
    """DDP walks the whole graph after each forward for parameters that are all used."""
    ddp = next((e for e in view.record.events("ddp") if e.get("find_unused_parameters")), None)
    reports = list(view.record.events("ddp_progress"))
    iterations = max((int(e.get("iterations") or 0) for e in reports), default=0)
    idle = max((int(e.get("unused_parameter_bytes") or 0) for e in reports), default=0)
    if ddp is None or ddp.get("static_graph") or iterations < ENOUGH_ITERATIONS or idle:
        return None
    return spec.make(
        severity="medium",
        title=f"find_unused_parameters=True, but all parameters were used in {iterations:,} "
        "iterations",
        evidence=f"DDP searched the graph for unused parameters after each of {iterations:,} "
        f"forwards and found 0 bytes of {ddp.get('parameter_tensors') or 'all'} tensors idle in "
        "the iterations that it sampled",
        fix=(
            Option(
                phrase(Facts(view, view.ranks[0]), "unused")
                + "; if a branch of the model is taken rarely, keep the search",
                mend=_NO_SEARCH,
            ),
            "if the graph never changes, static_graph=True",
        ),
        rank=everybody(view),
        confidence=0.8,
        proof=Proof(
            statistic="synchronised iterations without an unused parameter",
            value=iterations,
            threshold=ENOUGH_ITERATIONS,
            unit="iterations",
            formula="no time is claimed: what the search costs is not measured",
            inputs=(
                Input(
                    "unused parameters, most seen",
                    idle,
                    "bytes",
                    "ddp_progress.unused_parameter_bytes, all ranks",
                ),
                Input("find_unused_parameters", "True", "", "ddp event"),
            ),
        ),
    )


@finding(
    id="CR10",
    name="slow way to use several GPUs",
    family="ranks",
    cause="comm",
    trigger="gloo sums tensors that live on GPUs, or DataParallel is used",
    fix="backend='nccl', and DistributedDataParallel started by torchrun",
    no_use="DistributedDataParallel and NCCL: without a GPU",
    reads="hello.parallel.backend and the model's class",
    silent="CPU tensors",
    traps="a process group for CPU tensors only",
    seen_on=CPU,
)
def slow_backend(view: RunView, spec: Spec) -> Finding | None:
    """A backend or wrapper that was made for something else."""
    hello = next((h for h in view.hellos.values() if h.get("parallel")), {})
    parallel = hello.get("parallel") or {}
    on_gpu = str(hello.get("device") or "cpu").startswith("cuda")
    if parallel.get("data_parallel"):
        slow_thing = "DataParallel"
        fix = "use DistributedDataParallel: torchrun --nproc-per-node=gpu train.py"
        if not on_gpu:
            fix = "train the model itself: DataParallel only passes the call on without a GPU"
        why = (
            "one process and one interpreter lock drive all GPUs, and the model is copied to "
            "them in every step"
        )
    elif parallel.get("backend") == "gloo" and on_gpu:
        slow_thing, fix = "gloo on GPUs", "init_process_group(backend='nccl')"
        why = "gloo copies each gradient to host memory and sums it on the CPU"
    else:
        return None
    return spec.make(
        severity="high" if on_gpu else "info",
        title=f"{slow_thing}: {why.split(',')[0]}"[:140],
        evidence=f"{why}; device {hello.get('device') or 'cpu'}"
        + ("" if on_gpu else ": without a GPU it changes nothing"),
        fix=fix,
        rank=everybody(view),
        confidence=0.95,
        proof=Proof(
            statistic="what the ranks say of themselves",
            value=1,
            threshold=0,
            unit="",
            formula="a fact, no estimate",
            inputs=(
                Input("backend", str(parallel.get("backend")), "", "hello.parallel.backend"),
                Input(
                    "DataParallel",
                    str(bool(parallel.get("data_parallel"))),
                    "",
                    "hello.parallel.data_parallel",
                ),
                Input("device", str(hello.get("device")), "", "hello.device"),
            ),
        ),
    )


def _progress(view: RunView) -> tuple[Event | None, Event | None]:
    """A rank's second (the first is warm-up) and last report of synchronised iterations."""
    reports = list(view.record.events("ddp_progress"))
    if reports:
        own_reports = [e for e in reports if e.get("rank") == reports[-1].get("rank")]
    else:
        own_reports = []
    # of later attempts
    starts = [i for i, e in enumerate(own_reports) if i and e["step"] <= own_reports[i - 1]["step"]]
    own_reports = own_reports[starts[-1] :] if starts else own_reports
    if len(own_reports) > 1:
        return (own_reports[0], own_reports[-1])
    return (None, None)


def _exposed_each_ms(view: RunView) -> float | None:
    """Exposed communication of one synchronised iteration , rank that waits least; medians."""
    each_ms = [
        float(np.median(rows["wait_ns"])) / 1e6
        for rank in view.ranks
        if len(rows := view.comm(rank))
    ]
    if len(each_ms) == len(view.ranks) and each_ms:
        return min(each_ms)
    return None


def _sum_once(run: Facts, micro: int) -> str:
    """How to sum gradients in the last micro-batch only."""
    if run.trainer:
        return phrase(run, "accumulate", count=micro) + " (it leaves out the sums between)"
    return (
        f"put `with model.no_sync():` around the forward and backward of the first {micro - 1} "
        "micro-batches"
    )
