"""What an out-of-memory error met: the module that asked, and what the device's memory was held
for.

Called once, when such an error ends the process: its frames and all that they hold are still alive.
Runs no user code.
"""

from time import monotonic_ns

from gputop_agent.description import describe_model
from gputop_agent.runtime import guard, interrupts, late
from gputop_agent.runtime.living import alive
from gputop_agent.runtime.session import session
from gputop_agent.timing import activation, memory, roots, steps

_CALLS = ("_call_impl", "_wrapped_call_impl", "_slow_forward")
_WORDS = ("out of memory", "outofmemory")
MAX_STATES = 200_000  # entries of the optimizers' states that are counted


def is_one(error):
    """Whether an exception says that a device has no memory left."""
    return type(error).__name__ == "OutOfMemoryError" or (
        isinstance(error, RuntimeError) and any(word in str(error)[:400].lower() for word in _WORDS)
    )


def introduce():
    """A process whose first step had no room: find what it trains, and say hello."""
    if activation.before_training():
        activation.start(monotonic_ns(), by_backward=False)
        guard.safely(roots.discover)
    if not session.hello_sent:
        guard.safely(steps.say_hello)


def describe(traceback):
    """``{"module", "module_class", "memory"}`` for the event; what cannot be read is left out."""
    description = {}
    for part in (lambda: _module(traceback), lambda: {"memory": held()}):
        try:
            description.update(part())
        except Exception:  # the process ends anyway: the rest of the event is worth having
            interrupts.pass_on()
    return description


def held():
    """This process's bytes by purpose: parameters, gradients, states, the allocator's words."""
    roots = alive(session.roots)
    optimizers = alive(session.optimizers.values())
    sizes = {"weights_bytes": 0, "gradients_bytes": 0, "optimizer_bytes": 0, "buffers_bytes": 0}
    visited = set()
    for root in roots:
        for module in describe_model.modules_of(root):
            for tensor in list((module.__dict__.get("_buffers") or {}).values()):
                sizes["buffers_bytes"] += _size(tensor, visited)
            for tensor in list((module.__dict__.get("_parameters") or {}).values()):
                _add_parameter(sizes, tensor, visited)
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", ()):
            for tensor in group.get("params", ()):
                _add_parameter(sizes, tensor, visited)
        sizes["optimizer_bytes"] += _state_bytes(optimizer, visited)
    counters = memory.counters()
    if counters is not None:
        sizes.update(counters)
    return sizes


def _add_parameter(sizes, tensor, visited):
    sizes["weights_bytes"] += _size(tensor, visited)
    sizes["gradients_bytes"] += _size(getattr(tensor, "grad", None), visited)


def _state_bytes(optimizer, visited):
    total = count = 0
    state = getattr(optimizer, "state", None) or {}
    for entry in list(state.values()):
        for value in entry.values() if isinstance(entry, dict) else ():
            count += 1
            if count > MAX_STATES:
                return total
            total += _size(value, visited)
    return total


def _size(tensor, visited):
    """Bytes on the run's device; 0 for what was counted, is no tensor or lies elsewhere."""
    tensor = late.local_part(tensor)
    if (
        not hasattr(tensor, "element_size")
        or id(tensor) in visited
        or (session.cuda and not tensor.is_cuda)
    ):
        return 0
    visited.add(id(tensor))
    return tensor.numel() * tensor.element_size()


def _module(traceback):
    """The innermost module in its forward; nothing for an error of the autograd engine."""
    inner = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_name in _CALLS:
            inner = traceback.tb_frame.f_locals.get("self", inner)
        traceback = traceback.tb_next
    if inner is None:
        return {}
    roots = alive(session.roots)
    path = next((path for root in roots for path, module in _named(root) if module is inner), "")
    return {"module": path, "module_class": type(inner).__name__}


def _named(root):
    todo, visited = [("", root)], set()
    while todo:
        path, module = todo.pop()
        if module is None or id(module) in visited:
            continue
        visited.add(id(module))
        yield path, module
        children = module.__dict__.get("_modules") or {}
        prefix = path + "." if path else ""
        todo.extend((prefix + name, child) for name, child in children.items())
