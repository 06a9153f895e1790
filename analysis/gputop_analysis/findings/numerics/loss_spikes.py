"""Numerics: losses that jump."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gputop_agent import wire
from gputop_analysis.findings.advice import NOT_CLIPPED, Option
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.host.periodic import SURE, strongest_period
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.numerics.mean_losses import mean_losses
from gputop_analysis.findings.numerics.origins import (
    WATCH,
    spike_origin,
)
from gputop_analysis.findings.numerics.trained_copies import are_of_a_copy
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.sites import called_from
from gputop_analysis.findings.told import told
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.series import row_at
from gputop_analysis.spikes import (
    TOGETHER_STEPS,
    Spike,
    instabilities,
    spikes_of,
    stand_outs,
    steps_named,
)
from gputop_analysis.stats import mad_sigma
from gputop_analysis.text import counted, factor
from gputop_analysis.training_series import collect
from gputop_analysis.view import Array, RunView, once_per_view

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

SOON_STEPS = 2
"""Steps after weights were loaded in which a jump of the loss may be their doing."""
NEAR_STEPS = 10
"""Steps from a jump to an optimizer's first update that was seen; of short ones not each is."""
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
    silent="fewer than 30 losses before it; a jump of a few steps below 5 ms, whose losses are "
    "read in windows only, may lie between two",
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
    records_before = min(worst, SPIKE_WINDOW)
    why = _reasons(view, steps, losses, spikes, worst)
    certain = sigmas > CERTAIN_K and loss > level + CERTAIN_RELATIVE * abs(level)
    at = steps_named(int(firsts[worst]), step)
    lr = _learning_rate(view.per_rank[view.ranks[0]].rows, step)
    moved, loaded = spike_origin(view, step), _loaded_before(view, step)
    if level > 0:
        title = f"loss jumps to {loss:.4g} at {at}, {factor(loss / level)} times its level"
    else:
        title = f"loss jumps to {loss:.4g} at {at} from {level:.4g}"
    if loaded:
        fix = f"look at the weights that {loaded} loads: are they all, and of this model?"
    else:
        fix = after_a_jump(why, layer_is_known=bool(moved))
    return spec.make(
        severity="medium" if (certain or not why.is_rare) and not why.are_harmless else "info",
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


class Reasons(NamedTuple):
    """What jumps may be, other than a bad batch or a step that went too far."""

    is_rare: bool = False
    """A run of this length may have as many by chance."""
    period: int = 0
    """Steps from one to the next; 0: they have no rhythm."""
    rewards: bool = False
    """The loss has both signs."""
    moves: bool = False
    """Its target moves, as where a network is copied."""
    rate_jumps: bool = False
    """The learning rate is raised with it."""
    scatters: bool = False
    """Losses of single batches scatter as far."""
    small: bool = False
    """It is far below the first losses."""
    of_a_copy: bool = False
    """Of another optimizer's steps."""
    begins: bool = False
    """Another optimizer has made its first update there: its network begins, as of another fold."""

    @property
    def are_harmless(self) -> bool:
        is_anothers = self.of_a_copy or self.begins
        return self.rewards or self.moves or self.scatters or self.small or is_anothers


def _reasons(view: RunView, steps: Array, losses: Array, spikes: Array, worst: int) -> Reasons:
    episodes, period = _episodes(steps[spikes]), _rhythm(steps[spikes])
    rare = max(RARE, len(losses) // 500)
    before = losses[max(0, worst - SPIKE_WINDOW) : worst + 1]
    repeats = period > 0 or episodes >= RHYTHM
    rate_jumps = any(spike.axis == "lr" for spike in _jumps_beside(view, int(steps[worst])))
    scatters = _scatters_more(losses, worst) or _scatters_as_far(losses, spikes, worst)
    return Reasons(
        is_rare=episodes <= rare and len(spikes) <= BRIEF * rare,
        period=period,
        rewards=MIXED < float(np.mean(before < 0)) < 1 - MIXED,
        moves=repeats and networks_beside(view),
        rate_jumps=rate_jumps,
        scatters=not rate_jumps and scatters,
        small=bool(0 < losses[worst] < SMALL * float(np.median(losses[:BEGINNING]))),
        of_a_copy=are_of_a_copy(view.per_rank[view.ranks[0]].rows, steps, losses, spikes),
        begins=_another_begins(view, int(steps[worst])),
    )


def _spikes(losses: Array, is_live: bool) -> tuple[Array, Array, Array]:
    """Indices of losses that stand out, the level below each, and by how many deviations."""
    spikes, levels, sigmas = stand_outs(losses)
    if not is_live or len(losses) < 2 * SPIKE_WINDOW:
        return spikes, levels, sigmas
    # a window that moves on would judge its first steps anew
    recent = spikes >= SPIKE_WINDOW
    return spikes[recent], levels[recent], sigmas[recent]


def _another_begins(view: RunView, step: int) -> bool:
    """Whether an optimizer after others made its first update at about a step."""
    begun = told(view, "optimizer_begins").values()
    return any(abs(event["step"] - step) <= NEAR_STEPS for events in begun for event in events)


def _loaded_before(view: RunView, step: int) -> str | None:
    """Where weights were loaded into a model just before a jump of the loss; None: nowhere."""
    for events in told(view, "weights_loaded").values():
        for event in events:
            if event.get("site") and 0 < event["step"] <= step <= event["step"] + SOON_STEPS:
                return str(event["site"])
    return None


def _learning_rate(rows: Array, step: int) -> str:
    """Of that step, in words; empty where it was not seen."""
    row = row_at(rows, step)
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


TAIL, LEAST_TAIL, BACK = 10, 6, 0.25
"""One loss in so many is the tail; the fewest that tell its shape; and the part of a jump that the
step after it may keep.
"""
AROUND = 15
"""Losses whose median is the level of the one in their middle."""
A_GAP, APART = 0.02, 2.5
"""How seldom a tail of one kind has such a gap for two kinds to be likelier; and the factor below
which there is none: batches with one, two or three hard samples lie apart by up to two.
"""


def _scatters_as_far(losses: Array, spikes: Array, worst: int) -> bool:
    """Whether the worst loss is the last of a heavy tail, as where batches are of unequal kinds:
    the losses around it lead up to it without a gap, and the step after one is back at the level.

    A corrupt batch lies far beyond all others, and after a step that went too far the loss needs
    many to come back.
    """
    first, end = max(0, worst - SPIKE_WINDOW), worst + 1 + SPIKE_WINDOW
    around = losses[first:end]
    above = np.sort(around - _levels(around))[::-1]
    tail = above[: 1 + len(around) // TAIL]
    jumps = int(np.count_nonzero((spikes >= first) & (spikes < end)))
    if len(tail) < LEAST_TAIL or tail[-1] <= 0 or _gap(tail, jumps) < A_GAP:
        return False
    level = float(np.median(losses[max(0, worst - SPIKE_WINDOW) : worst + 1]))
    followed = spikes[(spikes + 1 < len(losses)) & (losses[spikes] > level)]
    remaining = (losses[followed + 1] - level) / (losses[followed] - level)
    return len(followed) > 0 and float(np.median(remaining)) < BACK


def _levels(losses: Array) -> Array:
    """The median of the losses around each."""
    padded = np.pad(losses, AROUND // 2, mode="edge")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, AROUND), axis=1)


def _gap(tail: Array, jumps: int) -> float:
    """How likely the largest gap below one of the first values is, in a tail of one kind, 0 to 1.

    In a Pareto tail i log(x_i / x_i+1) are exponential and independent (Renyi, 1953), i counting
    from the largest.
    """
    factors = tail[:-1] / tail[1:]
    spacings = np.arange(1, len(tail)) * np.log(factors)
    candidates = np.where(factors < APART, 0.0, spacings)[:jumps]
    widest = int(np.argmax(candidates))
    if not candidates[widest]:
        return 1.0
    mean_of_others = float(np.delete(spacings, widest).mean())
    if mean_of_others <= 0:
        return 0.0
    return 1 - float(-np.expm1(-spacings[widest] / mean_of_others)) ** len(candidates)


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


def after_a_jump(why: Reasons, *, layer_is_known: bool) -> str | tuple[str | Option, ...]:
    """Where to look: at what the script does every so many steps, if jumps have a rhythm."""
    if why.of_a_copy:
        return "nothing to mend: another optimizer's steps, as of an evaluation that trains a copy"
    if why.begins:
        return (
            "nothing to mend: another optimizer makes its first updates, of a network that begins"
        )
    clip = Option("clip gradients", needs=(NOT_CLIPPED,))
    if why.rewards and not (why.moves or why.rate_jumps or why.period):
        return "a loss of both signs weighs rewards and may jump: normalise them", clip
    if why.scatters:
        return "nothing to mend: losses of single batches scatter as far again and again"
    if why.moves:
        often = f"every {why.period} steps, " if why.period else ""
        return (
            f"nothing to mend while the loss comes down again: its target moves {often}as where a "
            "target network is copied; a little of it copied at each step makes a smoother course",
        )
    if why.rate_jumps:
        return (
            "the learning rate is raised with it: look at what sets it there, or whose other "
            "optimizer updates these weights",
        )
    if why.period:
        words = f"the loss jumps every {why.period} steps: look at what the script does then"
        return (
            f"{words} (a target network or a reference that is copied, another stage, a new "
            "episode)",
        )
    return (
        "look at the batch of that step (labels, length, a corrupt sample)",
        clip,
        "lower the learning rate",
        *(() if layer_is_known else (f"{WATCH} names the layer that moved most before it",)),
    )


def _together(view: RunView, step: int) -> str:
    """What else jumps within a few steps of the loss."""
    neighbours = [spike.told() for spike in _jumps_beside(view, step)]
    return f"; with it: {'; '.join(neighbours)}" if neighbours else ""


def _jumps_beside(view: RunView, step: int) -> list[Spike]:
    joint = instabilities(spikes_of(collect(view, view.ranks[0], JOINT_POINTS)))
    near = [
        joint_event
        for joint_event in joint
        if joint_event.first_step - TOGETHER_STEPS <= step <= joint_event.last_step + TOGETHER_STEPS
    ]
    return [spike for joint_event in near for spike in joint_event.spikes if spike.axis != "loss"]
