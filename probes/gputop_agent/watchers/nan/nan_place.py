"""The line of the operation at which values stopped being finite.

Autograd's nodes know the lines that made them only in anomaly mode. So the forward after the one
that went wrong is made in that mode, without its check for NaN, and up to its backward only. Its
node at the same place has the line, where the operations from there to the loss, or up to there,
are the same again: a recurrent model's graph is as long as its batch.

Of gradients that were not finite, so that weights are not, nothing is left to compare. Then the
lines of such a forward are told whose gradient can be infinite, if one alone is.
"""

import os
from collections import deque
from typing import Any, NamedTuple

from gputop_agent.runtime import source, transport
from gputop_agent.runtime.session import session
from gputop_agent.watchers.graphs import anomaly, gradient_poles
from gputop_agent.watchers.graphs.graph_origin import STRUCTURE, Graph
from gputop_agent.watchers.memory import keepers
from gputop_agent.watchers.nan import nan_source

_TRIES = 4  # backwards that are compared: a script may have several losses
MAX_NODES = 5000  # each costs some 0.1 ms in that mode
_MODULE_FILE = os.path.join("torch", "nn", "modules", "module.py")


class Unread(NamedTuple):
    """An operation, and where the source of what it was given is still to be read."""

    step: int
    fields: "dict[str, str]"
    lines: "tuple[Any, Any]"
    """Files and lines of the model's call and of the operation's own."""
    layer: str
    was_given: bool
    owners: "list[tuple[str, Any]]"
    """Names and objects of the user's classes that the running functions knew."""


class NodeSearch:
    """The node that is looked for, and whether anomaly mode is on for it."""

    def __init__(self):
        self.step = -1  # in which values stopped being finite
        self.operations: Any = ()  # of that step's graph, in order
        self.place = -1  # of the origin among them
        self.layer = ""  # that was given what is not finite, by its name
        self.came_in = False  # not finite before the model had it
        self.was_given = False  # the operation was given it by something without a gradient
        self.of_gradients = False  # all that is known is that they were not finite
        self.poles: Any = None  # names of a graph's, and which of them are guilty
        self.mode = anomaly.AnomalyForward()
        self.unread: "deque[Unread]" = deque()
        self.tries = 0


search = NodeSearch()


@session.after_fork
def reset():
    """In a forked child."""
    switch_off()
    search.__init__()


def begin(loss, operation, step, was_given, layer=""):
    """Look for the line of an operation, the origin in the graph of a loss; of what it was given
    so, for what may have made that, too, and before a model for the line that calls it.
    """
    graph = Graph(loss)
    origin = graph.origin()
    nodes = _made(graph)
    if origin is None or origin.name != operation or len(nodes) > MAX_NODES:
        return
    search.step, search.tries, search.operations = step, 0, [node.name for node in nodes]
    search.place = next((at for at, node in enumerate(nodes) if node is origin), -1)
    before = search.operations[: max(0, search.place)]
    search.was_given, search.layer = was_given, layer
    search.came_in = was_given and all(name in STRUCTURE for name in before)  # of weights


def begin_of_gradients(step):
    """Look for the line by whose gradient weights became not finite."""
    search.step, search.tries, search.of_gradients, search.poles = step, 0, True, None


def is_open():
    """Whether a line is looked for."""
    return search.place >= 0 or search.of_gradients


def switch_on():
    """A backward has ended: the next forward may be the one."""
    if is_open():
        search.mode.switch_on()


def switch_off():
    """Before its backward, or where nothing is looked for any more."""
    search.mode.switch_off()


def before_backward(loss):
    """A backward begins: tell the line, if it goes through the same operations."""
    if not search.mode.is_on:
        return
    switch_off()
    graph = Graph(loss, reads_tensors=False)
    if search.of_gradients:
        _tell_pole(graph)
        return
    nodes = _made(graph)
    place = _same_place([node.name for node in nodes])
    search.tries += 1
    if place is None and search.tries < _TRIES:
        return
    search.place = -1
    if place is None:
        return
    lines = anomaly.traceback_of(nodes[place].node)
    innermost = anomaly.users_line(lines)
    calling = anomaly.users_line(_before_the_model(lines)) if search.came_in else innermost
    if calling is None:
        return
    fields = {"operation": nodes[place].name, "site": source.place(*calling)}
    owners = [pair for pair in keepers.users_variables() if keepers.is_the_users(pair[1])]
    places = (calling, innermost)
    unread = Unread(search.step, fields, places, search.layer, search.was_given, owners)
    search.unread.append(unread)


def tell():
    """From the agent's thread, as source and data take tens of milliseconds to be read: send what
    was found, with what may have made the value.
    """
    while search.unread:
        unread = search.unread.popleft()
        fields = dict(unread.fields, **_suspect(unread))
        transport.send_event("nan_place", step=unread.step, **fields)


def _tell_pole(graph):
    """The one line of the user's that calls an operation of ``gradient_poles`` itself."""
    search.tries += 1
    lines = {}
    for node in _guilty(graph):
        line = anomaly.calling_line(anomaly.traceback_of(node.node))
        if line is not None:
            lines[line] = node.name
    search.of_gradients = not lines and search.tries < _TRIES
    if len(lines) == 1:
        ((line, operation),) = lines.items()
        transport.send_event(
            "nan_place",
            step=search.step,
            operation=operation,
            suspect=operation,
            suspect_at=source.place(*line),
        )


def _guilty(graph):
    """The poles to be told: where they were known in a forward that was made without lines, those
    at the same places among all, as by now most weights may not be finite.
    """
    poles = gradient_poles.poles(graph)
    names = [pole.name for pole in poles]
    if search.poles is not None and search.poles[0] == names:
        return [poles[place] for place in search.poles[1]]
    guilty = gradient_poles.guilty(graph)
    if guilty and search.poles is None:
        search.poles = names, [place for place, pole in enumerate(poles) if pole in guilty]
    return guilty


def _suspect(unread):
    """What may have made the value: on the way to the model's call, or within its forward."""
    for file, line in dict.fromkeys(unread.lines):
        if unread.was_given:
            made = nan_source.of_call(file, line, unread.layer, unread.owners)
        else:
            made = nan_source.of_attribute(file, line, unread.owners)
        if made is not None:
            fields = {"suspect_at": made.site}
            if made.operation:
                fields["suspect"] = made.operation
            if made.held_in:
                fields["held_in"] = made.held_in
            return fields
    return {}


def _same_place(operations):
    """Where the origin's operation stands in the graph of another step; None where that parts both
    before and after it.
    """
    from_there = search.operations[search.place :]
    if operations[-len(from_there) :] == from_there:
        return len(operations) - len(from_there)
    up_to_there = search.operations[: search.place + 1]
    if operations[: len(up_to_there)] == up_to_there:
        return search.place
    return None


def _made(graph):
    """Its operations in order, without the leaves."""
    return [node for node in graph.in_order() if node.children]


def _before_the_model(traceback):
    """The lines up to the first call of a module; all where there is none."""
    calls = (at for at, line in enumerate(traceback) if _MODULE_FILE in line)
    return traceback[: next(calls, len(traceback))]
