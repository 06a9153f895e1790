"""Whether a batch holds one class alone, as where data that lie sorted by class are not shuffled.

Read at the looks of ``checkup`` from what ``cross_entropy`` has saved for its backward. Only scores
of one row for each target count: targets of a text's tokens or of a picture's points lie beside
each other in any order of the data.
"""

from gputop_agent.runtime import late
from gputop_agent.watchers.graphs import graph_nodes, graph_origin

LEAST_TARGETS, MOST_TARGETS = 8, 4096
MOST_OF_BATCH = 0.9
MOST_TOLD = 8
SOON_AT_MOST = 6  # looks that come soon as each batch so far has held one class


class TargetClasses:
    """What the looks have seen so far."""

    def __init__(self):
        self._looks = 0  # with targets
        self._of_one_class = 0
        self._commonest = []  # class of each look with one, where it is another than the last
        self._targets = None

    def before_backward(self, nodes):
        """Keep the targets of the step's first loss that has some, from the nodes of its graph."""
        if self._targets is None and late.may_look():
            losses = [node for node in nodes if node.name() == "NllLossBackward0"]
            self._targets = _targets(losses[0]) if losses else None

    def end(self):
        """Keep nothing of the user's; called when a look ends."""
        self._targets = None

    def put(self, values):
        """Hand the targets over to be counted."""
        if self._targets is not None:
            values.put("target_classes", self._count, [self._targets])

    def _count(self, parts):
        """Fields of the event."""
        classes, counts = parts[0].unique(return_counts=True)
        commonest = int(counts.argmax())
        self._looks += 1
        if int(counts[commonest]) >= MOST_OF_BATCH * parts[0].numel():
            self._of_one_class += 1
            if int(classes[commonest]) not in self._commonest[-1:]:
                self._commonest.append(int(classes[commonest]))
        return {
            "class_looks": self._looks,
            "one_class_looks": self._of_one_class,
            "one_class_in_turn": self._commonest[:MOST_TOLD],
        }


def is_suspected(findings):
    """Whether all batches so far held one class each: another one soon may hold another class."""
    looks = findings.get("class_looks", 0)
    return 0 < looks <= SOON_AT_MOST and findings["one_class_looks"] == looks


def gist(findings):
    """What of it is worth an event of its own where it has changed."""
    return (len(findings.get("one_class_in_turn", ())),)


def _targets(loss):
    """Targets that the loss has saved, where they are of a class each for a row of scores."""
    targets = graph_origin.saved(loss, "_raw_saved_target")
    if targets is None or targets.dim() != 1 or not late.is_plain(targets):
        return None
    is_some = LEAST_TARGETS <= targets.numel() <= MOST_TARGETS
    return targets if is_some and _is_matrix(loss) else None


def _is_matrix(loss):
    """Whether the model gave its scores as one, which were not flattened into one."""
    node = graph_nodes.first_input(loss)
    while node is not None and len(graph_nodes.shape(node)) == 2:
        if node.name() not in ("LogSoftmaxBackward0", *graph_nodes.SAME_VALUES):
            return True
        node = graph_nodes.first_input(node)
    return False
