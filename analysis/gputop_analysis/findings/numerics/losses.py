"""Numerics: losses that are no numbers, and losses that jump."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gputop_agent import wire
from gputop_analysis.findings.advice import NOT_CLIPPED, Option
from gputop_analysis.findings.dialect import phrase
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.host.periodic import SURE, strongest_period
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.numerics.origins import (
    WATCH,
    Event,
    advice,
    beside_model,
    in_short,
    inputs,
    nan_origin,
    of_loss_operation,
    origin_place,
    sentence,
    site_of,
    spike_origin,
    suspicion,
)
from gputop_analysis.findings.numerics.trained_copies import are_of_a_copy
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.sites import called_from
from gputop_analysis.findings.told import spread, told
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.raised import fatal
from gputop_analysis.series import RankSeries
from gputop_analysis.spikes import TOGETHER_STEPS, instabilities, spikes_of, stand_outs, steps_named
from gputop_analysis.stats import mad_sigma
from gputop_analysis.summary import steps_at
from gputop_analysis.text import counted, factor, step_number
from gputop_analysis.training_series import collect
from gputop_analysis.view import Array, RunView, once_per_view

LIVE_STEPS = 600
NEIGHBOURS = 5
"""Records whose median is the level of a rank's loss between two of them."""
SPIKE_WINDOW = 100
BEGINNING, SMALL = 20, 0.1
"""First losses, and the part of them that a jump must reach to matter: later ones may be tiny."""
MIXED = 0.1
"""A loss of both signs, negative in more than this part of the steps, is no error."""
JOINT_POINTS = 400
SPIKE_K, CERTAIN_K, CERTAIN_RELATIVE = 8.0, 12.0, 0.5
"""Heavy-tailed losses pass k = 8 about once in 1000 steps; only beyond this is a single spike worth
an alarm.
"""


@finding(
    id="NU01",
    name="non-finite loss",
    family="numerics",
    cause="nan",
    trigger="a loss is NaN or infinite, or a weight is where an exception ends a rank",
    fix="lower the learning rate, clip gradients, use bf16 instead of fp16, look "
    "at the batch of that step",
    explains=("NU02", "NU03", "NU04", "NU07", "NU10"),
    immediate=True,
    no_use="bf16: where nothing is float16; clipping: where gradients are clipped",
    reads="nonfinite, nan_origin and exception events, steps.loss and its flag",
    silent="the loss is not read",
    traps="masked batches without a target",
    seen_on=CPU,
)
def nonfinite_loss(view: RunView, spec: Spec) -> Finding | None:
    """The training diverged or met a bad batch."""
    first_of_ranks = _first_of_ranks(view)
    if not first_of_ranks:
        return _weights_at_the_end(view, spec)
    first = min(first_of_ranks)
    origin = nan_origin(view, first.step)
    place = origin_place(view, origin)
    losses = _bad_losses(view.per_rank[first.rank])
    settings = _settings(view.per_rank[first.rank].rows, first.step)
    title = f"loss is {first.value} at step {first.step} on rank {first.rank}"
    if losses.recovered:
        title += ", finite again since"
    elif losses.steps > 1:
        title += " and stays so"
    if origin and in_short(origin):
        title += f": {in_short(origin)}"
    other_ranks = sorted(other.rank for other in first_of_ranks if other.rank != first.rank)
    return spec.make(
        severity="high" if losses.recovered else "critical",
        title=title,
        evidence=_evidence(first, losses, settings, other_ranks)
        + (f"; {sentence(origin, len(view.ranks))}" if origin else "")
        + suspicion(place),
        fix=_against_a_bad_loss(Facts(view, first.rank), origin, place),
        rank=first.rank,
        site=site_of(place),
        proof=Proof(
            statistic="steps with a loss that is NaN or infinite",
            value=max(losses.steps, 1),
            threshold=0,
            unit="steps",
            formula="a loss x is no number where x - x != 0; one is enough",
            inputs=(
                Input(
                    "first such step",
                    first.step,
                    "",
                    f"nonfinite event or steps.flags, rank {first.rank}",
                ),
                Input("what it was", first.value, "", "nonfinite event"),
                *(Input("just before", text, "", f"steps, rank {first.rank}") for text in settings),
                *(inputs(origin) if origin else ()),
            ),
        ),
    )


def _weights_at_the_end(view: RunView, spec: Spec) -> Finding | None:
    """Of a rank that failed over weights that were no numbers, though no loss was read that was."""
    failed = next((event for event in fatal(view.record) if event.get("bad_weight")), None)
    if failed is None:
        return None
    rank, step = int(failed.get("rank", 0)), step_number(steps_at(view.record, failed))
    return spec.make(
        severity="critical",
        title=f"weights are NaN or infinite where rank {rank} fails at step {step}",
        evidence=f"{failed['bad_weight']} was, as {failed.get('class')} ended the rank at "
        f"{failed.get('site') or 'an unknown line'}; "
        "the loss went wrong in one of the steps before",
        fix=(
            f"{WATCH} names the layer, the operation and the batch",
            *_against_divergence(Facts(view, rank)),
        ),
        rank=rank,
        site=failed.get("site"),
        proof=Proof(
            statistic="ranks that an exception ended with a weight that is NaN or infinite",
            value=1,
            threshold=0,
            unit="",
            formula="of each weight in the CPU's memory the first values",
            inputs=(Input("weight", failed["bad_weight"], "", "exception event"),),
        ),
    )


class _FirstBad(NamedTuple):
    """The first bad loss of a rank; of two, the smaller came first."""

    step: int
    rank: int
    value: str
    unread: int
    """Losses right before it that were not read."""


class _BadLosses(NamedTuple):
    """What a rank's records say of its losses."""

    steps: int
    """With a loss that is no number."""
    is_about: bool
    """Records of several steps hold one loss, so that the number is not exact."""
    recovered: bool
    """The last loss that was read is finite."""


def _bad_losses(series: RankSeries) -> _BadLosses:
    bad = (series.rows["flags"] & wire.F_NONFINITE) != 0
    finite = np.isfinite(series.rows["loss"])  # of the last step that a record stands for
    read = finite[finite | bad]  # of some records no loss is known
    return _BadLosses(
        steps=int(np.where(finite, 1, series.n_steps)[bad].sum()),
        is_about=series.n_steps[bad].max(initial=1) > 1,
        recovered=len(read) > 0 and bool(read[-1]),
    )


def _settings(rows: Array, step: int) -> list[str]:
    """Learning rate, loss scale and last good loss at a step, where they are known."""
    settings = []
    row = _row_of(rows, step)
    if row is not None and np.isfinite(row["lr"]):
        settings.append(f"lr {row['lr']:.3g}")
    if row is not None and np.isfinite(row["loss_scale"]):
        settings.append(f"loss scale {row['loss_scale']:.4g}")
    return settings + _last_good(rows, step)


def _evidence(
    first: _FirstBad, losses: _BadLosses, settings: list[str], other_ranks: list[int]
) -> str:
    words = f"first at step {first.step} on rank {first.rank}"
    if first.unread:
        words += f", or in one of the {first.unread:,} before it, whose losses were not read"
    if settings:
        words += f" ({', '.join(settings)})"
    about = "about " if losses.is_about else ""
    words += f"; {about}{counted(losses.steps, 'step')} seen with a loss that is no number"
    if other_ranks:
        words += f"; also on ranks {', '.join(map(str, other_ranks))}"
    return words


def _against_a_bad_loss(run: Facts, origin: Event | None, place: Event) -> tuple[str | Option, ...]:
    """What to do at the origin, and where that is no bad batch, what makes divergence rarer."""
    first = advice(origin, place)
    if origin is not None and beside_model(origin):
        return first
    if origin is not None and of_loss_operation(origin):
        return (*first, "look at the batch of that step")
    if origin is not None and origin["direction"] == "input":
        return (*first, "leave out what torch.isfinite says no to, where the dataset is read")
    return (*first, "look at the batch of that step", *_against_divergence(run))


def _against_divergence(run: Facts) -> tuple[str | Option, ...]:
    return (
        "then a lower learning rate or a longer warm-up",
        Option("gradient clipping: " + phrase(run, "clip", norm=1.0), needs=(NOT_CLIPPED,)),
        "bf16 instead of fp16",
    )


def _first_of_ranks(view: RunView) -> list[_FirstBad]:
    """Of each rank that had a bad loss, the first."""
    first = [_first_nonfinite(view, rank) for rank in view.ranks]
    return [bad for bad in first if bad is not None]


def _first_nonfinite(view: RunView, rank: int) -> _FirstBad | None:
    events = told(view, "nonfinite").get(rank)
    if events:
        first = min(events, key=lambda event: event.get("step", 0))
        return _FirstBad(
            step=int(first.get("step", 0)),
            rank=rank,
            value=_name(first.get("value")),
            unread=int(first.get("unread", 0)),
        )
    tables = [view.per_rank[rank].rows]
    if len(view.record.device(rank)):
        tables.append(view.device(rank))
    for rows in tables:
        bad = np.flatnonzero(rows["flags"] & wire.F_NONFINITE)
        if len(bad):
            return _FirstBad(int(rows["step"][bad[0]]), rank, "not finite", unread=0)
    return None


def _name(value: Any) -> str:
    text = str(value).lower()
    if "nan" in text or value is None:
        return "NaN"
    if "inf" in text:
        return "infinite"
    return "not finite"


def _row_of(rows: Array, step: int) -> Any:
    at = np.flatnonzero(rows["step"] >= step)
    return rows[at[0]] if len(at) else None


def _last_good(rows: Array, step: int) -> list[str]:
    before = rows["loss"][rows["step"] < step]
    finite = before[np.isfinite(before)]
    return [f"last finite loss {finite[-1]:.4g}"] if len(finite) else []


SOON_STEPS = 2
"""Steps after weights were loaded in which a jump of the loss may be their doing."""
RARE, BRIEF = 2, 8
"""Jumps that a short run may have, and records of one that was over soon."""


@finding(
    id="NU02",
    name="loss spike",
    family="numerics",
    cause="nan",
    trigger=f"a loss 8 robust standard deviations and 20 % above the {SPIKE_WINDOW} steps before "
    "it; medium from 12 and 50 %, where it is more than a tenth of the first losses",
    fix="look at the batch of that step; clip gradients; lower the learning rate",
    explains=("NU03",),
    no_use=(
        "the batch: where the loss jumps in a rhythm, which is the script's own doing; clipping: "
        "where it is on"
    ),
    reads="steps.loss against the median of the last 100, spike_origin and weights_loaded events",
    silent="fewer than 30 losses before it",
    traps=(
        "a new epoch or a curriculum that is harder; a loss of both signs, "
        "which weighs rewards, is an info"
    ),
    seen_on=CPU,
)
def loss_spike(view: RunView, spec: Spec) -> Finding | None:
    """The mean loss over the ranks jumps up."""
    firsts, steps, losses = mean_losses(view)
    spikes, levels, all_sigmas = _spikes(losses, view.live)
    if not len(spikes):
        return None
    at_worst = int(np.argmax(losses[spikes]))
    worst, level, sigmas = (
        int(spikes[at_worst]),
        float(levels[at_worst]),
        float(all_sigmas[at_worst]),
    )
    loss, step = float(losses[worst]), int(steps[worst])
    certain = sigmas > CERTAIN_K and loss > level + CERTAIN_RELATIVE * abs(level)
    rare = max(RARE, len(losses) // 500)
    is_rare = _episodes(steps[spikes]) <= rare and len(spikes) <= BRIEF * rare
    records_before = min(worst, SPIKE_WINDOW)
    before = losses[worst - records_before : worst + 1]
    rewards = MIXED < float(np.mean(before < 0)) < 1 - MIXED
    period = _rhythm(steps[spikes])
    repeats = period > 0 or _episodes(steps[spikes]) >= RHYTHM
    moves = repeats and networks_beside(view)
    wider = _scatters_more(losses, worst)
    small = 0 < loss < SMALL * float(np.median(losses[:BEGINNING]))
    apart = are_of_a_copy(view.per_rank[view.ranks[0]].rows, steps, losses, spikes)
    harmless = rewards or moves or wider or small or apart
    at = steps_named(int(firsts[worst]), step)
    lr = _learning_rate(view.per_rank[view.ranks[0]].rows, step)
    moved, loaded = spike_origin(view, step), _loaded_before(view, step)
    if level > 0:
        title = f"loss jumps to {loss:.4g} at {at}, {factor(loss / level)} times its level"
    else:
        title = f"loss jumps to {loss:.4g} at {at} from {level:.4g}"
    if loaded:
        fix = f"look at the weights that {loaded} loads: are they all, and of this model?"
    elif apart:
        fix = "nothing to mend: another optimizer's steps, as of an evaluation that trains a copy"
    elif wider:
        fix = "nothing to mend: from there on the loss scatters as far again and again"
    else:
        fix = _after_a_jump(period, rewards, moves, bool(moved))
    return spec.make(
        severity="medium" if (certain or not is_rare) and not harmless else "info",
        title=title,
        evidence=f"loss {loss:.4g} at {at}{lr}; the {records_before} records before it "
        f"have a median of {level:.4g}, and it stands {sigmas:,.0f} robust standard deviations "
        f"above; {counted(len(spikes), 'such step')} in "
        f"{len(losses):,}{_together(view, step)}{moved}"
        + (f"; weights were loaded at {loaded} just before" if loaded else ""),
        fix=fix,
        rank=everybody(view),
        site=loaded or called_from(view, "forward", view.ranks[0]),
        proof=Proof(
            statistic=f"(loss - median of up to {SPIKE_WINDOW} records before it) / robust "
            "standard deviation of these",
            value=sigmas,
            threshold=8.0,
            unit="standard deviations",
            formula="standard deviation = 1.4826 x median absolute deviation; medium from 12 and "
            f"50 % above the median, or where it comes more than {RARE} times and more often than "
            f"once in 500 records, or for more than {BRIEF}",
            inputs=(
                Input(
                    "loss",
                    loss,
                    "",
                    f"steps.loss_max or device.loss at {at}, mean over ranks",
                ),
                Input("median before it", level, "", f"{records_before} records before"),
                Input("such records", len(spikes), "", f"of {len(losses):,}"),
            ),
        ),
    )


def _spikes(losses: Array, is_live: bool) -> tuple[Array, Array, Array]:
    """Indices of losses that stand out, the level below each, and by how many deviations."""
    spikes, levels, sigmas = stand_outs(losses)
    if not is_live or len(losses) < 2 * SPIKE_WINDOW:
        return spikes, levels, sigmas
    # a window that moves on would judge its first steps anew
    recent = spikes >= SPIKE_WINDOW
    return spikes[recent], levels[recent], sigmas[recent]


def _loaded_before(view: RunView, step: int) -> str | None:
    """Where weights were loaded into a model just before a jump of the loss; None: nowhere."""
    for events in told(view, "weights_loaded").values():
        for event in events:
            if event.get("site") and 0 < event["step"] <= step <= event["step"] + SOON_STEPS:
                return str(event["site"])
    return None


def _learning_rate(rows: Array, step: int) -> str:
    """Of that step, in words; empty where it was not seen."""
    row = _row_of(rows, step)
    if row is None or not np.isfinite(row["lr"]):
        return ""
    return f", lr {row['lr']:.3g}"


@once_per_view
def networks_beside(view: RunView) -> bool:
    """Whether most steps also run a network without gradients (policy, target, teacher)."""
    if not view.ranks:
        return False
    if Facts(view, view.ranks[0]).acts or view.hello().get("network_beside"):
        return True
    series = view.per_rank[view.ranks[0]]
    rows = series.rows[series.after_set_up]
    measured = rows["flags"][(rows["flags"] & wire.F_ESTIMATED) == 0]
    return len(measured) > 0 and float(((measured & wire.F_EVAL) != 0).mean()) > 0.5


STAYS = 0.5
"""Part of the records after a jump that are as high, from which the loss has jumped and stayed."""


def _scatters_more(losses: Array, at: int) -> bool:
    """Whether a jump stands out from what was before it only: the loss scatters more from there on,
    as of rewards.

    Not where most of what follows is as high.
    """
    later = losses[at + 1 : at + 1 + 2 * SPIKE_WINDOW]
    if len(later) < SPIKE_WINDOW:
        return False
    height = float(losses[at] - np.median(later))
    return height < SPIKE_K * mad_sigma(later) and float(np.mean(later >= losses[at])) < STAYS


RHYTHM = 4
"""Jumps at equal distances that are the script's own doing and no batch's."""


def _episodes(jumps: Array) -> int:
    """Separate jumps: those a few steps apart are one."""
    if len(jumps):
        return 1 + int(np.count_nonzero(np.diff(jumps) > RHYTHM))
    return 0


def _rhythm(jumps: Array) -> int:
    """Steps from one jump to the next where they come at equal distances; 0 where they do not.

    Jumps that follow each other at once are one.
    """
    if len(jumps) < RHYTHM:
        return 0
    gaps = np.diff(jumps)
    jumps = jumps[np.concatenate([[True], gaps > 0.2 * gaps.max()])]
    if len(jumps) < RHYTHM:
        return 0
    period, members, p = strongest_period(jumps.astype(np.int64))
    return int(period) if p < SURE and len(members) >= RHYTHM else 0


def _after_a_jump(
    period: int, rewards: bool, moves: bool, layer_is_known: bool
) -> tuple[str | Option, ...]:
    """Where to look: at what the script does every so many steps, if jumps have a rhythm."""
    clip = Option("clip gradients", needs=(NOT_CLIPPED,))
    if moves:
        often = f"every {period} steps, " if period else ""
        return (
            f"nothing to mend while the loss comes down again: its target moves {often}as where a "
            "target network is copied; a little of it copied at each step makes a smoother course",
        )
    if period:
        words = f"the loss jumps every {period} steps: look at what the script does then"
        return (
            f"{words} (a target network or a reference that is copied, another stage, a new "
            "episode)",
        )
    if rewards:
        return "a loss of both signs weighs rewards and may jump: normalise them", clip
    return (
        "look at the batch of that step (labels, length, a corrupt sample)",
        clip,
        "lower the learning rate",
        *(() if layer_is_known else (f"{WATCH} names the layer that moved most before it",)),
    )


def _together(view: RunView, step: int) -> str:
    """What else jumps within a few steps of the loss."""
    joint = instabilities(spikes_of(collect(view, view.ranks[0], JOINT_POINTS)))
    near = [
        joint_event
        for joint_event in joint
        if joint_event.first_step - TOGETHER_STEPS <= step <= joint_event.last_step + TOGETHER_STEPS
    ]
    neighbours = [
        spike.told() for joint_event in near for spike in joint_event.spikes if spike.axis != "loss"
    ]
    return f"; with it: {'; '.join(neighbours)}" if neighbours else ""


@once_per_view
def mean_losses(view: RunView) -> tuple[Array, Array, Array]:
    """First and last step of each record, and the loss averaged over the ranks that have one.

    Of folded steps the largest loss counts, so that none is lost; older records have only the last
    one's. While a run is live only the newest records are looked at. Steps that gather fewer
    gradients than the others are left out: their losses are divided by another number.
    """
    firsts, lasts, losses = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
    for rank in spread(view.ranks):
        series, device = view.per_rank[rank], view.device(rank)
        if len(device) and np.isfinite(device["loss"]).any():
            rows = device
        else:
            rows = series.rows[series.attempt_start :]
        rows = rows[-LIVE_STEPS:] if view.live else rows
        loss = largest_loss(rows)
        finite = np.isfinite(loss) & ~np.isin(rows["step"], _cut_short(series.rows))
        last = rows["step"][finite].astype(np.int64)
        if "n_steps" in (rows.dtype.names or ()):
            folded = rows["n_steps"][finite].astype(np.int64)
        else:
            folded = 1
        lasts.append(last)
        firsts.append(last - np.maximum(folded, 1) + 1)
        losses.append(loss[finite])
    steps = lasts[-1]
    if (
        len(lasts) > 1
        and (np.diff(steps) > 0).all()
        and all(np.array_equal(steps, last_steps) for last_steps in lasts[1:-1])
    ):
        return np.minimum.reduce(firsts[1:]), steps, np.mean(losses[1:], axis=0)
    every, position = np.unique(np.concatenate(lasts), return_inverse=True)
    first = every.copy()
    np.minimum.at(first, position, np.concatenate(firsts))
    present = [(last, loss) for last, loss in zip(lasts, losses, strict=True) if len(last)]
    if not present:
        return first, every, np.zeros(0)
    return first, every, np.mean([_at(every, last, loss) for last, loss in present], axis=0)


ACCUMULATES, SELDOM = 2, 0.2
"""Micro-batches of a step that accumulates, and the most steps that may have fewer than usual."""


def _cut_short(rows: Array) -> Array:
    """Steps that accumulate over fewer micro-batches than most do: an epoch's last ones."""
    micro_batches = rows["micro_batches"] / np.maximum(rows["n_steps"], 1)
    usual = float(np.median(micro_batches)) if len(rows) else 0.0
    short = micro_batches < usual
    if usual < ACCUMULATES or np.mean(short) > SELDOM:
        return rows["step"][:0]
    return rows["step"][short]


def _at(steps: Array, own_steps: Array, losses: Array) -> Array:
    """A rank's loss at all ``steps``: where it has no record of its own, its level there. Else the
    mean would jump between the levels of the ranks that happen to have one.
    """
    order = np.argsort(own_steps, kind="stable")
    own_steps, losses = own_steps[order], losses[order]
    width = min(NEIGHBOURS, len(losses))
    around = np.pad(losses, (width // 2, width - 1 - width // 2), mode="edge")
    levels = np.median(np.lib.stride_tricks.sliding_window_view(around, width), axis=1)
    filled = np.interp(steps, own_steps, levels)
    filled[np.searchsorted(steps, own_steps)] = losses
    return filled


def largest_loss(rows: Array) -> Array:
    """The largest loss of each record's steps; older records have only the last step's."""
    if "loss_max" not in (rows.dtype.names or ()):
        return rows["loss"]
    return np.fmax(rows["loss"], rows["loss_max"])
