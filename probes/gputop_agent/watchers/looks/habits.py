"""Habits of a training script that no figure of a step shows, seen at the looks of ``checkup``.

An optimizer that is made anew for each update, probabilities given to a loss that wants scores,
predictions of another shape than their targets, a backward through the same graph for each loss,
gradients clipped while they are scaled or after their update, weights that have vanished, and
tables of which a batch meets few rows.
"""

import math
import os
from typing import Any

from gputop_agent.runtime import frames, late, source
from gputop_agent.runtime.session import session
from gputop_agent.timing.step_state import open_step
from gputop_agent.watchers.graphs import anomaly, graph_nodes
from gputop_agent.watchers.looks import built_places, gradients, target_classes

_LAYERS = os.path.join("torch", "nn", "modules", "")
_LAYER_CALLS = 2  # entries of a traceback that end in the operation of a layer
MAX_ROWS, MAX_COLUMNS = 1024, 16  # of a table's gradient
MAX_COPIED_ROWS = 128  # from a GPU, where each row is a copy
LARGE_TABLE = 0.25  # of the optimizer's values
SOON_STEPS = 23  # a first suspicion is looked at again so soon, at another step of a cycle
VANISHED = 1e-5  # a root mean square of weights below which none of them says anything
_LOSSES = {
    "NllLossBackward0": ("LogSoftmaxBackward0", "SoftmaxBackward0"),
    "NllLoss2DBackward0": ("LogSoftmaxBackward0", "SoftmaxBackward0"),
    "BinaryCrossEntropyWithLogitsBackward0": ("SigmoidBackward0",),
}
"""Backward of a loss, and what lies behind it where the model's output is a probability already."""
_OF_EACH_ERROR = {
    "MeanBackward0",
    "MeanBackward1",
    "SumBackward0",
    "SumBackward1",
    "PowBackward0",
    "AbsBackward0",
    "MseLossBackward0",
    "SmoothL1LossBackward0",
    "HuberLossBackward0",
}
"""Backwards between a loss and the errors that it is the mean of."""
_SPREADS = ("SubBackward0", "RsubBackward1", "ExpandBackward0")
_WEIGH = ("MulBackward0", "DivBackward0")
_JOINS = {"AddBackward0", "SubBackward0", "MinimumBackward0", "MaximumBackward0"}
MAX_BEFORE_ERRORS = 48  # of a loss of several terms, all of which are gone through
_BEFORE_ERRORS = _OF_EACH_ERROR | graph_nodes.SAME_VALUES | {*_SPREADS, *_WEIGH, "NegBackward0"}


class SeenHabits:
    """What the looks have seen so far."""

    def __init__(self):
        self.fresh_looks = 0  # in a row that met an optimizer at its first update
        self._fresh = False
        self._nodes = []  # of the last backward's graph that is kept for another one
        self._forwards = -1  # before that backward
        self._again = []  # part of each further backward's nodes that one before has gone through
        self._twice = ""
        self._crossed: Any = None  # shapes of predictions and of their errors, and by what
        self._backward_at = None
        self._loss_at = None
        self._lines = anomaly.AnomalyForward()  # where a look is to find the line of a node
        self._wants_line = False
        self._made_at = None  # the line of what was found
        self._classes = target_classes.TargetClasses()

    def before_forward(self):
        """A look begins: one before has found an operation whose line it could not tell."""
        if self._wants_line:
            self._lines.switch_on()

    def before_backward(self, args, kwargs, optimizer):
        """Look at the graph of a loss, and at the one before it in the same step.

        Where gradients were cleared in between, each loss is wanted by itself.
        """
        self._lines.switch_off()
        if not open_step.backwards:
            self._again, self._nodes, self._twice, self._crossed = [], [], "", None
            self._backward_at = frames.caller_site()
        root = getattr(args[0], "grad_fn", None) if args else None
        if root is None:
            return
        nodes = graph_nodes.below(root)
        self._look_for_shapes(root, nodes)
        self._classes.before_backward(nodes)
        alone = self._forwards != open_step.forwards or not _holds_gradients(optimizer)
        if self._nodes and not alone:
            before = set(self._nodes)
            self._again.append(sum(node in before for node in nodes) / len(nodes))
        retains = (len(args) > 2 and args[2]) or kwargs.get("retain_graph")
        creates = (len(args) > 3 and args[3]) or kwargs.get("create_graph")
        self._nodes = nodes if retains and not creates else []
        self._forwards = open_step.forwards

    def _look_for_shapes(self, node, nodes):
        """Probabilities that are normalised again, and predictions that are spread over targets."""
        suspects = []
        if not self._twice:
            self._twice, *suspects = next(filter(None, map(_normalised_twice, nodes)), ("",))
        if not self._crossed:
            self._crossed, spread = _crossed(node)
            if not suspects and spread is not None:
                suspects = [spread]
            self._loss_at = _line_of_loss() if self._crossed else None
        if suspects:
            line = _line_of(suspects)
            self._made_at = source.place(*line) if line else self._made_at
            self._wants_line = self._made_at is None and anomaly.is_small(node)

    def end(self):
        """Keep nothing of the user's graphs; called when a look ends."""
        self._lines.switch_off()
        self._nodes, self._again = [], []
        self._classes.end()

    def replaces(self, optimizer, previous):
        """Whether an optimizer without state updates what the look's one did, or that is gone."""
        self._fresh = (
            optimizer is not previous
            and not optimizer.state
            and (previous is None or _ids(optimizer) == _ids(previous))
        )
        return self._fresh

    def before_update(self, parameters, values):
        """Fields of the event; what must be read from a device goes to ``values``."""
        sites = {"backward_at": self._backward_at, "update_at": frames.caller_site()}
        fields: "dict[str, Any]" = {name: site for name, site in sites.items() if site}
        if self._again:
            fields["graph_again"] = [round(share, 3) for share in self._again[: late.MAX_TENSORS]]
        if self._twice:
            fields["normalised_twice"] = self._twice
        if (self._twice or self._crossed) and self._made_at:
            fields["shapes_at"] = self._made_at
        if self._crossed:
            fields.update(self._crossed)
            if self._loss_at:
                fields["loss_at"] = self._loss_at
        if session.clips_scaled:
            fields["clips_scaled"] = session.clips_scaled
        if session.clips_late:
            fields.update(clips=session.clips, clips_late=session.clips_late)
            if session.clip_site:
                fields["clips_late_at"] = session.clip_site
        if late.may_look():
            self._classes.put(values)
            _put_weights(parameters, values)
            fields.update(_look_at_table(parameters, values))
        return fields

    def after_update(self, optimizer):
        """Looks in a row that found an optimizer with state at its first update, and its line."""
        has_state = any(optimizer.state.values())
        self.fresh_looks = self.fresh_looks + 1 if self._fresh and has_state else 0
        self._fresh = False
        if not self.fresh_looks:
            return {}
        fields = {"fresh_looks": self.fresh_looks}
        made_at = built_places.of_optimizer(optimizer)
        if made_at:
            fields["fresh_at"] = made_at
        return fields


def is_suspected(findings):
    """Whether a look has found what is worth another one soon."""
    return _have_vanished(findings) or target_classes.is_suspected(findings)


def _have_vanished(findings):
    return (findings.get("weights_rms") or 1.0) < VANISHED


def gist(findings):
    """What of it is worth an event of its own where it has changed."""
    return (
        findings.get("fresh_looks", 0) >= 3,
        bool(findings.get("graph_again")),
        findings.get("normalised_twice"),
        findings.get("predictions_shape"),
        bool(findings.get("clips_scaled")),
        bool(findings.get("clips_late")),
        _have_vanished(findings),
        *target_classes.gist(findings),
    )


def _holds_gradients(optimizer):
    """Whether a gradient is there; of one on a CPU, whether some of it is not zero."""
    for group in getattr(optimizer, "param_groups", ()):
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None and late.is_plain(gradient):
                return not gradient.is_cpu or bool(
                    gradient.detach().reshape(-1)[: late.MAX_VALUES].count_nonzero()
                )
    return False


def _ids(optimizer):
    return [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]


def _normalised_twice(node):
    """``softmax`` or ``sigmoid`` where a loss that applies it gets what it has been applied to, the
    node of that and of the loss; None elsewhere.
    """
    loss = node
    chain = _LOSSES.get(node.name())
    if chain is None:
        return None
    for name in chain:
        node = graph_nodes.first_input(node)
        while node is not None and node.name() in graph_nodes.SAME_VALUES:
            node = graph_nodes.first_input(node)
        if node is None or node.name() != name:
            return None
    return ("sigmoid" if chain[-1].startswith("Sigmoid") else "softmax"), node, loss


def _line_of(nodes):
    """File and line of the user's that made the first of the nodes; of the next one where a layer
    did, as one of ``nn.Sequential``: nobody writes that where it runs.
    """
    lines = None
    for node in nodes:
        entries = anomaly.traceback_of(node)
        lines = anomaly.users_line(entries) or lines
        if lines and not any(_LAYERS in entry for entry in entries[-_LAYER_CALLS:]):
            return lines
    return lines


def _line_of_loss():
    frame = frames.caller()
    return source.assigned_before(frame) if frame is not None else None


def _crossed(node):
    """Fields of predictions and of their errors where each of ``n`` predictions is compared with
    each of ``n`` targets, or each error weighed by each weight: ``[n, 1]`` less ``[n]`` is a matrix
    of ``n x n``. Of a loss that is a sum, in any of its terms. Beside them the node that does it;
    a pair of None where there is none.
    """
    todo = [node]
    for _ in range(MAX_BEFORE_ERRORS):
        if not todo:
            break
        node = todo.pop(0)
        name = node.name()
        following = [child for child, _ in node.next_functions if child is not None]
        fields = _spread(node, following[0], name) if len(following) == 1 else None
        if fields:
            return fields, node
        leads_to_errors = len(following) == 1 and name in _BEFORE_ERRORS
        if leads_to_errors or (name in _JOINS and len(following) > 1):
            todo += following
    return None, None


def _spread(node, following, name):
    """The fields, where a node spreads what it is given over something of another shape."""
    if name not in (*_SPREADS, *_WEIGH):
        return None
    errors, predictions = graph_nodes.shape(node), graph_nodes.shape(following)
    if len(errors) == 2 and errors[0] == errors[1] == math.prod(predictions) > 1:
        shapes = {"predictions_shape": list(predictions), "errors_shape": list(errors)}
        return {**shapes, "weighed": name in _WEIGH}
    return None


def _put_weights(parameters, values):
    """Put the largest root mean square of some weights of eight matrices."""
    matrices = [
        parameter for parameter in parameters if parameter.dim() > 1 and late.is_plain(parameter)
    ]
    if not matrices:
        return
    chosen = late.spread(matrices)
    values.put("weights_rms", _largest_rms, late.some_values(chosen, late.MAX_VALUES))


def _largest_rms(parts):
    """The largest root mean square; 1 where a value is not finite."""
    largest = max(part.float().square().mean().sqrt().item() for part in parts)
    return largest if math.isfinite(largest) else 1.0


def _look_at_table(parameters, values):
    """Name and rows of a large table, and how many of some rows have a gradient."""
    total = sum(parameter.numel() for parameter in parameters)
    large = [
        parameter
        for parameter in parameters
        if parameter.dim() == 2 and parameter.numel() > LARGE_TABLE * total
    ]
    for name, module, table in gradients.in_roots() if large else ():
        if not hasattr(module, "num_embeddings") or not any(
            table is parameter for parameter in large
        ):
            continue
        if table.grad is None or not late.is_plain(table.grad):
            continue
        most_rows = MAX_ROWS if table.is_cpu else MAX_COPIED_ROWS
        rows = table.grad.detach()[:: -(-len(table) // most_rows), :MAX_COLUMNS]
        values.put("table_rows_met", _rows_met, [rows] if table.is_cpu else rows.unbind())
        return {
            "table": name,
            "table_rows": len(table),
            "table_values": table.numel(),
            "table_rows_looked_at": len(rows),
        }
    return {}


def _rows_met(parts):
    """How many rows, in one matrix or each by itself, have a value that is not zero."""
    rows = parts[0] if parts[0].dim() == 2 else session.torch.stack(parts)
    return int(rows.any(1).sum())
