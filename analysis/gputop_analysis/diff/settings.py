"""Differences in the settings for people: telling ones first, each once, no launcher's noise."""

from __future__ import annotations

from gputop_analysis.diff.caveats import model_words
from gputop_analysis.diff.model import SettingChange

_FIRST = (
    "model",
    "dataloader",
    "batch",
    "amp",
    "world_size",
    "device",
    "torch",
    "optimizer",
    "command",
)
"""Beginnings of names in the order of what they explain; others follow by group."""
_GROUPS = ("config", "code", "environment")
_SIZE = (
    "class",
    "parameters",
    "trainable",
    "modules",
    "buffer_bytes",
    "roots",
    "by_dtype",
    "trainable_by_dtype",
)
"""Below ``model``: figures that all change where one layer does."""


def telling(changes: tuple[SettingChange, ...]) -> list[SettingChange]:
    """The changes to show, the most important first."""
    sizes = [change for change in changes if _is_size(change.name)]
    if len(sizes) > 1:
        shown = [change for change in changes if change not in sizes]
        shown.append(_one_model(sizes))
    else:
        shown = list(changes)
    return sorted(shown, key=_place)


def _is_size(name: str) -> bool:
    head, _, path = name.partition(".")
    return head == "model" and path.partition(".")[0] in _SIZE


def _one_model(sizes: list[SettingChange]) -> SettingChange:
    """Many figures of the model as one change."""
    values = {change.name.removeprefix("model."): change for change in sizes}
    named = {key: values[key] for key in ("class", "parameters") if key in values}
    a = model_words({key: change.a for key, change in named.items()})
    b = model_words({key: change.b for key, change in named.items()})
    count = f"{len(sizes)} figures of its size"
    return SettingChange("model", a or count, b or "differ", "config")


def _place(change: SettingChange) -> tuple[int, int, str]:
    places = []
    for index, head in enumerate(_FIRST):
        if change.name.partition(".")[0] == head:
            places.append(index)
    return (places[0] if places else len(_FIRST)), _GROUPS.index(change.group), change.name
