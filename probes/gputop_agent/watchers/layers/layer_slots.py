"""An observer around the call of every module of the model, for the one step that is looked at
closely.

The call slot of an instance is used (``hooks.forward`` says why): dynamo traces past it, and no
pickle holds it. It lies on top of whatever the slot held, and is taken away at the step's end.
"""

import weakref
from _thread import get_ident
from typing import Any

from gputop_agent.description import describe_model
from gputop_agent.runtime import guard, interrupts
from gputop_agent.runtime.bound import CALL_SLOT, bound
from gputop_agent.runtime.session import session
from gputop_agent.timing.step_state import open_step

MAX_MODULES = 5000
_WRAPPED_AS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


class LayerSlot:
    """What stands in a module's call slot during the step."""

    __slots__ = ("index", "inner", "module", "observer")

    def __init__(self, module, index, observer):
        self.module = weakref.ref(module)
        self.index = index
        self.observer = observer
        self.inner = module.__dict__.get(CALL_SLOT)

    def __call__(self, *args, **kwargs):
        """The module's call between the observer's ``enter`` and ``leave``."""
        try:
            module: Any = self.module()
            call = self.inner or module._call_impl
            entered = False
            try:
                if may_observe():
                    self.observer.enter(self.index, args, kwargs)
                    entered = True
            except Exception:
                guard.failed("layer")
            result = None
            try:
                result = call(*args, **kwargs)
                return result
            finally:
                if entered:
                    try:
                        self.observer.leave(self.index, result)
                    except Exception:
                        guard.failed("layer")
        except BaseException as error:
            guard.vanish(error, "layer")
            raise

    def __reduce__(self):
        """Copies and pickles of a module whose class keeps the slot find None in it."""
        return type(None), ()


guard.hide(LayerSlot.__call__)


def may_observe():
    """Whether a call is the training's: own thread, or the engine's recomputing; no trace."""
    if bound.compiling_flags["_is_compiling_flag"]:
        return False
    return get_ident() == session.thread_ident or open_step.in_backward


class SlottedModules:
    """The modules of the trained roots, outermost first, each once."""

    def __init__(self, roots):
        self.modules = []  # weak references
        self.names = []
        self.by_id = {}
        self.owners = {}  # id of a parameter -> index of the module that holds it
        todo = list(zip(_root_names(roots), roots))
        for name, module in todo:
            if id(module) in self.by_id or len(self.modules) >= MAX_MODULES:
                continue
            self.by_id[id(module)] = index = len(self.modules)
            self.modules.append(weakref.ref(module))
            self.names.append(name)
            for parameter in _entries(module, "_parameters"):
                self.owners.setdefault(id(parameter[1]), index)
            for key, child in _entries(module, "_modules"):
                todo.append((_joined(name, key, module), child))

    def living(self):
        """``(index, module)`` of those that still live."""
        for index, reference in enumerate(self.modules):
            module = reference()
            if module is not None:
                yield index, module


def _root_names(roots):
    """Their classes, ``Critic#2`` for the second of one class; nothing for a root alone."""
    if len(roots) == 1:
        return [""]
    names = []
    for root in roots:
        name = type(root).__name__
        count = 1 + sum(other.partition("#")[0] == name for other in names)
        names.append(name if count == 1 else "%s#%d" % (name, count))
    return names


def _entries(module, name):
    entries = module.__dict__.get(name) or {}
    return [(key, value) for key, value in entries.items() if value is not None]


def _joined(name, key, module):
    """A wrapper's own name for what it wraps is left out of the path."""
    if key in _WRAPPED_AS and describe_model.unwrap(module) is not module:
        return name
    return name + "." + key if name else key


class Observed:
    """Slots of all layers while an observer is in."""

    def __init__(self, layers, observer):
        self._set = []
        traced = _scripted()
        for index, module in layers.living():
            if not isinstance(module, traced):
                slot = LayerSlot(module, index, observer)
                module.__dict__[CALL_SLOT] = slot
                self._set.append((slot.module, slot))
        session.undo.append(self.take_out)

    def take_out(self):
        """Leave every instance as it was."""
        for reference, slot in self._set:
            module = reference()
            if module is not None and module.__dict__.get(CALL_SLOT) is slot:
                restore(module, slot)
        del self._set[:]
        if self.take_out in session.undo:
            session.undo.remove(self.take_out)


def restore(module, slot):
    """Put back what the slot had held."""
    if slot.inner is None:
        del module.__dict__[CALL_SLOT]
    else:
        module.__dict__[CALL_SLOT] = slot.inner


def _scripted():
    try:
        return (session.torch.jit.ScriptModule,)
    except AttributeError:
        interrupts.pass_on()
        return ()
