"""What was set differently, as people read it: the telling settings first, one change once, no launcher's noise."""

from __future__ import annotations

from gputop_analysis.diff.caveats import model_words
from gputop_analysis.diff.model import Change

_FIRST = ("model", "dataloader", "batch", "amp", "world_size", "device", "torch", "optimizer", "command")
"""Beginnings of names in the order of what they explain; others follow by group."""
_GROUPS = ("config", "code", "environment")
_SIZE = ("class", "parameters", "trainable", "modules", "buffer_bytes", "roots", "by_dtype", "trainable_by_dtype")
"""Below ``model``: figures that all change where one layer does."""


def telling(changes: tuple[Change, ...]) -> list[Change]:
    """The changes to show, the most important first."""
    sizes = [one for one in changes if _is_size(one.name)]
    shown = [one for one in changes if one not in sizes] if len(sizes) > 1 else list(changes)
    if len(sizes) > 1:
        shown.append(_one_model(sizes))
    return sorted(shown, key=_place)


def _is_size(name: str) -> bool:
    head, _, rest = name.partition(".")
    return head == "model" and rest.partition(".")[0] in _SIZE


def _one_model(sizes: list[Change]) -> Change:
    """Many figures of the model as one change."""
    values = {one.name.removeprefix("model."): one for one in sizes}
    a, b = (
        model_words({key: getattr(values[key], side) for key in ("class", "parameters") if key in values})
        for side in ("a", "b")
    )
    count = f"{len(sizes)} figures of its size"
    return Change("model", a or count, b or "differ", "config")


def _place(one: Change) -> tuple[int, int, str]:
    known = [place for place, head in enumerate(_FIRST) if one.name.partition(".")[0] == head]
    return (known[0] if known else len(_FIRST)), _GROUPS.index(one.group), one.name
