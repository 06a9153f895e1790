"""Numerics: losses that are no numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gputop_agent import wire
from gputop_analysis.findings.advice import NOT_CLIPPED, Option
from gputop_analysis.findings.dialect import phrase
from gputop_analysis.findings.facts import Facts
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
    ranks_of_origin,
    sentence,
    site_of,
    suspicion,
)
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.told import told
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.raised import fatal
from gputop_analysis.series import RankSeries, row_at
from gputop_analysis.summary import steps_at
from gputop_analysis.text import counted, step_number
from gputop_analysis.view import Array, RunView


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
    rank = _rank_at_fault(view, first_of_ranks)
    where = "all ranks" if rank is None else f"rank {rank}"
    title = f"loss is {first.value} at step {first.step} on {where}"
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
        rank=rank,
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


def _rank_at_fault(view: RunView, first_of_ranks: list[_FirstBad]) -> int | None:
    """That of the first bad loss. Where all ranks had theirs at one step, as after a sum of
    gradients, the one that tells where it began; None where none does, or several do.
    """
    first = min(first_of_ranks)
    is_of_all = len(first_of_ranks) == len(view.ranks) > 1
    together = [bad.step - view.per_rank[bad.rank].ahead for bad in first_of_ranks]
    if not is_of_all or len(set(together)) > 1:
        return first.rank
    tell = ranks_of_origin(view, first.step)
    return tell.pop() if len(tell) == 1 else None


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
    row = row_at(rows, step)
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


def _last_good(rows: Array, step: int) -> list[str]:
    before = rows["loss"][rows["step"] < step]
    finite = before[np.isfinite(before)]
    return [f"last finite loss {finite[-1]:.4g}"] if len(finite) else []
