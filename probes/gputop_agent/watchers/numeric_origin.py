"""Where values stopped being finite: from the calls of layers and their gradients where a pass was
watched, else from autograd's graph and from which weights are not finite.

Each answer is the fields of a ``nan_origin`` event.
"""

from typing import Any

from gputop_agent.runtime.session import session
from gputop_agent.watchers import graph_origin
from gputop_agent.watchers.graph_layers import GraphLayers
from gputop_agent.watchers.graph_origin import Graph, value_name
from gputop_agent.watchers.numeric_pass import is_bad, largest

LOSS = "loss"  # stands for a layer where the operation lies after the model
INPUT = "input"


def bad_weights(layers):
    """``{layer: [name of a parameter or buffer]}`` of what is not finite, and how many layers have
    any that trains.
    """
    bad, trained = {}, set()
    for index, module in layers.living():
        for slot in ("_parameters", "_buffers"):
            for name, tensor in list((module.__dict__.get(slot) or {}).items()):
                if tensor is None or (slot == "_parameters" and layers.owners[id(tensor)] != index):
                    continue
                if slot == "_parameters" and tensor.requires_grad:
                    trained.add(index)
                if graph_origin.is_finite(tensor) is False:
                    bad.setdefault(index, []).append(name)
    return bad, trained


def bad_gradients(layers):
    """Layers whose gradients are not all finite, and those whose are."""
    bad, good = [], []
    for index, module in layers.living():
        for tensor in list((module.__dict__.get("_parameters") or {}).values()):
            if tensor is None or tensor.grad is None or layers.owners.get(id(tensor)) != index:
                continue
            finite = graph_origin.is_finite(tensor.grad)
            if finite is not None:
                (good if finite else bad).append(index)
    return set(bad), set(good) - set(bad)


# ---- of a pass that was watched


def of_forward(watched, loss=None):
    """The origin of a loss that is not finite. Extents are numbers; ``loss`` where its graph and the
    weights that it met are still there.
    """
    call = _first_bad_call(watched.calls)
    weights = {} if loss is None else bad_weights(watched.layers)[0]
    graph = None if loss is None else Graph(loss)
    if call is None:
        return _outside(watched, graph)
    origin = graph.origin(_own_range(call)) if graph is not None else None
    fields = _layer(watched.layers, call.layer)
    results = [point for point in call.results if is_bad(point.extent)]
    fields.update(
        direction="forward",
        how="hooks",
        operation=call.operation,
        value=value_name(*results[0].extent),
        dtype=_dtype(results[0].dtype),
        limit=_limit(results[0].dtype),
        largest_input=max((largest(point.extent) for point in call.inputs), default=None),
    )
    if origin is not None and origin.children and _own_range(call)(origin.number):
        del fields["largest_input"]
        fields.update(_operation(origin))
    if call.layer in weights:
        fields.update(direction="weights", weight=weights[call.layer][0])
    return fields


def _first_bad_call(calls):
    """The first call of finite inputs and other results, which made others so."""
    bad = [
        call
        for call in calls
        if any(is_bad(point.extent) for point in call.results)
        and not any(is_bad(point.extent) for point in call.inputs)
    ]
    return next((call for call in bad if not _is_absorbed(call, calls)), None)


def _is_absorbed(call, calls):
    """Whether every layer that took its results gave finite ones, as of a mask of -inf."""
    results = {id(point) for point in call.results if is_bad(point.extent)}
    took = [call_ for call_ in calls if any(id(point) in results for point in call_.inputs)]
    return bool(took) and not any(is_bad(point.extent) for call_ in took for point in call_.results)


def _own_range(call):
    """Whether a sequence number belongs to the call and to none within it."""

    def within(number):
        if not call.begin <= number < call.end:
            return False
        return not any(span.begin <= number < span.end for span in call.within)

    return within


def _outside(watched, graph):
    """No layer did it: what went in was not finite, or the loss is not although what came out is."""
    roots = [call for call in watched.calls if call.parent is None]
    entered = [point for call in roots for point in call.inputs if is_bad(point.extent)]
    if entered:
        point = entered[0]
        fields = _layer(watched.layers, roots[0].layer)
        fields.update(
            direction=INPUT,
            how="hooks",
            value=value_name(*point.extent),
            dtype=_dtype(point.dtype),
        )
        return fields
    end = max((call.end for call in roots), default=0)
    if graph is not None:
        origin = graph.origin(lambda number: number >= end)
    else:
        origin = None
    fields = {"direction": "forward", "how": "hooks", "layer": LOSS, "value": "NaN"}
    results = [point for call in roots for point in call.results]
    if results:
        fields["largest_input"] = max(largest(point.extent) for point in results)
    if origin is not None and origin.children:
        fields.update(_operation(origin))
    return fields


def of_backward(watched, loss=None):
    """The origin of gradients not finite; None where all seen are. Extents are numbers."""
    first = next((point for point, extent in watched.backward if is_bad(extent)), None)
    if first is None:
        return None
    numbers = _sorted_numbers(loss)
    chosen = max(
        _takers(watched, first),
        key=lambda one: _weight(numbers, one, first)[0],
        default=first.maker and first.maker.parent,
    )
    fields: "dict[str, Any]" = {"direction": "backward", "how": "hooks", "layer": LOSS}
    if chosen is not None:
        fields.update(_layer(watched.layers, chosen.layer))
    operation = _weight(numbers, chosen, first)[1]
    if operation:
        fields["operation"] = operation
    fields.update(
        value=value_name(*first.gradient),
        dtype=_dtype(first.dtype),
        limit=_limit(first.dtype),
        largest_input=max(
            (
                largest(point.gradient)
                for point in (chosen.results if chosen is not None else ())
                if point.gradient is not None and not is_bad(point.gradient)
            ),
            default=None,
        ),
    )
    if fields["largest_input"] is None:
        del fields["largest_input"]
    return fields


def _takers(watched, point):
    """Calls in which the tensor was used, whose own gradients are finite; the one around it, too."""
    takers = [
        call
        for call in watched.calls
        if any(taken is point for taken in call.inputs)
        and not any(is_bad(taken.gradient) for taken in call.results)
    ]
    around = point.maker
    if around is not None and any(taken is point for taken in around.results):
        around = around.parent
    if around is not None and around not in takers:
        takers.append(around)
    elif around is None and point.maker is not None:
        takers.append(None)
    return takers


def _sorted_numbers(loss):
    """``[(sequence number, operation)]`` of a loss whose backward has run."""
    if loss is None:
        return []
    graph = Graph(loss, reads_tensors=False)
    return [(node.number, node.name) for node in graph.nodes.values() if node.children]


def _weight(numbers, call, point):
    """How likely a call made a gradient that is not finite, and by which operation; a call of None
    is what lies after the model.
    """
    if call is None:
        end = point.number
        owners = [(number, name) for number, name in numbers if number > end]
    else:
        within = _own_range(call)
        owners = [(n, name) for n, name in numbers if within(n) and n > point.number]
    if not owners:
        return (-1, 0), None
    weights = [(graph_origin.weight_of(name), number, name) for number, name in owners]
    best = max(weights)
    return (best[0], 0 if call is None else -len(owners)), best[2]


def of_reduced(layers):
    """Gradients are not finite although those of this rank were: None where they are."""
    bad, good = bad_gradients(layers)
    if not bad:
        return None
    last = max(bad)
    fields = _layer(layers, last)
    direction = "reduced" if session.world_size > 1 else "backward"
    fields.update(direction=direction, how="gradients", bad_layers=len(bad), layers=len(bad | good))
    return fields


# ---- where nothing was watched


def of_graph(layers, loss):
    """The origin of a loss that is not finite, in the step in which it came, from its graph."""
    weights, trained = bad_weights(layers)
    graph = Graph(loss)
    if weights:
        return of_weights(layers, weights, trained, graph)
    origin = graph.origin()
    if origin is None:
        return None
    fields: "dict[str, Any]" = {"direction": "forward", "how": "graph"}
    if origin.children:
        fields.update(_operation(origin))
    named = GraphLayers(graph, layers)
    layer, between = named.of(origin)
    if origin.unowned is not None:
        fields.update(_operation(origin), direction=INPUT)
        fields["value"] = _value(origin.unowned)
        fields["dtype"] = _dtype(origin.unowned.dtype)
    if layer is not None:
        fields.update(_layer(layers, layer))
    elif between is not None:
        fields["layer"] = LOSS if not between[1] else between[0]
    if between is not None:
        fields["between"] = list(between)
    return fields


def of_weights(layers, weights, trained, graph=None):
    """Weights were not finite before the forward: what that says of the backward before it."""
    order = sorted(trained)
    named = None
    if graph is not None:
        named = GraphLayers(graph, layers)
        ran = [owner for _, owner in named.placed]
        order = [owner for owner in dict.fromkeys(ran) if owner in trained] or order
    bad = [index for index in order if index in weights]
    first = bad[0] if bad else min(weights)
    fields = _layer(layers, first)
    fields.update(
        how="weights",
        weight=weights[first][0],
        value="NaN",
        bad_layers=len(weights),
        layers=len(order),
    )
    if not bad or (len(bad) == 1 and len(order) > 1 and bad[0] != order[0]):
        fields["direction"] = "weights"  # no gradient alone would have spared those before it
    elif len(bad) == len(order) and len(order) > 1:
        fields["direction"] = "gone"
    elif bad == order[: len(bad)]:
        after = order[len(bad)] if len(bad) < len(order) else None
        layer = named.between(bad[-1], after) if named is not None else None
        fields.update(_layer(layers, bad[-1] if layer is None else layer))
        fields["direction"] = "backward"
        fields["weight"] = weights[bad[-1]][0]
        fields["between"] = [
            layers.names[bad[-1]],
            layers.names[after] if after is not None else "",
        ]
    else:
        fields["direction"] = "weights"
    return fields


# ---- words


def _layer(layers, index):
    module = layers.modules[index]()
    return {
        "layer": layers.names[index],
        "class": type(module).__name__ if module is not None else "",
    }


def _operation(origin):
    fields = {"operation": origin.name}
    large = [tensor for _, tensor in origin.inputs if tensor.dim()]  # a plain number has no axes
    extents = [_numbers(tensor) for tensor in large]
    inputs = [largest(pair) for pair in extents if pair is not None]
    finite = [number for number in inputs if number - number == 0]
    if finite:
        fields["largest_input"] = max(finite)
    tensor = origin.result if origin.result is not None else None
    if tensor is not None:
        fields["value"] = _value(tensor) or "NaN"
        fields["dtype"], fields["limit"] = _dtype(tensor.dtype), _limit(tensor.dtype)
    elif large:
        dtype = large[0].dtype
        fields["dtype"], fields["limit"] = _dtype(dtype), _limit(dtype)
    return fields


def _numbers(tensor):
    extremes = graph_origin.extent(tensor)
    if extremes is None:
        return None
    return (extremes[0].item(), extremes[1].item())


def _value(tensor):
    """What is not finite in it; None where all is or no number is in reach."""
    numbers = _numbers(tensor)
    return None if numbers is None else value_name(*numbers)


def _dtype(dtype):
    return str(dtype).replace("torch.", "")


def _limit(dtype):
    """The largest finite value of a type."""
    if dtype.is_floating_point:
        return session.torch.finfo(dtype).max
    return None
