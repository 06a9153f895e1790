"""Gradients that are zero in all of a tensor, and gradients that no optimizer has use for.

Both are looked at from one look of ``checkup`` to the next: what was found once is a suspicion, and
is told of when later looks have found it too.
"""

import weakref
from typing import Any

from gputop_agent.runtime import late, source
from gputop_agent.runtime.living import alive
from gputop_agent.runtime.session import session
from gputop_agent.timing import events
from gputop_agent.watchers.graphs import flat_operations, graph_leaves
from gputop_agent.watchers.looks import built_places, plain_holders, used_at

MAX_TENSORS = 1000
MAX_VALUES = 4096  # of a gradient that is not suspected
MAX_COPIED, COPIED_VALUES = 256, 512  # gradients on a GPU, and values of each
MAX_NAMES = 8
KEPT_VALUES = 64  # of a parameter that no optimizer has, to see whether somebody changes it
KEPT_TENSORS = 8
_ZEROES = r"\bzeros_\(|\.zero_\(\)|constant_\([^,]+, *0(\.0*)?\)|\.fill_\( *0(\.0*)?\)"
_THAWS = r"requires_grad_\((True)?\)|\.requires_grad *= *True"
_MAKES_PARAMETER = r"\bParameter\("
CONFIRMED = 3  # looks in a row that found all of a gradient zero, after one that saw some of it


def in_roots(untrained=()):
    """Name, module and parameter of the modules that are trained, each parameter once.

    Then those of other modules, whose names begin with that of their class.
    """
    modules = [(f"{type(other).__name__}.", other) for other in alive(untrained)]
    modules += [("", root) for root in alive(session.roots)]
    yield from in_modules(modules)


def in_modules(todo):
    """The same of these modules, the last one first; each with what its names begin with, and
    without running code of theirs.
    """
    visited = set()
    while todo:
        prefix, module = todo.pop()
        if id(module) in visited:
            continue
        visited.add(id(module))
        for name, parameter in (module.__dict__.get("_parameters") or {}).items():
            if parameter is not None and id(parameter) not in visited:
                visited.add(id(parameter))
                yield prefix + name, module, parameter
        for name, child in (module.__dict__.get("_modules") or {}).items():
            if child is not None:
                todo.append((prefix + name + ".", child))


def names(parameters):
    """Names of parameters in the trained modules; None for one in none of them."""
    wanted = {id(parameter): None for parameter in parameters}
    for name, _, parameter in in_roots():
        if id(parameter) in wanted:
            wanted[id(parameter)] = name
    return list(wanted.values())


class Zeros:
    """Parameters all of whose gradient was zero at each of the last looks.

    Some values of each gradient make a suspicion, and the whole of it at the next look confirms it.
    Tables are left out: most of their rows have nothing to do with a batch.
    """

    def __init__(self):
        self.suspected = {}  # id of a parameter -> looks in a row
        self._looks = 0  # at a GPU
        self._flat = flat_operations.FlatOperations()
        self._unread: Any = None  # (parameters, sums of their gradients' sizes as late values)

    def before_backward(self, args):
        """A look's loss: why may the gradients of those that are suspected be zero?"""
        if self.suspected:
            self._flat.before_backward(args)

    def look(self, parameters):
        """Fields of the event: values, names and looks of those that were zero three times."""
        self._read()
        device = parameters[0].grad.device
        looked_at = [parameter for parameter in parameters if parameter.grad.device == device][
            :MAX_TENSORS
        ]
        suspects = [parameter for parameter in looked_at if id(parameter) in self.suspected]
        unsuspected = self._unsuspected(looked_at)
        values = late.Late()
        if unsuspected:
            values.put("others", _sizes, [_some_gradient(parameter) for parameter in unsuspected])
        if suspects:  # few: the whole of them is summed where it lies
            wholes = [parameter.grad.detach().reshape(-1) for parameter in suspects]
            values.put("suspects", late.listed, [session.torch.stack(_sums(wholes))])
        self._unread = [weakref.ref(parameter) for parameter in (*unsuspected, *suspects)], values
        if device.type == "cpu":
            self._read()
        dead = [
            parameter for parameter in looked_at if self.suspected.get(id(parameter), 0) > CONFIRMED
        ]
        dead = _without_tables(dead) if dead else dead
        if not dead:
            return {}
        return {
            "zero_gradient": _values_in(dead),
            "zero_gradient_names": names(dead[:MAX_NAMES]),
            "zero_gradient_at": used_at.line_of_use(dead),
            "zero_gradient_looks": min(self.suspected[id(parameter)] for parameter in dead) - 1,
            **self._flat.of(dead),
            **_zeroed(dead),
        }

    def _unsuspected(self, parameters):
        """Those that are not suspected: on a GPU some, and others at the next look."""
        unsuspected = [parameter for parameter in parameters if id(parameter) not in self.suspected]
        if not unsuspected or unsuspected[0].is_cpu:
            return unsuspected
        stride = -(-len(unsuspected) // MAX_COPIED)
        self._looks += 1
        return unsuspected[self._looks % stride :: stride]

    def _read(self):
        if self._unread is None:
            return
        references, values = self._unread
        self._unread = None
        sums = values.read()
        if sums is None:
            return
        numbers = sums.get("others", []) + sums.get("suspects", [])
        alive = [(reference(), numbers[index]) for index, reference in enumerate(references)]
        self.suspected = {
            id(parameter): self.suspected.get(id(parameter), 0) + 1
            for parameter, total in alive
            if parameter is not None and total == 0
        }


def _some_gradient(parameter):
    """Some values of a gradient: spread over it on a CPU, and few enough to copy from a GPU."""
    flat = parameter.grad.detach().reshape(-1)
    if not flat.is_cpu:
        return flat[:COPIED_VALUES]
    if len(flat) <= MAX_VALUES:
        return flat
    return flat[:: len(flat) // MAX_VALUES | 1]


def _sums(parts):
    """The sum of the sizes of each tensor's values, as tensors."""
    return [total.float() for total in session.torch._foreach_norm(list(parts), 1)]


def _sizes(parts):
    """The sum of the sizes of each tensor's values."""
    return session.torch.stack(_sums(parts)).tolist()


def _zeroed(parameters):
    """Names of the matrices among them that are all 0, and the only line that makes such; not of a
    GPU's, which a look does not wait for.
    """
    zeros = [
        parameter
        for parameter in parameters
        if parameter.is_cpu and parameter.dim() > 1 and not parameter.detach().any()
    ]
    if not zeros:
        return {}
    return {
        "zero_weights": names(zeros[:MAX_NAMES]),
        "zero_weights_at": source.place_matching(_ZEROES),
    }


def _without_tables(parameters):
    tables = {
        id(parameter) for _, module, parameter in in_roots() if hasattr(module, "num_embeddings")
    }
    return [parameter for parameter in parameters if id(parameter) not in tables]


class Strays:
    """Parameters that have gradients, lie in no optimizer x stepped, and stay as they are."""

    def __init__(self):
        self.looks = 0  # in a row that found some, none of them changed
        self._kept = []  # (weak reference to a parameter, copy of some of its values)
        self._leaves = []  # weak references to the parameters below the loss of this step
        self._unread = late.Late()  # how many of those values have changed

    def before_backward(self, args):
        """Remember which parameters a loss comes from: some may be in no module.

        Other leaves are inputs as often as not, as the points of a differential equation.
        """
        node = getattr(args[0], "grad_fn", None) if args else None
        leaves = graph_leaves.below(node) if node is not None else None
        parameter_class = session.torch.nn.Parameter
        self._leaves = [
            weakref.ref(leaf) for leaf in leaves or () if isinstance(leaf, parameter_class)
        ]

    def look(self):
        """Fields of the event: values and names of them, and of all that have gradients."""
        stepped, waiting = _parameters_in_use()
        graded, strays = [], []
        outside = self._outside()
        for name, parameter in (*_named(session.untrained), *outside):
            if parameter.requires_grad and parameter.grad is not None:
                graded.append(parameter)
                if id(parameter) not in stepped:
                    strays.append((name, parameter))
        is_unchanged = self._is_unchanged()
        self.looks = self.looks + 1 if strays and is_unchanged else 0
        self._keep([parameter for _, parameter in strays])
        fields: Any = {"graded": _values_in(graded)}
        if strays:
            fields["stray"] = _values_in(parameter for _, parameter in strays)
            fields["stray_names"] = [name for name, _ in strays[:MAX_NAMES]]
            parameters = [parameter for _, parameter in strays]
            fields["stray_at"] = used_at.line_of_use(parameters)
            fields.update(_left_out(parameters))
            fields.update(plain_holders.holder_of(parameters))
            fields.update(_made_outside(strays, outside))
            fields.update(_apart(parameters))
            fields["stray_looks"] = self.looks
            fields["stray_waiting"] = _values_in(
                parameter for _, parameter in strays if id(parameter) in waiting
            )
        return fields

    def _outside(self):
        """Names and parameters of the step's leaves that are in no module."""
        leaves, self._leaves = alive(self._leaves), []
        within = {id(parameter) for _, parameter in _named(session.untrained)}
        return [(shape_of(leaf), leaf) for leaf in leaves if id(leaf) not in within]

    def _is_unchanged(self):
        """Whether nobody has written to those of the last look: on a GPU, as of the look before."""
        numbers = self._unread.read() or {}
        self._compare()
        if not session.cuda:
            numbers = self._unread.known
        return numbers.get("changed") == 0

    def _keep(self, parameters):
        plain = [stray for stray in parameters if late.is_plain(stray)]
        chosen = plain[:: max(1, len(plain) // KEPT_TENSORS)][:KEPT_TENSORS]
        self._kept = [
            (weakref.ref(parameter), parameter.detach().reshape(-1)[:KEPT_VALUES].clone())
            for parameter in chosen
        ]

    def _compare(self):
        """Count the values that somebody has written since the last look."""
        self._unread = late.Late()
        pairs: Any = [(reference(), values) for reference, values in self._kept]
        if pairs and all(
            parameter is not None and parameter.device == old.device for parameter, old in pairs
        ):
            changes = [
                (parameter.detach().reshape(-1)[:KEPT_VALUES] != old).sum()
                for parameter, old in pairs
            ]
            if len({change.device for change in changes}) == 1:
                self._unread.put("changed", late.first_number, [sum(changes)])


def _named(untrained):
    return [(name, parameter) for name, _, parameter in in_roots(untrained)]


def shape_of(tensor):
    """``"a tensor of 4 x 3"``, where no module has a name for it."""
    return "a tensor of %s" % " x ".join(map(str, tensor.shape or (1,)))


def _made_outside(strays, outside):
    """How many values of the strays are in no module, and the only line that makes parameters."""
    ids = {id(parameter) for _, parameter in outside}
    values = _values_in(parameter for _, parameter in strays if id(parameter) in ids)
    if not values:
        return {}
    return {"stray_outside": values, "stray_made_at": source.place_matching(_MAKES_PARAMETER)}


def _left_out(strays):
    """Where the optimizer is made that has the rest of their model, and the only line that says
    ``requires_grad_(True)``; empty for those of a model that is not trained.
    """
    wanted = set(map(id, strays))
    for root in alive(session.roots):
        ids = {id(parameter) for _, _, parameter in in_modules([("", root)])}
        optimizer = _optimizer_of(ids) if wanted <= ids else None
        if optimizer is not None:
            return {
                "stray_optimizer_at": built_places.of_optimizer(optimizer),
                "stray_thawed_at": source.place_matching(_THAWS),
            }
    return {}


def _apart(strays):
    """``{"stray_apart": "Linear"}`` where they are all that a module has which is called beside the
    model, and in no optimizer: it stays as it was made.
    """
    wanted = set(map(id, strays))
    for module in alive(session.untrained):
        ids = {id(parameter) for _, _, parameter in in_modules([("", module)])}
        if wanted and wanted == ids:
            return {"stray_apart": type(module).__name__}
    return {}


def _optimizer_of(ids):
    """The one with most of these parameters, of those that have stepped; None without any."""
    with_most, most_shared = None, 0
    for optimizer in alive(session.optimizers.values()):
        if not events.has_stepped(optimizer):
            continue
        shared = sum(id(parameter) in ids for parameter in _parameters_of(optimizer))
        if shared > most_shared:
            with_most, most_shared = optimizer, shared
    return with_most


def _parameters_of(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _parameters_in_use():
    """Ids of the parameters of optimizers that have stepped, and of those that have not yet."""
    stepped, waiting = set(), set()
    for reference in session.optimizers.values():
        optimizer = reference()
        if optimizer is not None:
            ids = stepped if events.has_stepped(optimizer) else waiting
            ids.update(map(id, _parameters_of(optimizer)))
    return stepped, waiting


def _values_in(parameters):
    return sum(parameter.numel() for parameter in parameters)
