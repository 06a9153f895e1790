"""Which layer a node of autograd's graph belongs to, where no call was watched: by the parameters
that operations take.
"""

from gputop_agent.watchers.graphs import gathered, graph_origin

MAX_DEPTH = 4  # nodes between an operation and its parameter: a transpose, a cast
MOST_SUSPECTS = 2  # layers; among more, as where checkpoints hide tensors, none is picked


class GraphLayers:
    """Operations with parameters, in the order in which they ran, each with its layer."""

    def __init__(self, graph, layers):
        self.layers = layers
        self.owners = {**layers.owners, **gathered.owners(layers)}
        self.indexes = {}  # name -> index
        for index, name in enumerate(layers.names):
            self.indexes.setdefault(name, index)
        self.placed = []  # (sequence number, index of the layer)
        for node in graph.in_order():
            owner = self._owner(graph, node, MAX_DEPTH)
            if owner is not None:
                self.placed.append((node.number, owner))

    def _owner(self, graph, node, depth):
        for child in node.children:
            giver = graph.nodes.get(child)
            if giver is None:
                continue
            if not giver.children:
                owner = self.owners.get(id(getattr(giver.node, "variable", None)))
                if owner is not None:
                    return owner
            elif depth > 1 and graph_origin.weight_of(giver.name) == 0:
                owner = self._owner(graph, giver, depth - 1)
                if owner is not None and not _is_placed(giver):
                    return owner
        return None

    def of(self, node):
        """``(layer, (layer before, layer after))`` of a node; the pair is None for a sure layer."""
        if node.name == "compiled_function":
            return self._compiled(node), None
        if self.is_open(node):
            names = [self._name(owner) for owner in self._owners_of(node.suspects)]
            return self._around(names), [names[0], names[-1]]
        for number, owner in self.placed:
            if number == node.number:
                return owner, None
        before = [owner for number, owner in self.placed if number < node.number]
        after = [owner for number, owner in self.placed if number > node.number]
        last = before[-1] if before else None
        following = after[0] if after else None
        return self.between(last, following), [self._name(last), self._name(following)]

    def is_open(self, node):
        """Whether the node was picked among those of so many layers that it tells nothing."""
        return len(self._owners_of(node.suspects)) > MOST_SUSPECTS

    def _owners_of(self, numbers):
        """Layers with an operation of such a sequence number, in the order in which they ran."""
        wanted = set(numbers)
        return list(dict.fromkeys(owner for number, owner in self.placed if number in wanted))

    def _compiled(self, node):
        """The layer that a compiled graph is of: the innermost that has all of its parameters."""
        owners = [self.owners.get(id(getattr(child, "variable", None))) for child in node.children]
        names = [self.layers.names[owner] for owner in owners if owner is not None]
        return self._around(names)

    def between(self, last, following):
        """The layer that most likely lies between two with parameters, either of which may be None;
        None after the last.
        """
        if following is None:
            return None
        around = self._around([self._name(last), self._name(following)])
        inner = self._without_parameters(around, last, following)
        if inner is not None:
            return inner
        if last is not None and self._has_forward_of_its_own(last):
            return last
        return around

    def _has_forward_of_its_own(self, index):
        """Whether a layer with parameters is no plain one of torch's."""
        module = self.layers.modules[index]()
        return module is not None and not type(module).__module__.startswith("torch.")

    def _name(self, index):
        return "" if index is None else self.layers.names[index]

    def _around(self, names):
        """The innermost layer that has all of these, and is called itself."""
        parts = [name.split(".")[:-1] for name in names if name]
        shared = parts[0] if parts else []
        for other in parts[1:]:
            length = 0
            while length < min(len(shared), len(other)) and shared[length] == other[length]:
                length += 1
            shared = shared[:length]
        while shared and not self._is_called(".".join(shared)):
            shared = shared[:-1]
        return self.indexes.get(".".join(shared), 0)

    def _is_called(self, name):
        index = self.indexes.get(name)
        module = self.layers.modules[index]() if index is not None else None
        forward = getattr(type(module), "forward", None)
        return module is not None and "unimplemented" not in getattr(forward, "__name__", "")

    def _without_parameters(self, around, last, following):
        """The only layer that is defined between the two."""
        outer = self.layers.modules[around]()
        names = list((outer.__dict__.get("_modules") or {}) if outer is not None else ())
        first = self._child(around, last, names, -1)
        end = self._child(around, following, names, len(names))
        between = names[first + 1 : end]
        if len(between) != 1 or outer is None:
            return None
        return self.layers.by_id.get(id(outer.__dict__["_modules"][between[0]]))

    def _child(self, around, index, names, otherwise):
        if index is None:
            return otherwise
        prefix = self.layers.names[around]
        remainder = self.layers.names[index][len(prefix) + 1 if prefix else 0 :]
        child = remainder.split(".")[0]
        return names.index(child) if child in names else otherwise


def _is_placed(giver):
    return giver.name not in graph_origin.STRUCTURE
