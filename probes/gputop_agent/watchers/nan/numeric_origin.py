"""Where values stopped being finite: from the calls of layers and their gradients where a pass was
watched, else from autograd's graph and from which weights are not finite.

Each answer is the fields of a ``nan_origin`` event.
"""

import itertools
import math
from typing import Any

from gputop_agent.runtime import late, modes
from gputop_agent.runtime.living import alive
from gputop_agent.runtime.session import session
from gputop_agent.watchers.graphs import graph_origin
from gputop_agent.watchers.graphs.graph_layers import GraphLayers
from gputop_agent.watchers.graphs.graph_origin import Graph, value_name
from gputop_agent.watchers.nan.numeric_pass import is_bad, largest

LOSS = "loss"  # stands for a layer where the operation lies after the model
INPUT = "input"
#: of BatchNorm: in training its forward writes them and reads the batch's own instead
_RUNNING = ("running_mean", "running_var")
MAX_WEIGHTS, MAX_VALUES = 200, 4096  # that a first look takes: NaN spreads over all of a model


def bad_weights(layers):
    """``{layer: [name of a parameter or buffer]}`` of what is not finite, and the layers that have
    any that trains.
    """
    bad, trained = {}, set()
    for index, module in layers.living():
        for name, parameter in list((module.__dict__.get("_parameters") or {}).items()):
            if parameter is None or layers.owners[id(parameter)] != index:
                continue  # shared with another layer, which has it already
            if parameter.requires_grad:
                trained.add(index)
            if graph_origin.is_finite(parameter) is False:
                bad.setdefault(index, []).append(name)
        for name, buffer in list((module.__dict__.get("_buffers") or {}).items()):
            if buffer is None or (module.training and name in _RUNNING):
                continue
            if graph_origin.is_finite(buffer) is False and not graph_origin.is_mask(buffer):
                bad.setdefault(index, []).append(name)
    return bad, trained


@modes.unseen
def first_bad_weight():
    """``head.weight``, the first weight that is no number; None where there is none.

    On the CPU alone: a device may still wait for ranks that do not come.
    """
    if session.torch is None or not late.may_look():
        return None
    weights = (pair for root in alive(session.roots) for pair in root.named_parameters())
    for name, weight in itertools.islice(weights, MAX_WEIGHTS):
        if late.is_plain(weight) and weight.is_cpu:
            if graph_origin.is_finite(weight.detach().flatten()[:MAX_VALUES]) is False:
                return name
    return None


def bad_gradients(layers):
    """Layers whose gradients are not all finite, and those whose are."""
    bad, good = set(), set()
    for index, module in layers.living():
        for parameter in list((module.__dict__.get("_parameters") or {}).values()):
            if parameter is None or parameter.grad is None:
                continue
            if layers.owners.get(id(parameter)) != index:
                continue
            is_finite = graph_origin.is_finite(parameter.grad)
            if is_finite:
                good.add(index)
            elif is_finite is not None:
                bad.add(index)
    return bad, good - bad


# ---- of a pass that was watched


def of_forward(watched, loss=None):
    """The origin of a loss that is not finite. Extents are numbers; ``loss`` where its graph and
    the weights that it met are still there.
    """
    graph, weights = None, {}
    if loss is not None:
        graph = Graph(loss)
        weights, _ = bad_weights(watched.layers)
    call = _first_bad_call(watched.calls)
    if call is None:
        return _outside(watched, graph)
    fields = _layer(watched.layers, call.layer)
    result = next(point for point in call.results if is_bad(point.extent))
    fields.update(
        direction="forward",
        how="hooks",
        operation=call.operation,
        value=value_name(*result.extent),
        dtype=_dtype(result.dtype),
        limit=_limit(result.dtype),
        largest_input=max((largest(point.extent) for point in call.inputs), default=None),
    )
    if graph is not None:
        within_call = _own_range(call)
        origin = graph.origin(within_call)
        if origin is not None and origin.children and within_call(origin.number):
            del fields["largest_input"]  # the call's: the operation has its own
            fields.update(_operation(origin))
        elif not graph_origin.shows_saved():
            fields["operation"] = None  # the last of the call's is all that is known
        else:  # what its operations saved is hidden, as by a checkpoint
            fields["operation"] = graph.likeliest_name(within_call) or call.operation
    if call.layer in weights:
        fields.update(direction="weights", weight=weights[call.layer][0])
    return fields


def _first_bad_call(calls):
    """The first call of finite inputs and other results, which made others so."""
    for call in calls:
        if _any_bad(call.results) and not _any_bad(call.inputs) and not _is_absorbed(call, calls):
            return call
    return None


def _any_bad(points):
    return any(is_bad(point.extent) for point in points)


def _is_absorbed(call, calls):
    """Whether every layer that took its results gave finite ones, as of a mask of -inf."""
    bad_results = {id(point) for point in call.results if is_bad(point.extent)}
    is_taken = False
    for taker in calls:
        if any(id(point) in bad_results for point in taker.inputs):
            is_taken = True
            if _any_bad(taker.results):
                return False
    return is_taken


def _own_range(call):
    """Whether a sequence number belongs to the call and to none within it."""

    def within(number):
        if not call.begin <= number < call.end:
            return False
        return not any(span.begin <= number < span.end for span in call.within)

    return within


def _outside(watched, graph):
    """No layer did it: what went in was not finite, or the loss is not though what came out is."""
    roots = [call for call in watched.calls if call.parent is None]
    for call in roots:
        for point in call.inputs:
            if is_bad(point.extent):
                return _bad_input(watched.layers, roots[0], point)
    fields: "dict[str, Any]" = {
        "direction": "forward",
        "how": "hooks",
        "layer": LOSS,
        "value": "NaN",
    }
    results = [point for call in roots for point in call.results]
    if results:
        fields["largest_input"] = max(largest(point.extent) for point in results)
    if graph is not None:
        model_end = max((call.end for call in roots), default=0)
        origin = graph.origin(lambda number: number >= model_end)
        if origin is not None and origin.children:
            fields.update(_operation(origin))
        if origin is not None and origin.unowned is not None:  # a target, say
            fields.update(_of_unowned(origin))
    return fields


def _bad_input(layers, call, point):
    fields = _layer(layers, call.layer)
    fields.update(
        direction=INPUT,
        how="hooks",
        value=value_name(*point.extent),
        dtype=_dtype(point.dtype),
    )
    return fields


def of_backward(watched, loss=None):
    """The origin of gradients not finite; None where all seen are. Extents are numbers."""
    first = next((point for point, extent in watched.backward if is_bad(extent)), None)
    if first is None:
        return None
    operations = _operations(loss)
    call = max(
        _takers(watched, first),
        key=lambda taker: _likeliest(operations, taker, first)[0],
        default=first.maker and first.maker.parent,
    )
    _, operation = _likeliest(operations, call, first)
    fields: "dict[str, Any]" = {"direction": "backward", "how": "hooks", "layer": LOSS}
    if call is not None:
        fields.update(_layer(watched.layers, call.layer))
    if operation:
        fields["operation"] = operation
    fields.update(
        value=value_name(*first.gradient), dtype=_dtype(first.dtype), limit=_limit(first.dtype)
    )
    largest_gradient = _largest_finite_gradient(call)
    if largest_gradient is not None:
        fields["largest_input"] = largest_gradient
    return fields


def _largest_finite_gradient(call):
    """Return that of the call's results, which its backward took; None where none is known."""
    if call is None:
        return None
    gradients = [point.gradient for point in call.results if point.gradient is not None]
    return max((largest(extent) for extent in gradients if not is_bad(extent)), default=None)


def _takers(watched, point):
    """Calls in which the tensor was used, whose own gradients are finite, and the one around."""
    takers = [call for call in watched.calls if _takes(call, point)]
    around = point.maker
    if around is not None and any(taken is point for taken in around.results):
        around = around.parent
    if around is not None and around not in takers:
        takers.append(around)
    elif around is None and point.maker is not None:
        takers.append(None)
    return takers


def _takes(call, point):
    """Whether the tensor was given to a call none of whose results has a bad gradient."""
    if not any(taken is point for taken in call.inputs):
        return False
    return not any(is_bad(result.gradient) for result in call.results)


def _operations(loss):
    """``[(sequence number, name)]`` of the graph of a loss whose backward has run."""
    if loss is None:
        return []
    graph = Graph(loss, reads_tensors=False)
    return [(node.number, node.name) for node in graph.nodes.values() if node.children]


def _likeliest(operations, call, point):
    """How likely a call made a gradient that is not finite, as a pair to compare, and by which
    operation. A call of None is what lies after the model.
    """
    within_call = _own_range(call) if call is not None else _always
    candidates = [
        (graph_origin.weight_of(name), number, name)
        for number, name in operations
        if number > point.number and within_call(number)
    ]
    if not candidates:
        return (-1, 0), None
    weight, _, name = max(candidates)
    # of calls alike, the one with fewer operations
    return (weight, 0 if call is None else -len(candidates)), name


def _always(number):
    return True


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
    named = GraphLayers(graph, layers)
    layer, between = named.of(origin)
    hands_on = origin.name in graph_origin.SAME_VALUES  # it came from where nothing was saved
    if origin.children and not hands_on and not named.is_open(origin):
        fields.update(_operation(origin))
    if origin.unowned is not None:
        fields.update(_of_unowned(origin))
    if layer is not None:
        fields.update(_layer(layers, layer))
    elif between is not None:
        fields["layer"] = LOSS if not between[1] else between[0]
    if between is not None:
        fields["between"] = list(between)
    return fields


def _of_unowned(origin):
    """Of an operation that took what was not finite, and that no other of the graph gave."""
    return dict(
        _operation(origin),
        direction=INPUT,
        value=_value(origin.unowned),
        dtype=_dtype(origin.unowned.dtype),
    )


def of_weights(layers, weights, trained, graph=None):
    """Weights were not finite before the forward: what that says of the backward before it."""
    named = GraphLayers(graph, layers) if graph is not None else None
    order = _order(trained, named)
    bad = [index for index in order if index in weights]
    first = bad[0] if bad else min(weights)
    fields = _layer(layers, first)
    fields.update(
        direction=_direction(bad, order, _is_whole(layers, first, weights[first])),
        how="weights",
        weight=weights[first][0],
        value="NaN",
        bad_layers=len(weights),
        layers=len(order),
    )
    if fields["direction"] == "backward":
        # gradients went bad at the last of the bad layers, or between it and the next
        last = bad[-1]
        following = order[len(bad)] if len(bad) < len(order) else None
        between = named.between(last, following) if named is not None else None
        fields.update(_layer(layers, last if between is None else between))
        fields["weight"] = weights[last][0]
        fields["between"] = [
            layers.names[last],
            layers.names[following] if following is not None else "",
        ]
    return fields


def _order(trained, named):
    """Layers that train, in the order in which they ran; by index where the graph does not tell."""
    if named is not None:
        ran = dict.fromkeys(owner for _, owner in named.placed)
        order = [owner for owner in ran if owner in trained]
        if order:
            return order
    return sorted(trained)


def _is_whole(layers, index, names):
    """Whether all parameters of a layer are not finite, and there are several: a gradient comes to
    each, which what writes to one of them need not.
    """
    module = layers.modules[index]()
    trained = [
        name
        for name, parameter in (module.__dict__.get("_parameters") or {}).items()
        if parameter is not None and parameter.requires_grad
    ]
    return len(trained) > 1 and set(trained) <= set(names)


def _direction(bad, order, is_whole):
    """What made the weights of the layers ``bad`` so, of those that train in the order they ran."""
    is_alone = len(bad) == 1 and len(order) > 1
    if not bad or (is_alone and (bad[0] != order[0] or not is_whole)):
        return "weights"  # no gradient alone would have spared those before it
    if len(bad) == len(order) > 1:
        return "gone"
    if bad == order[: len(bad)]:
        return "backward"
    return "weights"


# ---- words


def _layer(layers, index):
    module = layers.modules[index]()
    return {
        "layer": layers.names[index],
        "class": type(module).__name__ if module is not None else "",
    }


def _operation(origin):
    fields = {"operation": origin.name}
    tensors = [tensor for _, tensor in origin.inputs if tensor.dim()]  # a plain number has no axes
    finite = []
    for tensor in tensors:
        extremes = _numbers(tensor)
        if extremes is not None and math.isfinite(largest(extremes)):
            finite.append(largest(extremes))
    if finite:
        fields["largest_input"] = max(finite)
    if origin.result is not None:
        fields["value"] = _value(origin.result) or "NaN"
        tensors = [origin.result]
    if tensors:
        dtype = tensors[0].dtype
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
