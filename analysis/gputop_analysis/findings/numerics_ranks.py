"""Ranks whose numbers differ: replicas that drifted apart, losses of one rank that stand out."""

from __future__ import annotations

import numpy as np

from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.told import spread, told
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.stats import mad_sigma
from gputop_analysis.view import Array, RunView

MIN_UNEQUAL = 2


@finding(
    id="NU09",
    name="replicas differ",
    family="numerics",
    cause="nan",
    trigger="checksums of the parameters differ between the ranks of a DDP group after two updates or more, and after "
    "the "
    "last one looked at",
    fix="find what changes parameters on one rank only; broadcast them from rank 0",
    explains=("NU10",),
)
def replicas_differ(view: RunView, spec: Spec) -> Finding | None:
    """DDP keeps replicas equal only if all of them start equal and every update is the same."""
    looks = told(view, "replica")
    groups = {events[-1].get("group") for events in looks.values()}
    if len(looks) < 2 or len(looks) < view.world_size or groups != {view.world_size}:
        return None
    if len({(events[-1]["update"], events[-1]["parameters"]) for events in looks.values()}) == 1:
        return None
    sums = {rank: {one["update"]: one["parameters"] for one in events} for rank, events in looks.items()}
    common = sorted(set.intersection(*(set(one) for one in sums.values())))
    unequal = [update for update in common if len({one[update] for one in sums.values()}) > 1]
    if len(unequal) < MIN_UNEQUAL or common[-1] != unequal[-1] or _misaligned(sums, common):
        return None
    last = unequal[-1]
    kinds: dict[int, list[int]] = {}
    for rank, one in sums.items():
        kinds.setdefault(one[last], []).append(rank)
    majority = max(kinds.values(), key=len)
    odd = sorted(set(sums) - set(majority))
    alone = odd[0] if len(odd) == 1 and len(majority) > 1 else None
    who = f"rank {alone}" if alone is not None else f"ranks {', '.join(map(str, sorted(sums)[:8]))}"
    return spec.make(
        "high",
        f"DDP replicas differ since update {unequal[0]}: {who}",
        f"after update {last:,} the ranks hold {len(kinds)} different sets of parameters; unequal in {len(unequal)} of "
        f"{len(common)} looks, first at update {unequal[0]}",
        "look for parameters that are changed on one rank (an in-place edit, a rank-dependent branch, a gradient that "
        "bypasses DDP or no_sync without a last sync); to mend a run: torch.distributed.broadcast(p.data, src=0) for "
        "every parameter",
        rank=alone,
        confidence=0.95,
        proof=Proof(
            "looks at which the ranks' checksums differ",
            len(unequal),
            MIN_UNEQUAL - 1,
            "looks",
            "checksum of up to 32 parameters, 256 values of each, after the same update on each rank",
            tuple(
                Input(f"checksum of rank {rank}", f"{one[last] & 0xFFFFFFFF:08x}", "", f"replica event, update {last}")
                for rank, one in sorted(sums.items())[:8]
            ),
        ),
    )


def _misaligned(sums: dict[int, dict[int, int]], common: list[int]) -> bool:
    """Whether two ranks only count their updates differently: one's is the other's a step later."""
    ranks = sorted(sums)
    first = sums[ranks[0]]
    pairs = [(a, a + 1) for a in common if a + 1 in common]
    return any(
        first[a] == sums[r][b] or first[b] == sums[r][a] for a, b in pairs for r in ranks[1:] if first[a] != first[b]
    )


LIVE_RECORDS, MAX_RECORDS = 300, 2000
MIN_RANKS, MIN_COMMON_STEPS = 3, 50
OUTLIER_SIGMAS, MIN_RELATIVE, REPEATED_SHARE, MIN_OUTLIERS = 8.0, 0.2, 0.05, 5


@finding(
    id="NU10",
    name="loss of one rank stands out",
    family="numerics",
    cause="nan",
    trigger="one rank's loss lies 8 robust standard deviations and 20 % above the median of three ranks or more, in 5 "
    "% of "
    "the steps and at least five, and no other rank's does",
    fix="look at that rank's shard; run the steps again on another GPU",
    explains=("NU02",),
)
def rank_loss_outlier(view: RunView, spec: Spec) -> Finding | None:
    """A bad shard, or hardware that computes wrongly."""
    steps, losses, ranks = _same_steps(view)
    if len(steps) < MIN_COMMON_STEPS:
        return None
    middle = np.median(losses, axis=1)
    above = losses - middle[:, None]
    far = above > MIN_RELATIVE * np.abs(middle)[:, None]
    if far.sum(0).max() < MIN_OUTLIERS:
        return None
    sigma = np.median([mad_sigma(above[:, i]) for i in range(len(ranks))])
    out = far & (above > OUTLIER_SIGMAS * max(float(sigma), 1e-12))
    counts = out.sum(0)
    worst = int(counts.argmax())
    enough = max(MIN_OUTLIERS, REPEATED_SHARE * len(steps))
    if counts[worst] < enough or np.delete(counts, worst).max() >= MIN_OUTLIERS:
        return None
    rank, at = ranks[worst], np.flatnonzero(out[:, worst])
    return spec.make(
        "medium",
        f"the loss of rank {rank} stands out in {counts[worst]} of {len(steps)} steps",
        f"steps {', '.join(str(steps[i]) for i in at[:5])}{' ...' if len(at) > 5 else ''}: loss "
        f"{np.median(losses[at, worst]):.4g}, median of {len(ranks)} ranks {np.median(middle[at]):.4g}",
        "look at that rank's shard (corrupt or other samples, labels); if its data is as the others', run these steps "
        "again on another GPU: wrong results without an error are possible",
        rank=rank,
        confidence=0.7,
        proof=Proof(
            "steps in which the rank's loss lies 8 robust standard deviations and 20 % above the ranks' median",
            int(counts[worst]),
            float(enough),
            "steps",
            "standard deviation = median over ranks of 1.4826 x median absolute deviation of loss - median of the "
            "ranks",
            (
                Input("standard deviation", float(sigma), "", f"steps.loss of {len(ranks)} ranks"),
                Input("steps that all ranks have", len(steps), "", "steps.step"),
                Input("next rank", int(np.delete(counts, worst).max()), "steps", "the rank with the next most"),
            ),
        ),
    )


def _same_steps(view: RunView) -> tuple[Array, Array, list[int]]:
    """Steps whose own loss is known on every rank, the losses (steps x ranks) and the ranks."""
    ranks = spread(view.ranks)
    nothing = np.zeros(0, np.int64), np.zeros((0, 0)), ranks
    if len(ranks) < MIN_RANKS:
        return nothing
    known: list[tuple[Array, Array]] = []
    for rank in ranks:
        series, late = view.per_rank[rank], view.device(rank)
        rows = late if len(late) and np.isfinite(late["loss"]).any() else series.rows[series.attempt_start :]
        rows = rows[-(LIVE_RECORDS if view.live else MAX_RECORDS) :]
        finite = np.isfinite(rows["loss"])
        known.append((rows["step"][finite], rows["loss"][finite]))
    common = known[0][0]
    for steps, _ in known[1:]:
        if not np.array_equal(common, steps):
            common = np.intersect1d(common, steps)
    if len(common) < MIN_COMMON_STEPS:
        return nothing
    columns = [losses[np.searchsorted(steps, common)] for steps, losses in known]
    return common, np.stack(columns, axis=1).astype(np.float64), ranks
