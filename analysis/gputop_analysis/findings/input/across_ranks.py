"""Input seen across ranks: a rank that gets batches late, ranks on the same batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gputop_agent.contracts import Mesh
from gputop_analysis.findings.advice import ITERABLE, LIGHTNING, MAP_STYLE, OWN_LOOP, Option
from gputop_analysis.findings.dialect import loader_change, loader_place, loader_site
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.input.loader_looks import Workers, workers
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import RANK_WAITS, SLOW_AGAINST_OTHERS
from gputop_analysis.findings.ranks.stragglers import Straggler, straggler
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.site import named
from gputop_analysis.findings.sites import top_site
from gputop_analysis.mend import ByRule
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.rank_excess import reference
from gputop_analysis.view import Array, RunView

SHARED_OUT = "ZeroRedundancyOptimizer"
"""Of replicas, which DDP or the script itself keeps alike."""


@finding(
    id="IN11",
    name="input straggler rank",
    family="input",
    cause="straggler",
    trigger="the straggler rule (CR03) names a rank, and data wait is what it has more of "
    "than the others",
    fix="that rank's shard, where it is stored, its number of workers",
    explains=("CR03",),
    no_use="where the rank's data is as the others': then the host is what differs",
    reads="data wait and communication wait of each rank at the same steps",
    silent="fewer than two ranks; waits not known",
    traps="a file cache that warms up; a slow shard that moves from rank to rank",
    seen_on=CPU,
    pictures=(
        RANK_WAITS,
        SLOW_AGAINST_OTHERS,
    ),
)
def input_straggler(view: RunView, spec: Spec) -> Finding | None:
    """All ranks wait for one whose batches come late: what differs in its input."""
    slow_rank = straggler(view)
    if slow_rank is None or slow_rank.phase != "data":
        return None
    rank, site = slow_rank.rank, top_site(view, "data", rank=slow_rank.rank)
    differences = "; ".join(_differences(view, slow_rank))
    if differences:
        setup = f"what differs: {differences}"
    else:
        setup = "its loader is set up like the others'"
    loader = view.hello(rank).get("dataloader") or {}
    host = view.host_of(rank)
    on_host = f" on {host}" if host else ""
    return spec.make(
        severity="high" if slow_rank.cost_ms.low > 0.10 * slow_rank.wall_ms else "medium",
        title=f"rank {rank} gets its batches late: the others lose "
        f"{slow_rank.recoverable_ms.value:.1f} ms a step",
        evidence=f"rank {rank} waits {slow_rank.excess_ms['data']:.1f} ms a step longer for data "
        f"than {reference(len(view.ranks))}; the others wait {slow_rank.wait_ms[1]:.1f} ms a "
        f"step for it, it waits {slow_rank.wait_ms[0]:.1f} ms for them ({slow_rank.waits.source})"
        f"; {setup}" + (f"; {site.words}" if site else ""),
        fix=f"look at the input of rank {rank}{on_host}: the size and place "
        "of its shard, the path it reads from, "
        f"num_workers={loader.get('num_workers', 'not known')}" + named(site, ", {}"),
        rank=rank,
        host=host or None,
        site=(site.site if site else None) or loader_site(Facts(view, rank)),
        confidence=float(1 - slow_rank.culprit.p),
        recoverable_ms_per_step=slow_rank.recoverable_ms.value,
        interval_ms_per_step=(slow_rank.recoverable_ms.low, slow_rank.recoverable_ms.high),
        proof=Proof(
            statistic="how much longer than the slow rank the typical other rank waits",
            value=slow_rank.culprit.lead_ms,
            threshold=slow_rank.culprit.threshold_ms,
            unit="ms per step",
            formula="as for CR03; the cause is the phase in which the rank exceeds the "
            "median of the others most",
            inputs=(
                *(
                    Input(f"{phase} beyond the median rank", ms, "ms per step", f"steps.{phase}_ns")
                    for phase, ms in slow_rank.excess_ms.items()
                ),
                Input("p", slow_rank.culprit.p, "", "chance of such a lead among alike ranks"),
                Input(
                    "step time",
                    slow_rank.wall_ms,
                    "ms",
                    "steps.wall_ns, all ranks, common steady steps",
                ),
            ),
        ),
    )


def _differences(view: RunView, straggler: Straggler) -> list[str]:
    """How the slow rank's loader and workers differ from the others'."""
    other_ranks = [rank for rank in straggler.waits.ranks if rank != straggler.rank]
    loader = view.hello(straggler.rank).get("dataloader") or {}
    differences = []
    for name in ("num_workers", "batch_size", "dataset_length", "prefetch_factor", "pin_memory"):
        theirs = {_of_loader(view, rank, name) for rank in other_ranks}
        if len(theirs) == 1 and loader.get(name) not in theirs:
            differences.append(f"{name}={loader.get(name)} and not {theirs.pop()}")
    crew_by_rank = workers(view)
    crews = [crew_by_rank[rank] for rank in other_ranks if rank in crew_by_rank]
    if straggler.rank in crew_by_rank and crews:
        differences += _of_workers(crew_by_rank[straggler.rank], crews)
    return differences


def _of_loader(view: RunView, rank: int, name: str) -> Any:
    return (view.hello(rank).get("dataloader") or {}).get(name)


def _of_workers(workers: Workers, others: list[Workers]) -> list[str]:
    cpu = float(np.median([crew.cpu for crew in others]))
    disk = float(np.median([crew.disk for crew in others]))
    differences = []
    if abs(workers.cpu - cpu) > 0.3:
        differences.append(
            f"its workers use {workers.cpu * 100:.0f} % of a core each, "
            f"the others' {cpu * 100:.0f} %"
        )
    if workers.disk - disk > 0.2:
        differences.append(
            f"its workers wait for storage in {workers.disk * 100:.0f} % of the samples, "
            f"{disk * 100:.0f} % there"
        )
    return differences


ENOUGH_BATCHES, SAME_BATCHES = 5, 5 / 8


@finding(
    id="IN12",
    name="same data on several ranks",
    family="input",
    cause="input",
    trigger="five or more different batches, and 5 of 8 of those whose fingerprints were "
    "taken, are the same on two ranks or more of a data-parallel training",
    fix="DistributedSampler(dataset) and sampler.set_epoch(epoch); another shard for each rank",
    no_use="a sampler: with an IterableDataset, which must be split by rank; with one rank",
    reads="a checksum of the first tensor of a few batches on each rank",
    silent="fewer than two ranks; tensor or pipeline parallelism; too few batches compared",
    traps="overfitting one batch on purpose",
    seen_on=CPU,
)
def same_data(view: RunView, spec: Spec) -> Finding | None:
    """Ranks do the same work twice: their batches are equal."""
    if len(view.ranks) < 2 or not _is_data_parallel(view):
        return None
    prints = {rank: _fingerprints(view, rank) for rank in view.ranks}
    prints = {
        rank: prints_of_rank
        for rank, prints_of_rank in prints.items()
        if len(prints_of_rank) >= ENOUGH_BATCHES
    }
    if len(prints) < 2:
        return None
    distinct, times = np.unique(np.concatenate(list(prints.values())), return_counts=True)
    shared = distinct[times > 1]
    common = {
        rank: np.count_nonzero(np.isin(prints_of_rank, shared))
        for rank, prints_of_rank in prints.items()
    }
    same = [
        rank
        for rank, n in common.items()
        if n >= ENOUGH_BATCHES and n >= SAME_BATCHES * len(prints[rank])
    ]
    if len(same) < 2:
        return None
    alike, taken = sum(common[rank] for rank in same), sum(len(prints[rank]) for rank in same)
    names = ", ".join(map(str, same[:8])) + (f" and {len(same) - 8} more" if len(same) > 8 else "")
    run = Facts(view, same[0])
    dice_at, asked_at = _dice_at(view, same), run.loader.get("rank_asked_at")
    return spec.make(
        severity="high",
        title=f"ranks {names} train on the same batches",
        evidence=f"{alike} of {taken} different batches whose fingerprints were taken were seen "
        f"on another rank too; sampler {run.loader.get('sampler') or 'not known'} of the loader"
        f"{loader_place(run)}"
        + (f"; {asked_at} asks for a rank that the environment does not have" if asked_at else ""),
        fix=_rolled_alike(dice_at)
        if dice_at
        else (
            *_asked_in_vain(asked_at),
            *_shared_out_alike(run),
            Option(
                f"{loader_change(run, sampler='DistributedSampler(dataset)')}, and "
                "sampler.set_epoch(epoch) at the beginning of each epoch",
                needs=(OWN_LOOP,),
                mend=ByRule("no-distributed-sampler"),
            ),
            Option("Trainer(use_distributed_sampler=True)", needs=(LIGHTNING, MAP_STYLE)),
            Option(
                "from the IterableDataset every world_size-th sample, beginning with the rank",
                needs=(ITERABLE,),
            ),
            Option("give each rank samples of its own", last=True),
        ),
        rank=None,
        site=dice_at or asked_at or run.loader.get("sampler_at") or loader_site(run),
        confidence=0.95,
        proof=Proof(
            statistic="batches seen on another rank too / batches whose fingerprints were taken",
            value=100 * alike / taken,
            threshold=100 * SAME_BATCHES,
            unit="%",
            formula="the time of a step stays the same: each step learns from fewer different "
            "samples",
            inputs=tuple(
                Input(
                    f"batches of rank {rank}",
                    f"{common[rank]} of {len(prints[rank])}",
                    "",
                    "steps.batch_crc, CRC-32",
                )
                for rank in same[:8]
            ),
        ),
    )


def _dice_at(view: RunView, same: Sequence[int]) -> str:
    """Where a dataset rolls its dice, although each rank is dealt samples of its own: then they are
    made alike, whatever their index is. Empty where that is not known.
    """
    loaders = [Facts(view, rank).loader for rank in same]
    dealt_to = {loader.get("sampler_rank") for loader in loaders}
    if None in dealt_to or len(dealt_to) < len(same):
        return ""
    return str(loaders[0].get("dice_at") or "")


def _rolled_alike(dice_at: str) -> tuple[Option, ...]:
    return (
        Option(
            f"seed the random numbers of the dataset ({dice_at}) with the rank, or with the index "
            "of the sample: the sampler deals each rank others, but they are made by chance that "
            "begins alike"
        ),
    )


def _asked_in_vain(asked_at: str | None) -> tuple[str, ...]:
    if not asked_at:
        return ()
    return (
        f"take the rank at {asked_at} from torch.distributed.get_rank(): the variable it asks for "
        "is not set here, so that all ranks have the same one",
    )


def _shared_out_alike(run: Facts) -> tuple[str, ...]:
    """Of a sampler that shares the data out, and was given the same rank on several."""
    at = run.loader.get("sampler_at")
    if not at:
        return ()
    return (
        f"look at rank= and num_replicas= of the {run.loader.get('sampler')} at {at}, which are "
        "the same on these ranks: leave both out, and it asks torch.distributed",
    )


def _fingerprints(view: RunView, rank: int) -> Array:
    """Different fingerprints of a rank's batches; one that is always the same says nothing."""
    crc = view.per_rank[rank].rows["batch_crc"]
    return np.unique(crc[crc != 0])


def _is_data_parallel(view: RunView) -> bool:
    """DDP, FSDP or gradients summed by hand over all ranks; on larger meshes some see the same data
    on purpose.
    """
    for rank in view.ranks[:2]:
        parallel = view.hello(rank).get("parallel") or {}
        is_wrapped = bool(parallel.get("ddp") or parallel.get("fsdp"))
        if _has_several_dimensions(parallel.get("mesh")):
            return False
        if not is_wrapped and not _is_by_hand(view, rank):
            return False
    return True


def _is_by_hand(view: RunView, rank: int) -> bool:
    """Whether a rank's gradients are summed by the script itself, or its optimizer's states are
    shared out over replicas.
    """
    if any(event.get("by_hand") for event in view.events("replica", rank=rank)):
        return True
    optimizer = view.hello(rank).get("optimizer") or {}
    return SHARED_OUT in (optimizer.get("class"), *(optimizer.get("others") or ()))


def _has_several_dimensions(mesh: Mesh | None) -> bool:
    return sum(size > 1 for size in (mesh or {}).get("shape", ())) > 1
