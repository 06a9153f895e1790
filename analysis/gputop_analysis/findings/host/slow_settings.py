"""Host and Python: settings that make every step slower than it need be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gputop_agent.contracts import Optimizer
from gputop_analysis.findings.advice import Option, at_least
from gputop_analysis.findings.dialect import phrase
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import phases
from gputop_analysis.findings.registry import STRAGGLERS, Spec, finding
from gputop_analysis.findings.shares import (
    Share,
    everybody,
    on_device,
    some_ranks,
    steady_share,
    typical,
)
from gputop_analysis.findings.told import told
from gputop_analysis.mend import ByArguments, ByRule
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import percent
from gputop_analysis.view import RunView

PARTLY_ON = 0.2
"""Anomaly mode is often switched on around the backward only, which is half of a step."""
MOSTLY_ON = 0.5
"""A profiler with a schedule is on for a few steps out of many, and then costs little."""


@finding(
    id="HO16",
    name="profiler or debug aid left on",
    family="host",
    cause="host",
    trigger="anomaly mode in a fifth of the samples, a profiler in half of them, a tracer of "
    "every line, tracemalloc, Python's development mode, CUDA_LAUNCH_BLOCKING, "
    "TORCH_DISTRIBUTED_DEBUG=DETAIL, CUDA without its memory cache",
    fix="switch it off; switch it on again for the few steps that are looked into",
    explains=("HO06", *STRAGGLERS),
    no_use="where the aid is on because a fault is looked for",
    reads="hello.debug (looked at while the run goes on) and hello.env",
    silent="an aid that was not read",
    traps="a debugging session: then it is as it should be",
    seen_on=CPU,
)
def debug_aid_left_on(view: RunView, spec: Spec) -> Finding | None:
    """Aids for finding faults are on during the training itself."""
    settings: dict[str, tuple[str, Input]] = {}
    ranks_with_aids = []
    for rank in view.ranks:
        aids = list(_aids(view, rank))
        if aids:
            ranks_with_aids.append(rank)
        for name, fix, setting in aids:
            settings.setdefault(name, (fix, setting))
    if not settings:
        return None
    return spec.make(
        severity="medium",
        title=f"left on in training: {', '.join(settings)}",
        evidence="; ".join(setting.source for _, setting in settings.values())
        + "; each makes all steps slower",
        fix=[Option(fix, mend=_SWITCHES.get(name)) for name, (fix, _) in settings.items()],
        rank=ranks_with_aids[0] if len(ranks_with_aids) == 1 else everybody(view),
        site=_switched_on_at(view),
        proof=Proof(
            statistic="debug aids that are on",
            value=len(settings),
            threshold=0,
            unit="",
            formula="no time is claimed: what such an aid costs shows only without it",
            inputs=tuple(setting for _, setting in settings.values()),
        ),
    )


_SWITCHES = {
    "anomaly mode": ByRule("anomaly-mode"),
    "torch.profiler": ByRule("profiler-all-run"),
}
"""What takes them out of a script."""


_SWITCHED_AT = (("anomaly", PARTLY_ON), ("profiler", MOSTLY_ON), ("tracemalloc", 1.0))


def _switched_on_at(view: RunView) -> str | None:
    """The line that alone switches on anomaly mode, a profiler or tracemalloc; None where it is not
    known.
    """
    for rank in view.ranks:
        debug = view.hello(rank).get("debug") or {}
        for key, threshold in _SWITCHED_AT:
            if float(debug.get(key) or 0) >= threshold and debug.get(f"{key}_at"):
                return str(debug[f"{key}_at"])
    return None


def _aids(view: RunView, rank: int) -> Iterator[tuple[str, str, Input]]:
    """``(name, fix, what was seen)`` of each aid that is on in a rank."""
    yield from _sampled(view.hello(rank).get("debug") or {}, rank)
    yield from _in_environment(view, rank)


def _sampled(debug: dict[str, Any], rank: int) -> Iterator[tuple[str, str, Input]]:
    shares = (
        (
            "anomaly mode",
            "anomaly",
            PARTLY_ON,
            "remove torch.autograd.set_detect_anomaly(True) or detect_anomaly()",
        ),
        (
            "torch.profiler",
            "profiler",
            MOSTLY_ON,
            "give torch.profiler a schedule(wait=100, warmup=2, active=5)",
        ),
    )
    for name, key, threshold, fix in shares:
        if float(debug.get(key) or 0) >= threshold:
            share = 100 * float(debug[key])
            yield (
                name,
                fix,
                Input(
                    name, share, "%", f"{name} is on in {share:.0f} % of the looks at rank {rank}"
                ),
            )
    tools = (
        ("trace", "traces every line", "run without the debugger or coverage tool"),
        (
            "profile",
            "profiles every call",
            "run without it, or use a sampling profiler such as py-spy",
        ),
        (
            "tracemalloc",
            "follows every allocation",
            "remove tracemalloc.start() and PYTHONTRACEMALLOC",
        ),
        ("dev_mode", "checks every allocation", "run without -X dev and PYTHONDEVMODE"),
    )
    for key, tool, fix in tools:
        if debug.get(key):
            if debug[key] == "__main__":
                setter = f"sys.set{key}() of the script"
            else:
                setter = str(debug[key])
            name = {"tracemalloc": "tracemalloc", "dev_mode": "Python's development mode"}.get(
                key, setter
            )
            yield (
                name,
                fix,
                Input(name, "on", "", f"{name} {tool}, as rank {rank} said last"),
            )


def _in_environment(view: RunView, rank: int) -> Iterator[tuple[str, str, Input]]:
    env, cuda = view.hello(rank).get("env") or {}, on_device(view, rank)
    variables = (
        ("CUDA_LAUNCH_BLOCKING", ("1",), cuda, "every kernel launch waits for the kernel"),
        (
            "TORCH_DISTRIBUTED_DEBUG",
            ("DETAIL",),
            view.world_size > 1,
            "each collective is checked by another one",
        ),
        (
            "PYTORCH_NO_CUDA_MEMORY_CACHING",
            ("1",),
            cuda,
            "each tensor is a cudaMalloc and a cudaFree",
        ),
    )
    for name, values, matters, why in variables:
        value = str(env.get(name, ""))
        if matters and value in values:
            text = f"{name}={value} in the environment of rank {rank}: {why}"
            yield f"{name}={value}", f"unset {name}", Input(name, value, "", text)


FUSED_ON_CPU = {"Adam": (0.75, 0.60, 0.88), "AdamW": (0.75, 0.60, 0.88), "SGD": (0.55, 0.45, 0.70)}
"""Part of the optimizer's time that ``fused=True`` wins on a CPU, with its range: measured with
torch 2.13 on 4 to 1000 tensors of 64 to 4 million elements (AdamW 72 to 87 %, SGD with momentum 49
to 65 %).
"""


UPDATING = 0.08
"""Share of the step in the optimizer."""
TABLE_LOOKS = 3
TABLE_SHARE, ROWS_MET, MUCH = 0.5, 0.05, 0.3
"""Of the optimizer's values that are a table; of its rows that a batch meets; of the step that the
update takes.
"""


@finding(
    id="HO11",
    name="unfused optimizer",
    family="host",
    cause="host",
    trigger=f"the optimizer takes more than {percent(UPDATING)} of the step (lower end of the 95 "
    "% interval) with foreach=False and without fused=True; info where that is the default (CPU); "
    f"or more than {percent(MUCH)}, most of it of a table of which a batch meets few rows",
    fix="fused=True, or foreach=True where the optimizer has no fused form",
    no_use="fused=True: on a CPU before torch 2.4; for optimizers that have no such form",
    reads="steps.optimizer_ns, hello.optimizer.fused and foreach",
    silent=(
        "fewer than 20 steady steps; an optimizer that is not torch's own; only an info where "
        "foreach was not switched off"
    ),
    traps="a model so small that the optimizer is its largest part",
    seen_on=CPU,
    pictures=(phases("optimizer"),),
)
def unfused_optimizer(view: RunView, spec: Spec) -> Finding | None:
    """The update runs one small operation after another for each tensor."""
    if not any(
        (view.hello(rank).get("optimizer") or {}).get("module") == "torch" for rank in view.ranks
    ):
        return None
    update = typical(steady_share(view, rank, "optimizer") for rank in some_ranks(view))
    if update is None or not update.surely_above(UPDATING) or update.mean_ms < 0.2:
        return None
    return _of_table(view, spec, update) or _tensor_by_tensor(view, spec, update)


def _of_table(view: RunView, spec: Spec, update: Share) -> Finding | None:
    """All rows of a table are updated, and few have a gradient."""
    looks = [look for look in told(view, "checkup").get(update.rank, ()) if look.get("table")]
    optimizer = view.hello(update.rank).get("optimizer") or {}
    values = optimizer.get("parameters") or 0
    if len(looks) < TABLE_LOOKS or not values or not update.surely_above(MUCH):
        return None
    last = looks[-1]
    met = sum(look.get("table_rows_met", 0) for look in looks)
    met_share = met / max(1, sum(look.get("table_rows_looked_at", 0) for look in looks))
    share = last["table_values"] / values
    if share < TABLE_SHARE or met_share > ROWS_MET:
        return None
    name, rows = str(optimizer.get("class")), last["table_rows"]
    saved_ms = (1 - met_share) * share * update.ms.value
    return spec.make(
        severity="medium",
        title=f"{name} updates all {rows:,} rows of {last['table']}, about {100 * met_share:.1g} "
        f"% of which have a gradient: {update.ms.value:.1f} ms",
        evidence=f"the update takes {update.ms.value:.2f} ms of {update.wall_ms:.1f} ms a step, "
        f"{update.percent}; {100 * share:.0f} % of the optimizer's {values:,} values are "
        f"{last['table']}, and of {last['table_rows_looked_at']:,} of its rows "
        f"{100 * met_share:.2g} % had a gradient at {len(looks)} looks",
        fix="nn.Embedding(..., sparse=True) with torch.optim.SparseAdam (or SGD) for the table, "
        "and another optimizer for the rest: rows without a gradient then rest, and so do their "
        "averages",
        rank=everybody(view),
        site=optimizer.get("site"),
        confidence=0.85,
        recoverable_ms_per_step=saved_ms,
        interval_ms_per_step=(0.5 * saved_ms, update.ms.high),
        proof=update.proof(
            "optimizer",
            MUCH,
            "steps.optimizer_ns" if update.clock == "host" else "device.optimizer_ms",
            "recoverable = update x part of the table x rows without a gradient",
            Input("rows met", 100 * met_share, "%", f"checkup events, rank {update.rank}"),
            Input("table of all values", 100 * share, "%", "checkup event, hello.optimizer"),
        ),
    )


def _tensor_by_tensor(view: RunView, spec: Spec, update: Share) -> Finding | None:
    optimizer = view.hello(update.rank).get("optimizer") or {}
    cuda = on_device(view, update.rank)
    if not _is_slow_form(optimizer, cuda):
        return None
    asked_for = optimizer.get("foreach") is False
    name = str(optimizer.get("class"))
    gain = None if cuda else FUSED_ON_CPU.get(name)
    evidence = (
        f"{update.ms.value:.2f} ms of {update.wall_ms:.1f} ms a step, {update.percent}, "
        f"{update.clock} clock; foreach={optimizer.get('foreach')}, fused={optimizer.get('fused')}"
    )
    tensors = optimizer.get("tensors")
    if isinstance(tensors, int):
        evidence += f", {tensors:,} parameter tensors"
    return spec.make(
        severity="medium" if asked_for else "info",
        title=f"{name} updates tensor by tensor: {update.share.value * 100:.0f} % of each step, "
        f"{update.mean_ms:.1f} ms",
        evidence=evidence,
        fix=_faster_form(view, update.rank, optimizer, asked_for),
        rank=everybody(view),
        confidence=0.9 if asked_for else 0.8,
        recoverable_ms_per_step=gain[0] * update.mean_ms if gain else None,
        interval_ms_per_step=(gain[1] * update.ms.low, gain[2] * update.ms.high) if gain else None,
        proof=_optimizer_proof(update, optimizer, gain),
    )


def _is_slow_form(optimizer: Optimizer, cuda: bool) -> bool:
    """Whether one of torch's optimizers takes each tensor by itself, asked to or by default: on a
    GPU the default takes them together.
    """
    if optimizer.get("module") != "torch" or optimizer.get("fused"):
        return False
    if optimizer.get("foreach") is False:
        return True
    by_default = optimizer.get("foreach") is None and not cuda
    return by_default and str(optimizer.get("class")) in FUSED_ON_CPU


def _faster_form(view: RunView, rank: int, optimizer: Optimizer, asked_for: bool) -> Option:
    name = str(optimizer.get("class"))
    instead = " instead of foreach=False" if asked_for else ""
    if name not in FUSED_ON_CPU:
        return Option(f"foreach=True for the optimizer{instead}")
    return Option(
        phrase(Facts(view, rank), "fused", optimizer=name) + instead,
        needs=() if on_device(view, rank) else (at_least("torch", 2, 4),),
        mend=_fused(optimizer),
    )


def _fused(optimizer: Optimizer) -> ByArguments:
    return ByArguments(
        f"torch.optim.{optimizer.get('class')}",
        {"fused": True},
        drops=("foreach",),
        had={"foreach": optimizer.get("foreach")},
    )


def _optimizer_proof(
    update: Share, optimizer: Optimizer, gain: tuple[float, float, float] | None
) -> Proof:
    if gain:
        formula = (
            f"recoverable = {gain[0]:.2f} x optimizer time: fused=True won "
            f"{100 * gain[1]:.0f} % to {100 * gain[2]:.0f} % of it on a CPU"
        )
    else:
        formula = "no time is claimed: what fused=True wins was not measured on this device"
    return update.proof(
        "optimizer",
        UPDATING,
        "steps.optimizer_ns" if update.clock == "host" else "device.optimizer_ms",
        formula,
        Input("foreach", str(optimizer.get("foreach")), "", "hello.optimizer"),
        Input("fused", str(optimizer.get("fused")), "", "hello.optimizer"),
    )
