"""Reproducibility: what a seed does not fix, and equal random numbers on all ranks. Only info."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody, on_device
from gputop_analysis.findings.told import told
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.view import RunView


@finding(
    id="RE02",
    name="a seed alone does not fix the run",
    family="reproducibility",
    cause="compute",
    trigger="a seed was set on a GPU, but cudnn.benchmark is on, or algorithms "
    "need not be deterministic",
    fix="torch.use_deterministic_algorithms(True), cudnn.benchmark = False, "
    "CUBLAS_WORKSPACE_CONFIG, PYTHONHASHSEED",
    no_use="without a GPU of the run; where runs need not be repeatable",
    reads="whether a seed was set, hello.flags",
    silent="no seed was set",
    traps="a run that need not be reproduced",
)
def nondeterminism(view: RunView, spec: Spec) -> Finding | None:
    """Two runs of one seed will differ. Only worth knowing where reproducibility was asked for."""
    if not view.ranks:
        return None
    hello = view.hello()
    flags = hello.get("flags") or {}
    seed = flags.get("seed")
    if seed is None:
        return None
    on_gpu = on_device(view, view.ranks[0])
    missing = _missing(flags, hello.get("env") or {}, on_gpu)
    if not missing:
        return None
    return spec.make(
        severity="info",
        title=f"seed {seed} alone does not make the run repeatable: {missing[0][0]}",
        evidence="; ".join(label for label, _ in missing),
        fix="; ".join(fix for _, fix in missing) + " (slower; only if runs must be repeatable)",
        rank=everybody(view),
        proof=Proof(
            statistic="switches that leave room for chance, although a seed was set",
            value=len(missing),
            threshold=0,
            unit="switches",
            formula="read from torch.backends, "
            "torch.are_deterministic_algorithms_enabled() and the environment",
            inputs=(
                Input("seed", seed, "", "hello.flags.seed"),
                *(Input(label, "yes", "", "hello") for label, _ in missing),
            ),
        ),
    )


def _missing(flags: dict[str, Any], env: Mapping[str, Any], on_gpu: bool) -> list[tuple[str, str]]:
    missing = []
    if on_gpu and flags.get("cudnn_benchmark"):
        missing.append(
            ("cudnn.benchmark picks algorithms by timing", "torch.backends.cudnn.benchmark = False")
        )
    if on_gpu and flags.get("deterministic") is False:
        missing.append(
            ("algorithms need not be deterministic", "torch.use_deterministic_algorithms(True)")
        )
        if "CUBLAS_WORKSPACE_CONFIG" not in env:
            missing.append(
                (
                    "CUBLAS_WORKSPACE_CONFIG is not set",
                    "CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment",
                )
            )
    if missing and "PYTHONHASHSEED" not in env:
        missing.append(("PYTHONHASHSEED is not set", "PYTHONHASHSEED=0 in the environment"))
    return missing


@finding(
    id="RE03",
    name="same random numbers on all ranks",
    family="reproducibility",
    cause="compute",
    trigger="torch's CPU generator has the same state on all DDP ranks after the same update, "
    "and the model has dropout with a rate above 0",
    fix="torch.manual_seed(seed + rank) after the model is made",
    no_use="with tensor parallelism, which needs equal numbers",
    reads="state of torch's CPU generator on each rank after the same update",
    silent="fewer than two DDP ranks; no dropout",
    traps="tensor parallelism, which needs the same seed",
    seen_on=CPU,
)
def same_random_numbers(view: RunView, spec: Spec) -> Finding | None:
    """All ranks drop the same units and augment alike: less variety than promised."""
    if view.ranks and on_device(view, view.ranks[0]):
        return None  # dropout draws from the GPU's generator, which is not looked at
    dropout = _dropout_modules(view)
    states = _generator_states(view)
    if not dropout or len(states) < 2 or len(states) < view.world_size:
        return None
    looks = sorted(set.intersection(*(set(by_update) for by_update in states.values())))
    alike = [update for update in looks if _are_alike(states, update)]
    if len(alike) < 2 or len(alike) < len(looks):
        return None
    last_look = told(view, "replica")[view.ranks[0]][-1]
    random = last_look.get("random") or {}
    if random.get("drops") is False:
        return None
    seed = random.get("seed")
    return spec.make(
        severity="info",
        title=f"all {len(states)} ranks draw the same random numbers (seed {seed})",
        evidence=f"after updates {', '.join(map(str, alike[:4]))} torch's generator is in the "
        f"same state on all ranks, and the model has {dropout[0]}: every rank drops the same units",
        fix="torch.manual_seed(seed + rank) after the model is made (DDP broadcasts rank 0's "
        "parameters anyway); not with tensor parallelism, which needs equal numbers",
        rank=None,
        site=random.get("at"),
        proof=Proof(
            statistic="looks at which the generator's state is the same on all ranks",
            value=len(alike),
            threshold=1,
            unit="looks",
            formula="CRC-32 of torch.get_rng_state()",
            inputs=(
                Input("looks", len(looks), "", "replica events"),
                Input(
                    "seed",
                    "not known" if seed is None else seed,
                    "",
                    "torch.initial_seed(), rank 0",
                ),
            ),
        ),
    )


def _dropout_modules(view: RunView) -> list[str]:
    modules = (view.hello().get("model") or {}).get("modules") or {}
    return sorted(name for name in modules if "Dropout" in name)


def _generator_states(view: RunView) -> dict[int, dict[int, int | None]]:
    """Of each rank, the state of torch's CPU generator by the update after which it was seen."""
    states: dict[int, dict[int, int | None]] = {}
    for rank, looks in told(view, "replica").items():
        states[rank] = {look["update"]: (look.get("random") or {}).get("state") for look in looks}
    return states


def _are_alike(states: dict[int, dict[int, int | None]], update: int) -> bool:
    rank_states = {by_update[update] for by_update in states.values()}
    return len(rank_states) == 1 and None not in rank_states
