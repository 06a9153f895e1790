"""Finds a training process's outermost modules and optimizers in a pass over its objects."""

import gc
import sys
import weakref
from itertools import compress
from time import monotonic_ns

from gputop_agent.runtime import frames, living, modes, variables
from gputop_agent.runtime.sentinel import sentinel
from gputop_agent.runtime.session import session
from gputop_agent.timing import events, replicas, steps

MAX_ROOTS = 64
FREE_PASSES = 8
MOST_SHARE = 1 / 200  # of the time since the first pass that further ones may take
MAX_DEPTH, MAX_FRAMES = 4, 4
MAX_CHILDREN = 256
MAX_NODES = 1000  # of a graph that are looked at for a leaf
NEARLY_ALL = 0.9  # of its parameters, by number, that a wrapper's network has
WRAPPED_AS = ("module", "_orig_mod", "_forward_module")  # where a wrapper keeps the model


class RootSearch:
    """How far the search for roots has come."""

    def __init__(self):
        self.frontier = []  # weakrefs to the modules hooked last, for ``expand``
        self.passes = 0  # made in this process
        self.began_ns = self.spent_ns = 0  # of all passes
        self.depth = 0


search = RootSearch()


def _nothing(module, trained=True):
    """Until the hooks of modules are installed."""
    return False


# hook_module(module, trained): time its forward; returns whether that was not done yet
hook_module = _nothing


def discover():
    """Find and hook what trains. Called at the first backward or optimizer step; 10-60 ms, once."""
    began_ns = monotonic_ns()
    search.passes += 1
    search.began_ns = search.began_ns or began_ns
    _find(*_live_objects())
    search.spent_ns += monotonic_ns() - began_ns


def _find(modules, optimizers):
    """The outermost of these modules, whose forwards are timed from now on."""
    for optimizer in (*living.outermost(optimizers), *optimizers):  # the first stands for all
        know(optimizer)
    wanted = [id(parameter) for optimizer in optimizers for parameter in _parameters_of(optimizer)]
    place_of = {key: place for place, key in enumerate(wanted)}
    wanted = set(wanted)
    children = {id(child) for module in modules for child in _children(module)}
    roots = []
    for module in modules:
        if id(module) in children or len(roots) == MAX_ROOTS:
            continue
        parameter_ids = [id(parameter) for parameter in module.parameters()]
        if parameter_ids or _is_loss(module):
            trained = _is_trained(module, wanted)
            roots.append(module)
            _hook_with_wrapped(module, trained and bool(parameter_ids))
    # the collector lists the youngest first: the order that a script sees is its optimizers'
    roots.sort(key=lambda root: _first_place(root, place_of))
    _note_roots(roots, wanted)


def _is_trained(module, wanted):
    """Whether an optimizer knows one of its parameters."""
    if _is_engine(module) or not wanted:
        return True
    return any(id(parameter) in wanted for parameter in module.parameters())


def still_trains(module):
    """Whether what was trained once still is: it wants gradients, and none or a recent optimizer is
    known to have its first parameter that does. A teacher may have been trained before.
    """
    if _is_engine(module):
        return True
    trainable = (parameter for parameter in module.parameters() if parameter.requires_grad)
    first = next(trainable, None)
    if first is None:
        return False
    events.forget_optimizers()
    optimizers = living.alive(session.optimizers.values())
    if not optimizers:
        return True
    recent = [optimizer for optimizer in optimizers if events.steps_lately(id(optimizer))]
    return any(
        first is parameter for optimizer in recent for parameter in _parameters_of(optimizer)
    )


def _is_engine(module):
    """Whether it is DeepSpeed's, whose optimizers have flat partitions of their own."""
    return any(kind.__name__ == "DeepSpeedEngine" for kind in type(module).__mro__)


def _first_place(module, place_of):
    """Where its first parameter stands in the optimizers; after all where it has none there."""
    ids = map(id, module.parameters())
    places = [place_of[key] for key in ids if key in place_of]
    return min(places, default=len(place_of))


def know(optimizer):
    """Remember an optimizer, so that a step waits for it."""
    events.forget_optimizers()
    if id(optimizer) not in session.optimizers:
        session.optimizers[id(optimizer)] = living.Reference(
            optimizer, events.gone_optimizers.append
        )
        events.known_optimizers[id(optimizer)] = session.step
        events.found_optimizers[id(optimizer)] = session.step
        events.optimizer_values[id(optimizer)] = _count_values(optimizer)


@modes.unseen
def _count_values(optimizer):
    return sum(parameter.numel() for parameter in _parameters_of(optimizer))


def new_optimizer(optimizer):
    """A new optimizer stepped: whether to look again, as it trains parameters of no known root, nor
    of a module that is a variable of the functions that run, which is then a root.
    """
    know(optimizer)
    strange = _without_roots(optimizer)
    if strange and search.passes:
        steps.book_agent_time(_look_in_frames, strange)
        strange = _without_roots(optimizer)
    return bool(strange) and _may_pass()


def _without_roots(optimizer):
    """Ids of its parameters that no living root has."""
    roots = living.alive(session.roots)
    of_roots = {id(parameter) for root in roots for parameter in root.parameters()}
    return {id(parameter) for parameter in _parameters_of(optimizer)} - of_roots


def _look_in_frames(wanted):
    """Modules that are variables of the user's running functions, or attributes of ``self``."""
    users_frames = filter(frames.is_user, frames.stack(sys._getframe(1)))
    pairs = [pair for frame in list(users_frames)[:MAX_FRAMES] for pair in variables.of(frame)]
    values = [value for _, value in pairs]
    for owner in [value for name, value in pairs if name == "self"]:
        values += variables.attributes(owner).values()
    modules = [value for value in values if issubclass(type(value), session.torch.nn.Module)]
    modules = [module for module in modules if "_modules" in module.__dict__]
    if any(id(parameter) in wanted for module in modules for parameter in module.parameters()):
        known = living.alive([*session.roots, *session.untrained])
        together = {id(module): module for module in (*known, *modules)}
        _find(_with_children(together), living.alive(session.optimizers.values()))


def _with_children(modules):
    """Modules by id, and all below them."""
    todo = list(modules.values())
    while todo:
        for child in _children(todo.pop()):
            if id(child) not in modules:
                modules[id(child)] = child
                todo.append(child)
    return list(modules.values())


def _may_pass():
    """Whether one more look through all objects is cheap beside the training: a network for each
    fold, trial or client is to be seen.
    """
    lasted_ns = monotonic_ns() - search.began_ns
    return search.passes < FREE_PASSES or search.spent_ns <= MOST_SHARE * lasted_ns


def look_again():
    """Backward ran and no known module's forward was seen: hook anew, or one level deeper.

    The model is called through a method (``model.encode(x)``, ``model.forward(x)``, Lightning's
    ``training_step``), or ``model.compile()`` has replaced our slot.
    """
    if (
        any(hook_module(module) for module in living.alive(search.frontier))
        or search.depth >= MAX_DEPTH
    ):
        return
    search.depth += 1
    parents = living.alive(search.frontier)
    children = [child for module in parents for child in _called_children(module)][:MAX_CHILDREN]
    for child in children:
        hook_module(child)
    search.frontier = [weakref.ref(child) for child in children]


@modes.unseen
def watch_leaf(loss):
    """Tensors are trained without modules and optimizers: tell updates from the last leaf."""
    todo = [getattr(loss, "grad_fn", None)]
    for node in todo:
        if len(todo) > MAX_NODES:
            return
        leaf = getattr(node, "variable", None)
        if leaf is not None and leaf.grad is not None:
            return sentinel.watch((leaf,), bare=True)
        todo += [
            following
            for following, _ in getattr(node, "next_functions", ())
            if following is not None
        ]


@session.after_fork
def reset():
    """In a forked child."""
    search.__init__()


def _live_objects():
    torch = session.torch
    graph_module = getattr(sys.modules.get("torch.fx.graph_module"), "GraphModule", None)
    skipped = tuple(
        module_type
        for module_type in (graph_module, torch.jit.ScriptModule)
        if module_type is not None
    )
    module_types = {
        module_type
        for module_type in _subclasses(torch.nn.Module)
        if not issubclass(module_type, skipped)
    }
    optimizer_types = set(_subclasses(torch.optim.Optimizer))
    objects = of_types(gc.get_objects(), module_types | optimizer_types)
    modules = [
        item for item in objects if type(item) in module_types and "_modules" in item.__dict__
    ]
    optimizers = [
        item
        for item in objects
        if type(item) in optimizer_types and item.__dict__.get("param_groups")
    ]
    return modules, optimizers


def of_types(objects, kinds):
    """Filter without a line of Python an object: 30 ms for 290,000 objects instead of 90."""
    return list(compress(objects, map(kinds.__contains__, map(type, objects))))


def _subclasses(kind):
    classes, todo = [kind], [kind]
    while todo:
        for child in type.__subclasses__(todo.pop()):
            classes.append(child)
            todo.append(child)
    return classes


def _children(module):
    return [
        child for child in (module.__dict__.get("_modules") or {}).values() if child is not None
    ]


def _called_children(module):
    """Its children, and of containers that are never called those in them."""
    children = []
    for child in _children(module):
        children += _called_children(child) if isinstance(child, _containers()) else [child]
    return children


def _containers():
    return session.torch.nn.ModuleList, session.torch.nn.ModuleDict


def _parameters_of(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _is_loss(module):
    return isinstance(module, session.torch.nn.modules.loss._Loss)


def _hook_with_wrapped(module, trained):
    """Hook a root and what it wraps: evaluation often calls what DDP or torch.compile wraps, or the
    network alone that a diffusion model, peft or a trainer's module holds.
    """
    for _ in range(MAX_DEPTH):
        hook_module(module, trained)
        inner = [module.__dict__["_modules"].get(name) for name in WRAPPED_AS]
        module = next((child for child in inner if child is not None), None) or _nearly_all(module)
        if module is None or "_modules" not in module.__dict__:
            return


def _nearly_all(module):
    """The child that has nearly all of a module's parameters, if one has and can be called."""
    most = NEARLY_ALL * _count_parameters(module)
    for child in _children(module):
        count = _count_parameters(child)
        if count and count >= most and not isinstance(child, _containers()):
            return child
    return None


def _count_parameters(module):
    return sum(1 for _ in module.parameters())


def _note_roots(found, wanted):
    trained = [module for module in found if _is_trained(module, wanted)]
    search.frontier, search.depth = [weakref.ref(module) for module in trained], 0
    session.roots = [weakref.ref(module) for module in trained if not _is_loss(module)]
    untrained_ids = {id(module) for module in found} - {id(module) for module in trained}
    session.untrained = [weakref.ref(module) for module in found if id(module) in untrained_ids]
    ddp = session.torch.nn.parallel.DistributedDataParallel
    session.ddp = [weakref.ref(module) for module in trained if isinstance(module, ddp)]
    if session.ddp:
        replicas.found()
    if sentinel.reference is None:
        sentinel.watch(parameter for module in trained for parameter in module.parameters())
