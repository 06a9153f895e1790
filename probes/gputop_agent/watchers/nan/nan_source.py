"""The line of the user's that may have made a value which is not finite, where the model or the
loss was given it.

Nothing tells of values that carry no gradient, so the source is read: what flows into the call
(``value_flow``), what that calls (``called_source``), and how the data set makes its samples. A
line is told where one alone is the likeliest to make such a value (``poles``). Where the data set
itself holds such values, that is seen, and the lines that fill its attribute are read
(``attribute_fills``).
"""

import inspect
from typing import NamedTuple

from gputop_agent.runtime import frames, source, wrapped
from gputop_agent.timing.step_state import open_step
from gputop_agent.watchers.loaders import batch_origin
from gputop_agent.watchers.nan import attribute_fills, called_source, held_values, poles, value_flow

_MAKES_SAMPLES = ("__getitem__", "__getitems__", "__iter__")


class Made(NamedTuple):
    """``"data.py:9"`` and ``"std"``."""

    site: str
    operation: str
    """Empty where the line only fills what holds such values."""
    tier: int
    held_in: str = ""
    """``"Prices.returns"``, where a data set was seen to hold such values."""


def of_call(file, line, layer="", owners=()):
    """What is the likeliest to have made a value that the call in this line was given: what flows
    into it before what makes samples and what the data set holds, unless a later one is surer; None
    where several lines of the first are as likely, and no other is surer.

    Args:
        layer: name of the layer that was given it, ``encoder.0``, where the line calls several.
        owners: ``[(name, object)]`` of the user's that running functions know: where what is
            divided by is an attribute of theirs, it is asked whether that is a number.
    """
    objects = held_values.objects_of(owner for _, owner in owners)
    of_function = value_flow.into_call(file, line, callers=0, layer=layer)
    ways = (
        called_source.called_in(file, line, layer),
        of_function,
        value_flow.into_call(file, line, layer=layer),
        _samples(),
    )
    candidates = [
        *(_likeliest(parts, [*owners, *objects], is_told_alone=False) for parts in ways),
        _in_data(),
        _in_objects(of_function, [held for _, held in objects]),
    ]
    surest = min(filter(None, candidates), key=lambda place: place.tier, default=None)
    return surest if surest is not None and surest.site else None


def _likeliest(parts, owners=(), *, is_told_alone=True):
    """The one place of the first tier that has any, among these parts and what they call; where
    there are several, one without a site, or with ``is_told_alone`` None.
    """
    suspects = [
        suspect
        for part in called_source.with_called(parts)
        for suspect in poles.suspects(part.file, part.node, owners)
    ]
    first = min((suspect.tier for suspect in suspects), default=None)
    likeliest = sorted(suspect for suspect in suspects if suspect.tier == first)
    likeliest = _without_spreads(likeliest)
    if not likeliest:
        return None
    site = source.place_of([(suspect.file, suspect.line) for suspect in likeliest])
    if not site and is_told_alone:
        return None
    return Made(site or "", likeliest[0].operation, likeliest[0].tier)


def _without_spreads(suspects):
    """A spread of several equal values is 0, which only what divides by it makes no number."""
    dividing = [suspect for suspect in suspects if suspect.operation.startswith("div")]
    without_spreads = [suspect for suspect in suspects if suspect.operation not in poles.SPREADS]
    return without_spreads if dividing else suspects


def of_attribute(file, line, owners):
    """The ``Made`` of an infinity that flows into the line out of an object's attribute."""
    objects = held_values.objects_of(owner for _, owner in owners)
    return _in_objects(value_flow.into_call(file, line, callers=0), [held for _, held in objects])


def _in_data():
    """Where what the data set holds that is not finite comes from."""
    iterator, _, _ = batch_origin.current()
    dataset = vars(iterator).get("_dataset") if iterator is not None else None
    return _in_attribute(held_values.of_dataset(dataset))


def _in_objects(parts, objects):
    """Where an infinity comes from in an attribute that these parts of source name."""
    attributes = {
        name.partition(".")[2] for part in parts for name in value_flow.names_in(part.node)
    }
    return _in_attribute(held_values.of_objects(objects, attributes - {""}))


def _in_attribute(holder):
    """Where values not finite that an object was seen to hold come from: the likeliest line to
    make them of what flows into its attribute, else the one that fills it; None without either.
    """
    if holder is None:
        return None
    held_in = "%s.%s" % (holder.kind.__name__, holder.attribute)
    fills = attribute_fills.fills_of(holder)
    made = _likeliest([part for fill in fills for part in fill.parts])
    if (made is None or made.tier == poles.GUARDED) and all(fill.is_given for fill in fills):
        made = _likeliest(_flow_into_loader())
    if made is not None and made.tier < poles.GUARDED:
        return made._replace(tier=poles.CERTAIN, held_in=held_in)
    site = source.place_of([(fill.file, fill.line) for fill in fills])
    return Made(site, "", poles.CERTAIN, held_in) if site else None


def _flow_into_loader():
    """What flows into the line that builds the training's loader."""
    site = (open_step.loader or {}).get("site") or ""
    file, line = frames.file_of(site), site.rpartition(":")[2]
    return value_flow.into_call(file, int(line)) if file and line.isdigit() else []


def _samples():
    """What makes the samples and the batches of the loader that feeds the training."""
    iterator, _, _ = batch_origin.current()
    parts = vars(iterator) if iterator is not None else {}
    makers = []
    for dataset in wrapped.datasets(parts.get("_dataset")):
        for name in _MAKES_SAMPLES:
            makers += called_source.of_function(inspect.getattr_static(type(dataset), name, None))
    return makers + called_source.of_function(_function_of(parts.get("_collate_fn")))


def _function_of(collate):
    """The function that a collate function runs, where it is an object that is called, or a
    partial.
    """
    collate = getattr(collate, "func", collate)
    if inspect.isroutine(collate):
        return collate
    return inspect.getattr_static(type(collate), "__call__", None)
