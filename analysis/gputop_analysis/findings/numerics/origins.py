"""Where a value stopped being finite, and which layer moved before a loss jumped, as ranks tell."""

from __future__ import annotations

from typing import Any

from gputop_analysis.findings.told import told
from gputop_analysis.model import Input
from gputop_analysis.text import counted
from gputop_analysis.view import RunView

REACH_STEPS = 3
"""A gradient not finite shows in the next step's loss; on a GPU not all losses are read."""
SPIKE_STEPS = 2
WATCH = "`gputop run --watch-numerics`"
WRITTEN = "a literal"
"""Suspected where no operation is: a line that writes a NaN."""
_SECOND_HAND = ("reduced", "gone")
"""What a rank says that met others' values, or came too late."""

Event = dict[str, Any]


def nan_origin(view: RunView, step: int) -> Event | None:
    """The event that says where a loss of that step, which is no number, comes from.

    Over all ranks, since a sum over ranks brings one's values to all.
    """
    near = _origins_near(view, step)
    return min(near, key=lambda e: (is_second_hand(e), e["step"], e["rank"]), default=None)


def ranks_of_origin(view: RunView, step: int) -> set[int]:
    """Those that saw themselves where a bad loss of that step comes from."""
    return {event["rank"] for event in _origins_near(view, step) if not is_second_hand(event)}


def _origins_near(view: RunView, step: int) -> list[Event]:
    return [
        event
        for events in told(view, "nan_origin").values()
        for event in events
        if step - REACH_STEPS <= event["step"] <= step
    ]


def is_second_hand(event: Event) -> bool:
    """Whether the rank met others' values, or came too late: it may have begun on any."""
    return event["direction"] in _SECOND_HAND


def origin_place(view: RunView, origin: Event | None) -> Event:
    """The ``nan_place`` event of an origin, where the step after it sent one; else the line that
    alone writes a NaN, or empty.
    """
    if origin is None:
        return {}
    places = told(view, "nan_place").get(origin["rank"], ())
    place = next((place for place in places if place["step"] == origin["step"]), {})
    if not place and origin.get("written_at"):
        return {"suspect_at": origin["written_at"], "suspect": WRITTEN}
    return place


def site_of(place: Event) -> str | None:
    """The line to look at: what may have made a value that was given, else its operation."""
    return place.get("suspect_at") or place.get("site")


def suspicion(place: Event) -> str:
    """What may have made a value that the model or the loss was given, or a gradient, in a
    sentence.
    """
    if "suspect_at" not in place:
        return ""
    if "held_in" in place:
        by_operation = f", by {place['suspect']}" if "suspect" in place else ""
        return (
            f"; `{place['held_in']}` of the data set holds values that are not finite; "
            f"{place['suspect_at']} is the likeliest to have put them there{by_operation}"
        )
    if place.get("suspect") == WRITTEN:
        return f"; {place['suspect_at']} alone writes a NaN: likely, not measured"
    if "site" not in place:
        return (
            f"; by the graph of the step after, {place['suspect_at']} alone has an operation "
            f"({place.get('suspect')}) whose gradient is infinite at a point where its value is "
            "not: likely, not measured"
        )
    return (
        f"; of what goes to {place.get('site')} {place['suspect_at']} is the likeliest to make "
        f"one, by {place.get('suspect')}: read from the source, not measured"
    )


def skipped_origin(view: RunView) -> Event | None:
    """The event that says where the gradients of skipped updates come from."""
    events = [event for events in told(view, "nan_origin").values() for event in events]
    of_gradients = [event for event in events if event["direction"] == "backward"]
    return min(of_gradients, key=lambda e: (e["step"], e["rank"]), default=None)


def in_short(event: Event) -> str:
    """``exp in body.attention``, for a title; empty where nothing is known."""
    direction = event["direction"]
    if direction == "gone":
        return ""
    if direction == "input":
        batch = event.get("batch") or {}
        if batch.get("finite") is False:
            return "the batch is not finite"
        if beside_model(event):
            value = event.get("value") or "NaN"
            return f"{value} goes into {event.get('operation') or 'the loss'} after the model"
        return f"{event.get('value') or 'NaN'} goes into {_taker(event)}"
    if direction == "weights":
        return f"{_weight(event)} is not finite"
    if direction == "reduced":
        return "the sum of gradients over ranks"
    operation = event.get("operation")
    way = "backward of " if direction == "backward" else ""
    layer = _named(event) or event.get("class") or "the model"
    if not operation:
        return f"{way}{layer}"
    return f"{way}{operation} {_after_the_last(event) or f'in {layer}'}"


def beside_model(event: Event) -> bool:
    """Whether it met the model's finite output in the loss: a target, or what the script computed
    without a gradient.
    """
    return (
        event["direction"] == "input"
        and event.get("layer") == "loss"
        and not event.get("class")
        and not _is_before_layers(event)
        and (event.get("batch") or {}).get("finite") is not False
    )


def _is_before_layers(event: Event) -> bool:
    """Whether no layer was known yet, as in the first step, so that none lies before or after."""
    return event.get("between") == ["", ""]


def of_loss_operation(event: Event) -> bool:
    """Whether an operation of the loss itself did it whose argument can be kept in its range: no
    learning rate helps there.
    """
    in_loss = event["direction"] == "forward" and event.get("layer") == "loss"
    return in_loss and bool(_by_operation(event.get("operation") or "", event))


def sentence(event: Event, ranks: int) -> str:
    """Layer, operation, direction, limit and batch, in one sentence."""
    on_rank = f" on rank {event['rank']}" if ranks > 1 else ""
    text = f"origin: step {event['step']}{on_rank}, {_what(event)}{_sure(event)}"
    return text + _course(event) + _batch(event)


def _what(event: Event) -> str:
    direction, value = event["direction"], event.get("value") or "a value that is not finite"
    if direction == "gone":
        return (
            f"no longer to be told: weights or gradients of {event.get('bad_layers', 0):,} of "
            f"{counted(event.get('layers', 0), 'layer')} are not finite; run it again with {WATCH}"
        )
    if direction == "weights":
        return f"{_weight(event)} was {value} before the forward"
    if direction == "reduced":
        return (
            "gradients were not finite after the sum over the ranks, though those that came back "
            f"through this rank's layers were; last in {_layer(event)}"
        )
    if beside_model(event):
        operation = event.get("operation") or "the loss"
        return f"forward: {value} went into {operation} beside the model's output"
    if direction == "input":
        return f"forward: what goes into {_taker(event)} was {value} already"
    operation = event.get("operation")
    if direction == "backward":
        by = f" by the gradient of {operation}" if operation else ""
        return f"backward: the gradient became {value} in {_layer(event)}{by}{_limits(event)}"
    by = _layer(event)
    if operation:
        by = f"{operation} {_after_the_last(event) or f'in {by}'}"
    return f"forward: {by} gave {value}{_limits(event)}"


def _limits(event: Event) -> str:
    """What it was given, and the limit of its type where that was crossed."""
    parts = []
    if event.get("largest_input") is not None:
        value_kind = "values"
        if event["direction"] == "backward":
            value_kind = "gradients"
        parts.append(f"of {value_kind} up to {event['largest_input']:.4g}")
    dtype, limit = event.get("dtype"), event.get("limit")
    if dtype and limit and "inf" in str(event.get("value")):
        parts.append(f"{dtype} ends at {limit:.4g}")
    elif dtype:
        parts.append(f"in {dtype}")
    return f" ({', '.join(parts)})" if parts else ""


def _sure(event: Event) -> str:
    between = event.get("between")
    if not between or not any(between):
        return ""
    before = _called(between[0]) or "the input"
    after = _called(between[1]) or "the loss"
    by = "the graph of the loss"
    if event.get("how") == "weights":
        by = "finite weights"
    return f"; it lies between {before} and {after}, by {by}"


def _course(event: Event) -> str:
    steps, largest = event.get("course_steps"), event.get("course_largest")
    if not steps or not largest:
        return ""
    return f"; that layer gave at most {largest[-1]:.4g} at step {steps[-1]:,}"


def _batch(event: Event) -> str:
    batch = event.get("batch") or {}
    if not batch.get("number"):
        return ""
    text = f"; batch {batch['number']:,} of its epoch"
    samples = batch.get("samples") or []
    if samples:
        text += f", {'sample' if len(samples) == 1 else 'samples from'} {samples[0]:,}"
    if batch.get("files"):
        text += f" ({batch['files'][0]})"
    if batch.get("finite"):
        text += ", which is finite itself"
    return text


def _taker(event: Event) -> str:
    """What took a value that was not finite already."""
    if _is_before_layers(event):
        return str(event.get("operation") or "the model")
    return _layer(event)


def _layer(event: Event) -> str:
    name, class_name = _named(event), event.get("class")
    if name == "loss" and not class_name:
        return "the loss"
    if not name:
        return class_name or "the model"
    return f"{name} ({class_name})" if class_name else name


def _after_the_last(event: Event) -> str:
    """``after head`` of an operation of which the graph tells that it follows all weights: it may
    be of the loss, of a layer without weights, or of what a layer with some does after them.
    """
    last = (event.get("between") or [""])[0]
    if event.get("how") != "graph" or event.get("layer") != "loss" or not last:
        return ""
    return f"after {_called(last)}"


def _named(event: Event) -> str:
    """The layer's name."""
    return _called(event.get("layer", ""))


def _called(name: str) -> str:
    """``layer 0`` where a name is a number alone, as in a Sequential."""
    return f"layer {name}" if name[:1].isdigit() else name


def _weight(event: Event) -> str:
    return ".".join(part for part in (event.get("layer"), event.get("weight")) if part)


def inputs(event: Event) -> tuple[Input, ...]:
    """What the origin adds to a finding's proof."""
    source = f"nan_origin event, rank {event['rank']}"
    rows = [
        ("direction", event["direction"]),
        ("layer", event.get("layer") or event.get("class")),
        ("operation", event.get("operation")),
        ("batch of the epoch", (event.get("batch") or {}).get("number")),
    ]
    return tuple(Input(name, value, "", source) for name, value in rows if value is not None)


def advice(event: Event | None, place: Event) -> tuple[str, ...]:
    """What to do first, by where it began."""
    if event is None:
        return (f"{WATCH} names the layer, the operation and the batch",)
    if "suspect_at" in place:
        by_operation = _by_operation(event.get("operation") or "", event)
        return (f"look at {place['suspect_at']} first", *_against_suspect(place), *by_operation)
    if beside_model(event):
        return (_look_beside_model(event),)
    direction = event["direction"]
    if direction == "input":
        return (f"look at {_samples_to_look_at(event.get('batch') or {})}",)
    watched = f"{WATCH} names the layer and the operation"
    if direction == "gone":
        return (watched,)
    by_operation = _by_operation(event.get("operation") or "", event)
    if event.get("how") != "hooks" and event.get("between"):
        return (*by_operation, watched) if direction == "forward" else (watched,)
    if direction in ("weights", "reduced"):
        return ()
    return by_operation


def _against_suspect(place: Event) -> tuple[str, ...]:
    return _KEEP_OFF_BY_HAND.get(place.get("suspect") or "", ())


def _look_beside_model(event: Event) -> str:
    """At what met the model's finite output."""
    operation = event.get("operation") or "the loss"
    is_finite = (event.get("batch") or {}).get("finite")
    targets = "" if is_finite else "the targets of that step's batch, or "
    return (
        f"look at what goes into {operation} after the model: {targets}"
        "a value that the script computes without a gradient"
    )


def _samples_to_look_at(batch: dict[str, Any]) -> str:
    """The file or the sample, as near as it is known."""
    if batch.get("files"):
        return str(batch["files"][0])
    samples = batch.get("samples") or []
    if len(samples) == 1 or (samples and batch.get("rows")):
        return f"sample {samples[0]:,}"
    first = f" (samples from {samples[0]:,})" if samples else ""
    return f"the batch of that step{first}"


_KEEP_OFF = {
    "log": "keep its argument above 0: torch.log(x.clamp(1e-8))",
    "div": "keep the divisor away from 0: add an epsilon",
    "sqrt": "keep its argument above 0: torch.sqrt(x + eps)",
    "pow": "keep its argument above 0 before the power: x.clamp(eps)",
    "norm": "add an epsilon below the root",
    "exp": "take the maximum off first, as torch.softmax does",
    "softmax": "let no row hold an infinity or be masked fully",
    "acos": "keep its argument off -1 and 1: x.clamp(-1 + eps, 1 - eps)",
    "asin": "keep its argument off -1 and 1: x.clamp(-1 + eps, 1 - eps)",
    "log1p": "keep its argument above -1",
    "nll_loss": "leave out batches without a target",
}


_KEEP_OFF_BY_HAND = {
    "std": ("the deviation of one value alone is NaN, and that of equal ones 0: add an epsilon",),
    "var": ("the variance of one value alone is NaN: leave such batches out",),
    **{name: (_KEEP_OFF[name],) for name in ("log", "log1p", "div", "sqrt", "pow", "acos", "asin")},
    "mul": ("0 times NaN is NaN: x.nan_to_num() first, or torch.where(known, x, 0)",),
    "hypot": ("keep its arguments from being 0 together: add an epsilon",),
    "xlogy": (_KEEP_OFF["log"],),
}
"""Of operations that are suspected, by their names in the source or in the graph."""


def _by_operation(operation: str, event: Event) -> tuple[str, ...]:
    if operation.rpartition("_")[2] == "mul" and event.get("value") == "NaN":
        return ("0 times an infinity is NaN: take what is masked out first, or torch.xlogy",)
    for name, words in _KEEP_OFF.items():
        if operation == name or operation.endswith("_" + name):
            return (words,)
    if event.get("dtype") == "float16" and "inf" in str(event.get("value")):
        return ("bf16 or float32 for that layer",)
    return ()


def spike_origin(view: RunView, step: int) -> str:
    """The layer whose relative update grew most before a jump; empty where no rank said so."""
    near = [
        event
        for events in told(view, "spike_origin").values()
        for event in events
        if abs(event["step"] - step) <= SPIKE_STEPS and event.get("relative_update") is not None
    ]
    if not near:
        return ""
    event = min(near, key=lambda event: (abs(event["step"] - step), event["rank"]))
    usual = event.get("usual_update") or 0.0
    return (
        f"; before it the weights of {event['layer'] or 'the model'} moved most out of line: by "
        f"{event['relative_update']:.2g} of their size at step {event.get('update_step', step):,}, "
        f"{usual:.2g} being usual"
    )
