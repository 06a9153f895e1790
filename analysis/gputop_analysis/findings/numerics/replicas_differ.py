"""Ranks whose parameters differ: replicas that drifted apart."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.numerics.wrong_habits import schedule_site
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.sites import called_from
from gputop_analysis.findings.told import Event, parameter_names, told
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.series import RankSeries
from gputop_analysis.view import RunView

MIN_UNEQUAL = 2
Looks = dict[int, list[Event]]
"""Replica events by rank."""


@finding(
    id="NU09",
    name="replicas differ",
    family="numerics",
    cause="nan",
    trigger="checksums of the parameters differ between the ranks of a DDP group, or of ranks that "
    "sum the gradients of all parameters themselves, after two updates or more, and after the "
    "last one looked at; or those of parameters that an optimizer "
    "updates and no DDP module has, where the ranks exchange no tensors",
    fix="find what changes parameters on one rank only; broadcast them from rank 0",
    explains=("NU10",),
    no_use="where ranks hold different parameters on purpose",
    reads="a checksum of the parameters on each rank at the same step; where each rank clips and "
    "loads weights; how often DDP has summed gradients",
    silent="fewer than two ranks; sharded or tensor-parallel models; DDP under Join, whose ranks "
    "make unequally many updates and are made equal at its end",
    traps="shards that differ on purpose",
    seen_on=CPU,
)
def replicas_differ(view: RunView, spec: Spec) -> Finding | None:
    """Sums of gradients keep replicas equal only if all of them start equal and every update is
    the same.
    """
    looks = told(view, "replica")
    groups = {events[-1].get("group") for events in looks.values()}
    if len(looks) < 2 or len(looks) < view.world_size or groups != {view.world_size}:
        return None
    if any(events[-1].get("joins") for events in looks.values()):
        return None
    return _of_replicas(view, spec, looks) or _outside_of_ddp(view, spec, looks)


def _parted(looks: Looks, name: str) -> tuple[dict[int, dict[int, int]], list[int], list[int]]:
    """Checksums by rank and update, the updates that all ranks have, and those of them at which the
    sums differ; none where they do not differ in the end.
    """
    sums = {
        rank: {event["update"]: event[name] for event in events if name in event}
        for rank, events in looks.items()
    }
    common = sorted(set.intersection(*map(set, sums.values())))
    unequal = [update for update in common if _differ(sums, update)]
    if len(unequal) < MIN_UNEQUAL or common[-1] != unequal[-1] or _misaligned(sums, common):
        return sums, common, []
    return sums, common, unequal


def _differ(sums: dict[int, dict[int, int]], update: int) -> bool:
    return len({by_update[update] for by_update in sums.values()}) > 1


def _outside_of_ddp(view: RunView, spec: Spec, looks: Looks) -> Finding | None:
    """Parameters that the optimizer has and that no DDP module sums the gradients of.

    Where ranks exchange tensors, each may hold a part of one model; and what no update changes may
    as well be different.
    """
    last_looks = [events[-1] for events in looks.values()]
    if len({look.get("outside_values") for look in last_looks}) > 1 or any(
        look.get("exchange") for look in last_looks
    ):
        return None
    sums, common, unequal = _parted(looks, "outside")
    changes = all(
        by_update[unequal[0]] != by_update[unequal[-1]] for by_update in sums.values() if unequal
    )
    if not unequal or not changes:
        return None
    values = int(last_looks[0]["outside_values"])
    names = parameter_names(last_looks[0].get("outside_names", ()))
    return spec.make(
        severity="high",
        title=f"parameters outside of DDP differ between the ranks: {', '.join(names[:2])}",
        evidence=f"{values:,} values in the optimizer are in no DistributedDataParallel module "
        f"({', '.join(names)}, ...): nothing sums their gradients, and they are unequal in "
        f"{len(unequal)} of {len(common)} looks, first at update {unequal[0]}",
        fix="wrap them in DistributedDataParallel, too, best as one module with the rest of the "
        "model; or sum their gradients before the step: torch.distributed.all_reduce(p.grad), and "
        "divide by the number of ranks",
        rank=None,
        site=_update_line(view),
        confidence=0.9,
        proof=Proof(
            statistic="looks at which the ranks' checksums of them differ",
            value=len(unequal),
            threshold=MIN_UNEQUAL - 1,
            unit="looks",
            formula="checksum of up to 32 parameters, 256 values of each, after the same update "
            "on each rank; no exchange of tensors between ranks was seen",
            inputs=(Input("values", values, "", f"replica event, update {unequal[-1]}"),),
        ),
    )


def _of_replicas(view: RunView, spec: Spec, looks: Looks) -> Finding | None:
    """Replicas of DDP, or of ranks that sum gradients themselves."""
    if len({(events[-1]["update"], events[-1]["parameters"]) for events in looks.values()}) == 1:
        return None
    sums, common, unequal = _parted(looks, "parameters")
    if not unequal:
        return None
    last = unequal[-1]
    kinds: dict[int, list[int]] = {}
    for rank, by_update in sums.items():
        kinds.setdefault(by_update[last], []).append(rank)
    majority = max(kinds.values(), key=len)
    odd = sorted(set(sums) - set(majority))
    alone = odd[0] if len(odd) == 1 and len(majority) > 1 else None
    if alone is not None:
        culprit = f"rank {alone}"
    else:
        culprit = f"ranks {', '.join(map(str, sorted(sums)[:8]))}"
    by_hand = any(events[-1].get("by_hand") for events in looks.values())
    cause = _cause(view, looks, unequal[0], from_begin=unequal[0] == common[0], by_hand=by_hand)
    replicas = "replicas" if by_hand else "DDP replicas"
    return spec.make(
        severity="high",
        title=f"{replicas} {cause.course or f'differ since update {unequal[0]}'}: "
        + ("its forward is never called" if cause.is_of_all else culprit),
        evidence=f"after update {last:,} the ranks hold {len(kinds)} different sets of "
        f"parameters; unequal in {len(unequal)} of {len(common)} looks, first at update "
        f"{unequal[0]}" + (f"; {cause.evidence}" if cause.evidence else ""),
        fix=cause.fix,
        rank=None if cause.is_of_all else alone,
        site=cause.site,
        confidence=0.95,
        proof=Proof(
            statistic="looks at which the ranks' checksums differ",
            value=len(unequal),
            threshold=MIN_UNEQUAL - 1,
            unit="looks",
            formula="checksum of up to 32 parameters, 256 values of each, after the same "
            "update on each rank",
            inputs=tuple(
                Input(
                    f"checksum of rank {rank}",
                    f"{by_update[last] & 0xFFFFFFFF:08x}",
                    "",
                    f"replica event, update {last}",
                )
                for rank, by_update in sorted(sums.items())[:8]
            ),
        ),
    )


class _Cause(NamedTuple):
    """What parts the replicas, where that is known."""

    fix: str
    evidence: str = ""
    site: str | None = None
    course: str = ""
    """What the title says in place of since when they differ."""
    is_of_all: bool = False
    """Whether no rank is more to blame than another."""


def _cause(
    view: RunView, looks: Looks, first_unequal: int, *, from_begin: bool, by_hand: bool
) -> _Cause:
    """The surest of the causes that are known.

    Args:
        first_unequal: the update at which they were seen to differ first.
        from_begin: the replicas were never equal.
        by_hand: the ranks sum gradients themselves.
    """
    rates = _unequal_rates(view)
    if rates:
        return _Cause(
            "give all ranks the same learning rate: an update that differs parts the replicas, "
            "though their gradients are the same",
            f"their learning rates differ: {_rates_said(rates)}",
            _rate_site(view),
        )
    if _is_never_called(view):
        return _Cause(
            "call the DistributedDataParallel object, ddp(x), and not what it wraps: ddp.module(x) "
            "or the model itself; only its own forward makes the backward sum the gradients",
            "DDP has counted no iteration",
            called_from(view, "forward", view.ranks[0]),
            is_of_all=True,
        )
    unsummed = _updates_without_sum(view)
    if unsummed:
        return _Cause(
            "let the last backward before each optimizer.step() run outside of no_sync(), that of "
            "the micro-batches an epoch ends with, too",
            f"{unsummed} updates came without a sum of DDP's",
            _update_line(view),
        )
    unsynced = _unsynced(view, looks)
    if unsynced:
        return unsynced
    single = _done_by_some(view, from_begin=from_begin)
    if single:
        return _Cause(
            f"let all ranks do that: {single.text}; or broadcast the parameters after it: "
            "torch.distributed.broadcast(p.data, src=0)",
            single.text,
            single.site,
        )
    left_out = _left_out(looks, first_unequal)
    if left_out:
        return left_out
    edited = _edited_alone(looks, first_unequal)
    if edited:
        return edited
    if by_hand and from_begin:
        return _never_made_equal(looks)
    return _Cause(
        "look for parameters that are changed on one rank (an in-place edit, a rank-dependent "
        "branch, a gradient that bypasses DDP or no_sync without a last sync); to mend a run: "
        "torch.distributed.broadcast(p.data, src=0) for every parameter"
    )


def _unsynced(view: RunView, looks: Looks) -> _Cause | None:
    """The last backward before an update ran inside of ``no_sync()`` at most looks."""
    all_looks = [look for events in looks.values() for look in events]
    lines = [look["unsynced_at"] for look in all_looks if "unsynced_at" in look]
    if 2 * len(lines) <= len(all_looks):
        return None
    return _Cause(
        "let the last backward before each optimizer.step() run outside of no_sync(), and the "
        "earlier ones inside: only the last one sums what all have added up",
        f"the last backward before an update ran inside of no_sync(), at {len(lines)} of "
        f"{len(all_looks)} looks",
        lines[0] or _update_line(view),  # no line where several call it
    )


FEW_EDITED = 0.25
"""Of the parameters, at most: where gradients that differ part them, nearly all differ."""


def _left_out(looks: Looks, update: int) -> _Cause | None:
    """Where the ranks sum the gradients of some parameters by hand, and others differ."""
    first, names, differ = _differing(looks, update)
    places = {look["summed_in_part_at"] for look in first if "summed_in_part_at" in look}
    if not places or not differ or len(differ) == len(names):
        return None
    named = " and ".join(parameter_names(differ)[:2])
    return _Cause(
        f"sum the gradients of all parameters: {named} is left out",
        "the ranks sum fewer values a step than have gradients; "
        f"{len(differ)} of {len(names)} parameters that were compared differed then: {named}",
        places.pop() or None,
    )


def _differing(looks: Looks, update: int) -> tuple[list[Event], list[str], list[str]]:
    """The looks after an update, the names of what was compared, and of what differed; no names
    where the ranks compared other parameters.
    """
    first = [event for events in looks.values() for event in events if event["update"] == update]
    sums = {tuple(look.get("each") or ()) for look in first}
    names = first[0].get("names") or []
    if len(sums) < 2 or {len(checksums) for checksums in sums} != {len(names)}:
        return first, [], []
    differ = [name for name, *values in zip(names, *sums, strict=True) if len(set(values)) > 1]
    return first, names, differ


def _edited_alone(looks: Looks, update: int) -> _Cause | None:
    """Where few of the parameters differ, which only a hand can have changed: sums of gradients are
    the same for all ranks.
    """
    first, names, differ = _differing(looks, update)
    if not names or len(differ) > max(1, FEW_EDITED * len(names)):
        return None
    places = {look["edited_at"][name] for look in first for name in differ if name in _edits(look)}
    named = " and ".join(parameter_names(differ)[:2])
    return _Cause(
        f"what writes into {named} beside the optimizer must write the same on all ranks: let one "
        "rank decide and broadcast it, or draw from a generator that all seed alike",
        f"only {named} differed then, of {len(names)} that were compared: no update of gradients "
        "that are summed does that",
        places.pop() if len(places) == 1 else None,
    )


def _edits(look: Event) -> dict[str, str]:
    return look.get("edited_at") or {}


def _never_made_equal(looks: Looks) -> _Cause:
    """DDP gives the weights of rank 0 to all when it wraps a model; nobody has done so here."""
    last_looks = [events[-1] for events in looks.values()]
    seeds = {(look.get("random") or {}).get("seed") for look in last_looks}
    differ = "the ranks' seeds differ, and " if len(seeds) > 1 else ""
    return _Cause(
        "give all ranks the same weights to begin with, as DistributedDataParallel does: seed them "
        "alike before the model is made, or torch.distributed.broadcast(p.data, src=0) for every "
        "parameter after it; sums of gradients alone keep the ranks as far apart as they began",
        f"they were never equal: {differ}there is no DDP, which would make them so",
        next((look["made_at"] for look in last_looks if look.get("made_at")), None),
        course="were never equal",
    )


UNSUMMED = 2
"""Updates without a sum of DDP's: one may be an update that is going on."""


def _updates_without_sum(view: RunView) -> int:
    """Updates to which DDP summed no gradients on any rank, as after a backward in ``no_sync()``;
    0 where that is not sure.
    """
    last = [events[-1] for events in told(view, "ddp_progress").values()]
    if len(last) < view.world_size or any(not event.get("iterations") for event in last):
        return 0
    missing = min(int(event["step"]) - int(event["iterations"]) for event in last)
    return missing if missing >= UNSUMMED else 0


def _update_line(view: RunView) -> str | None:
    """The line of the optimizer's step."""
    looks = (look for looks in told(view, "checkup").values() for look in looks)
    return next((str(look["update_at"]) for look in looks if look.get("update_at")), None)


class _Single(NamedTuple):
    """Something that changes weights or gradients, and that not all ranks do."""

    ranks: tuple[int, ...]
    site: str
    what: str

    @property
    def text(self) -> str:
        """``only rank 0 clips gradients, at train.py:90``."""
        if len(self.ranks) == 1:
            return f"only rank {self.ranks[0]} {self.what.replace(' ', 's ', 1)}, at {self.site}"
        return f"only ranks {', '.join(map(str, self.ranks[:8]))} {self.what}, at {self.site}"


def _done_by_some(view: RunView, *, from_begin: bool) -> _Single | None:
    """Gradients that only some ranks clip, or weights that only some load.

    What is loaded before the first step counts where the replicas were never equal: rank 0 may well
    load alone what DDP then gives to all.
    """
    clips: dict[int, Counter[str]] = {rank: Counter() for rank in view.ranks}
    for rank in view.ranks:
        if clip_site := (view.hello(rank).get("clip") or {}).get("site"):
            clips[rank][clip_site] += 1
    single = _of_some(clips)
    if single:
        return _Single(*single, what="clip gradients")
    loads: dict[int, Counter[str]] = {rank: Counter() for rank in view.ranks}
    for rank, events in told(view, "weights_loaded").items():
        later = (event for event in events if from_begin or event["step"] > 0)
        loads[rank].update(str(event["site"]) for event in later if event.get("site"))
    single = _of_some(loads)
    return _Single(*single, what="load weights") if single else None


def _of_some(sites: dict[int, Counter[str]]) -> tuple[tuple[int, ...], str] | None:
    """The ranks that were at a line more often than others, and the line."""
    for site in sorted(set().union(*sites.values())):
        most_often = max(counts[site] for counts in sites.values())
        ranks = tuple(rank for rank, counts in sites.items() if counts[site] == most_often)
        if len(ranks) < len(sites):
            return ranks, site
    return None


RATE_STEPS = 3
"""Steps at the end at which rates must differ: one may be read while it changes."""


def _unequal_rates(view: RunView) -> dict[int, float]:
    """Learning rates by rank, where they differ at the last steps or looks that all ranks had; else
    none.
    """
    in_steps = {rank: _rates_of_steps(view.per_rank[rank]) for rank in view.ranks}
    in_looks = {
        rank: _rates_of_looks(looks, view.per_rank[rank].ahead)
        for rank, looks in told(view, "checkup").items()
    }
    return _apart(view, in_steps, RATE_STEPS) or _apart(view, in_looks, MIN_UNEQUAL)


def _rates_of_steps(series: RankSeries) -> dict[int, float]:
    """The rates of the last attempt by step of the ranks together, where they are above 0."""
    steps = series.steps[series.attempt_start :] - series.ahead
    rates = series.rows["lr"][series.attempt_start :]
    is_set = rates > 0  # not for NaN
    return dict(zip(steps[is_set].tolist(), rates[is_set].tolist(), strict=True))


def _rates_of_looks(looks: list[Event], ahead: int) -> dict[int, float]:
    return {look["step"] - ahead: float(look["lr_max"]) for look in looks if look.get("lr_max")}


def _apart(view: RunView, by_rank: dict[int, dict[int, float]], least: int) -> dict[int, float]:
    """The last rate of each rank, where at the last ``least`` steps that all have they differ."""
    if len(by_rank) < view.world_size:
        return {}
    common = sorted(set.intersection(*(set(rates) for rates in by_rank.values())))[-least:]
    spreads = [[rates[step] for rates in by_rank.values()] for step in common]
    if len(common) < least or any(max(rates) <= 1.001 * min(rates) for rates in spreads):
        return {}
    return {rank: rates[common[-1]] for rank, rates in by_rank.items()}


def _rate_site(view: RunView) -> str | None:
    """The line that gives a scheduler of plateaus its metric, which ranks may see differently; else
    the one that sets the rate by hand, or that makes the schedule.
    """
    plateaus = (event for events in told(view, "plateau").values() for event in events)
    looks = (look for events in told(view, "checkup").values() for look in events)
    fed_at = next((str(event["site"]) for event in plateaus), None)
    set_at = next((str(look["rate_set_at"]) for look in looks if look.get("rate_set_at")), None)
    return fed_at or set_at or schedule_site(view, view.ranks[0])


def _rates_said(rates: dict[int, float]) -> str:
    return ", ".join(f"{rate:.3g} on rank {rank}" for rank, rate in sorted(rates.items())[:8])


def _is_never_called(view: RunView) -> bool:
    """Whether DDP has counted no iteration on any rank: its gradients are never summed."""
    progress = told(view, "ddp_progress")
    return len(progress) == view.world_size and all(
        events[-1].get("iterations") == 0 for events in progress.values()
    )


def _misaligned(sums: dict[int, dict[int, int]], common: list[int]) -> bool:
    """Whether two ranks only count their updates differently: one's is the other's a step later."""
    ranks = sorted(sums)
    first = sums[ranks[0]]
    pairs = [(a, a + 1) for a in common if a + 1 in common]
    return any(
        first[a] == sums[rank][b] or first[b] == sums[rank][a]
        for a, b in pairs
        for rank in ranks[1:]
        if first[a] != first[b]
    )
