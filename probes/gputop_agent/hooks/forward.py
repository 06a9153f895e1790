"""Times the forward of the outermost modules, through the call slot that ``nn.Module`` has in each instance.

``Module.__call__`` uses ``_compiled_call_impl`` of the instance where it is set; ``torch.compile`` looks past it when
it traces, and ``Module.__getstate__`` drops it. Neither hooks nor a patched class have both properties.
"""

import weakref
from _thread import get_ident
from time import monotonic_ns, thread_time_ns
from typing import Any

from gputop_agent import checkup, clock, device, events, guard, interrupts, lane, wire
from gputop_agent.clock import COMPUTE_CPU_NS, OPTIMIZER_STEPS, SAMPLES, TOKENS, stack, totals
from gputop_agent.cycle import C
from gputop_agent.lane import L, cpu_marks, marks
from gputop_agent.state import EVAL, FORWARD, H2D, OTHER, S
from gputop_agent.steps import F

from . import optimizer

AUTOCAST_LOOKS = 16
LOADER_STEPS = 2  # so long after a fetch, batches are counted there and not here

_SLOT = "_compiled_call_impl"
_hooked = []  # weakrefs to the modules whose slot is ours
_bypassed = []  # (weakref to the module, its ``CallSlot``)
_looks = 0
_compiling: Any = None
is_grad_enabled: Any = None


def install(torch):
    """Bind what every call asks."""
    global _compiling, is_grad_enabled
    _compiling, is_grad_enabled = guard.compiling_flags(), torch.is_grad_enabled
    _watch_pickling(torch)


class CallSlot:
    """What stands in a module's call slot. Holds the module weakly, or deleting a model would not free its memory."""

    __slots__ = ("inner", "module", "trained")

    def __init__(self, module, trained, inner):
        self.module = weakref.ref(module)
        self.trained = trained  # an optimizer has parameters of it
        self.inner = inner  # what ``module.compile()`` had put there, or None

    def __call__(self, *args, **kwargs):
        """``before`` and ``after`` around the call; a training forward with nothing around it is written out here."""
        try:
            module: Any = self.module()
            call = self.inner or module._call_impl
            token, booked, cpu_ns, noted, loss = None, -1, 0, False, False
            try:
                turn = len(L.marks) & 7
                if turn == 2 and module.training and self.trained and is_grad_enabled() and get_ident() == L.ident:
                    noted = True
                    L.note(L.now())
                    if L.probing:
                        cpu_marks.append(thread_time_ns())
                elif get_ident() != S.thread_ident:
                    pass
                elif not C.in_forward and not _compiling["_is_compiling_flag"]:
                    if turn == 3 or turn == 5:  # inside a forward, or run again inside a backward
                        pass
                    elif turn == 4 and not self.trained and is_grad_enabled():
                        loss = True
                    elif marks:
                        lane.leave()
                        token = before(self, module, args, kwargs)
                    elif (
                        stack
                        or _looks < AUTOCAST_LOOKS
                        or C.soft_eval_ns
                        or not (module.training and self.trained and is_grad_enabled())
                    ):
                        token = before(self, module, args, kwargs)
                    else:
                        if C.unsure:  # what ``belongs_to_training`` does
                            totals[SAMPLES] += C.samples
                            totals[TOKENS] += C.tokens
                            C.data_ns = C.samples = C.tokens = 0
                            C.evaluated = C.unsure = False
                        if C.pending or C.backwards or len(events.known_optimizers) > 1:
                            events.compute_begins()
                        if C.look == 1:
                            checkup.before_forward()
                        if S.step - C.last_fetch_step > LOADER_STEPS:
                            C.inputs = args, kwargs
                        if S.cuda:
                            device.mark("forward_begin")
                        if F.probing:
                            cpu_ns = thread_time_ns()
                        C.in_forward = True
                        stack.append(OTHER)
                        now = monotonic_ns()
                        totals[S.phase] += now - S.last_ns
                        S.last_ns = now
                        S.phase = FORWARD
                        booked = totals[FORWARD]
            except Exception:
                guard.failed("forward")
            try:
                return call(*args, **kwargs)
            finally:
                if noted:
                    try:
                        if len(L.marks) & 7 == 3:
                            if L.probing:
                                cpu_marks.append(thread_time_ns())
                            L.note(L.now())
                        else:
                            lane.leave()
                            after(self, (0, FORWARD, False, L.booked, L.cpu_ns))
                    except Exception:
                        guard.failed("forward")
                elif loss:  # it belongs to the forward, which has not ended before
                    try:
                        if len(L.marks) & 7 == 4:
                            L.marks[-1] = L.now()
                            if L.probing:
                                cpu_marks[-1] = thread_time_ns()
                    except Exception:
                        guard.failed("forward")
                elif booked >= 0:
                    try:
                        now = monotonic_ns()
                        totals[S.phase] += now - S.last_ns
                        S.last_ns = now
                        S.phase = OTHER
                        del stack[:]
                        C.in_forward = False
                        if cpu_ns:
                            totals[COMPUTE_CPU_NS] += thread_time_ns() - cpu_ns
                        if S.cuda:
                            device.mark("forward_end")
                        C.forwards += 1
                        C.forward_ns += totals[FORWARD] - booked
                        C.gap_phase, C.gap_began = OTHER, totals[OTHER]
                    except Exception:
                        guard.failed("forward")
                elif token is not None:
                    try:
                        after(self, token)
                    except Exception:
                        guard.failed("forward")
        except BaseException as error:
            guard.vanish(error, "forward")
            raise

    def __reduce__(self):
        """Copies and pickles of a module whose class keeps the slot (DDP) find None in it."""
        return type(None), ()


guard.hide(CallSlot.__call__)


def hook(module, trained=True):
    """Put a timer into the module's call slot. Returns whether there was none."""
    current = module.__dict__.get(_SLOT)
    if type(current) is CallSlot:
        if current.module() is module:
            current.trained = current.trained or trained
            return False
        current = None
    module.__dict__[_SLOT] = slot = CallSlot(module, trained, current)
    reference = slot.module
    _hooked.append(reference)

    def put_back():
        owner = reference()
        if owner is not None and owner.__dict__.get(_SLOT) is slot:
            owner.__dict__[_SLOT] = slot.inner

    S.undo.append(put_back)
    return True


def _watch_pickling(torch):
    """A class that pickles all of ``__dict__`` would pickle the slot's key: the slot leaves before it does.

    ``nn.Module.__getstate__`` leaves the key out by itself. The next backward without a forward puts the slot back.
    """
    kind: Any = torch.nn.Module
    plain = kind.__dict__.get("__getstate__")

    def __reduce_ex__(self, protocol):
        try:
            slot = self.__dict__.get(_SLOT)
            if type(slot) is CallSlot and type(self).__getstate__ is not plain:
                del self.__dict__[_SLOT]
                if slot.inner is not None:
                    self.__dict__[_SLOT] = slot.inner
        except Exception:
            guard.failed("__reduce_ex__")
        return super(kind, self).__reduce_ex__(protocol)

    if plain is not None and "__reduce_ex__" not in kind.__dict__:
        guard.hide(__reduce_ex__)
        kind.__reduce_ex__ = __reduce_ex__
        S.undo.append(lambda: delattr(kind, "__reduce_ex__"))


def bypass(on):
    """Take our slots out of all modules, or put them back, unless somebody has set others meanwhile."""
    if on:
        _hooked[:] = [reference for reference in _hooked if reference() is not None]
        for reference in _hooked:
            module: Any = reference()
            slot = module.__dict__.get(_SLOT)
            if type(slot) is CallSlot:
                _bypassed.append((reference, slot))
                module.__dict__[_SLOT] = slot.inner
        return
    while _bypassed:
        reference, slot = _bypassed.pop()
        module = reference()
        if module is not None and module.__dict__.get(_SLOT) is slot.inner:
            module.__dict__[_SLOT] = slot


def before(slot, module, args, kwargs):
    """Begin the phase. None for a forward inside another one or inside a backward (recomputation)."""
    if C.in_forward or C.in_backward:
        return None
    if C.in_optimizer:
        optimizer.heal()
    depth = len(clock.stack)
    graded = is_grad_enabled()
    training = module.training or not slot.trained
    if graded and training and C.unsure:  # before a boundary, or what is moved would cross it
        C.belongs_to_training()
    if not C.in_optimizer:
        if graded:
            events.compute_begins()
            if C.look == 1:
                checkup.before_forward()
            if training and slot.trained and S.step - C.last_fetch_step > LOADER_STEPS:
                C.inputs = args, kwargs
        if S.phase == H2D:
            clock.switch(OTHER)
    if S.cuda:
        device.mark("forward_begin")
    if _looks < AUTOCAST_LOOKS:
        _look_for_autocast()
    C.in_forward = True
    if graded and training:
        phase, soft = FORWARD, False
    else:  # only an eval-mode model without gradients certainly evaluates
        phase, soft = EVAL, (graded or training) and not S.torch.is_inference_mode_enabled()
        C.graphed += graded and soft and not training
    cpu_ns = thread_time_ns() if F.probing else 0
    within = S.phase
    clock.enter(phase)
    if phase == EVAL and not soft and within == OTHER:
        _book_evaluation()
    return depth, phase, soft, totals[phase], cpu_ns


def after(slot, token):
    """End the phase and say what the time was."""
    depth, phase, soft, booked, cpu_ns = token
    clock.unwind(depth)
    C.in_forward = False
    if cpu_ns:
        totals[COMPUTE_CPU_NS] += thread_time_ns() - cpu_ns
    if S.cuda:
        device.mark("forward_end")
    if phase == FORWARD:
        C.forwards += 1
        C.forward_ns += totals[FORWARD] - booked
        C.gap_phase, C.gap_began = S.phase, totals[S.phase]
    elif soft:
        C.soft_eval_ns += totals[EVAL] - booked
        C.unsure = True
    else:
        C.evaluated = C.unsure = True
        C.flags |= wire.F_EVAL
        C.eval_began, C.eval_forward_ns, C.eval_seen = totals[OTHER], totals[EVAL] - booked, _seen()


def _book_evaluation():
    """What ran between two forwards that evaluate is evaluation, if it took no longer than a metric would."""
    gap_ns = totals[OTHER] - C.eval_began
    if gap_ns <= C.eval_forward_ns and C.eval_seen == _seen():
        clock.move(gap_ns, OTHER, EVAL)


def _seen():
    """Differs where a step ended, or training went on, between two moments."""
    return S.step, id(C.cut), C.forwards, C.backwards, totals[OPTIMIZER_STEPS]


def _look_for_autocast():
    global _looks
    _looks += 1
    for device_type in ("cuda", "cpu"):
        if _autocast_is_on(device_type):
            S.autocast_seen = _autocast_dtype(device_type)
            return


def _autocast_is_on(device_type):
    try:
        return S.torch.is_autocast_enabled(device_type)
    except TypeError:  # torch before 2.4; later ones warn of what follows, and warnings may be errors
        interrupts.pass_on()
        return S.torch.is_autocast_enabled() if device_type == "cuda" else S.torch.is_autocast_cpu_enabled()


def _autocast_dtype(device_type):
    torch = S.torch
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device_type)
    return torch.get_autocast_gpu_dtype() if device_type == "cuda" else torch.get_autocast_cpu_dtype()
