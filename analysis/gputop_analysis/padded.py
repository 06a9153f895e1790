"""Places in the batches that hold no token, as the looks at batches count them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gputop_analysis.view import RunView, once_per_view

ENOUGH_BATCHES = 8


class PaddedRows(NamedTuple):
    """Sums of the ``padding`` events."""

    batches: int
    places: int
    tokens: int
    kept: int
    """Places up to each batch's longest row; all where that was not looked at."""
    ends_with_longest: bool
    """Whether each batch that was looked at does."""
    filling: str | None
    padded_at: str | None
    beside: int
    """Values of the batches' other inputs, such as pictures or sound."""

    @property
    def is_cut_short(self) -> bool:
        """Whether most of what is wasted lies beyond each batch's longest row."""
        return 2 * (self.places - self.kept) > self.places - self.tokens

    @property
    def told(self) -> str:
        """What was counted, in words."""
        words = f"{self.tokens:,} of {self.places:,} places hold a token ({self.batches} batches "
        if self.filling is None:
            words += "looked at, by attention_mask)"
        else:
            words += f"looked at; the others are {self.filling} at the end or the begin of a row)"
        if self.is_cut_short:
            words += f"; {self.kept:,} would do if each batch ended with its longest row"
        return words


@once_per_view
def padded_rows(view: RunView) -> PaddedRows | None:
    """Those of the run's later half; None where too few batches were looked at."""
    events = _later_half(
        [event for event in view.events("padding") if _is_of_the_models_work(event)]
    )
    batches, places = _total(events, "batches"), _total(events, "places")
    tokens = _total(events, "tokens")
    if batches < ENOUGH_BATCHES or not places:
        return None
    kept = sum(int(event.get("kept") or event.get("places") or 0) for event in events)
    return PaddedRows(
        batches=batches,
        places=places,
        tokens=tokens,
        kept=kept,
        ends_with_longest=kept == places and all("kept" in event for event in events),
        filling=events[-1].get("filling"),
        padded_at=events[-1].get("padded_at"),
        beside=_total(events, "beside"),
    )


def _total(events: list[dict[str, Any]], name: str) -> int:
    return sum(int(event.get(name) or 0) for event in events)


def _later_half(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest events with half of the batches, and with enough: a run may begin with others."""
    wanted = max(ENOUGH_BATCHES, _total(events, "batches") / 2)
    for index in range(len(events) - 1, 0, -1):
        wanted -= int(events[index].get("batches") or 0)
        if wanted <= 0:
            return events[index:]
    return events


def _is_of_the_models_work(event: dict[str, Any]) -> bool:
    """Of a mask the model's own attention tells; without one the script may leave filling out."""
    return "filling" not in event or not event.get("left_out")


def padded_share(view: RunView) -> float:
    """Of the places in the batches, those that an attention mask says hold no token; NaN where none
    says so, as without a mask it is a guess.
    """
    rows = padded_rows(view)
    if rows is None or rows.filling is not None:
        return math.nan
    return 1 - rows.tokens / rows.places
