"""Times the forward of the outermost modules, through the call slot that ``nn.Module`` has in each
instance.

``Module.__call__`` uses ``_compiled_call_impl`` of the instance where it is set; ``torch.compile``
looks past it when it traces, and ``Module.__getstate__`` drops it. Neither hooks nor a patched
class have both properties.
"""

import weakref
from _thread import get_ident
from time import monotonic_ns, thread_time_ns
from typing import Any

from gputop_agent import wire
from gputop_agent.runtime import guard, interrupts
from gputop_agent.runtime.bound import CALL_SLOT, bound
from gputop_agent.runtime.session import EVAL, FORWARD, H2D, OTHER, session
from gputop_agent.timing import clock, device, events, roots
from gputop_agent.timing.clock import COMPUTE_CPU_NS, OPTIMIZER_STEPS, totals
from gputop_agent.timing.evaluations import modes
from gputop_agent.timing.step_state import FIRST_FORWARD, open_step
from gputop_agent.timing.steps import fold
from gputop_agent.watchers.layers import layer_slots, layers
from gputop_agent.watchers.looks import checkup

from . import optimizer

AUTOCAST_LOOKS = 16
LOADER_STEPS = 2  # so long after a fetch, batches are counted there and not here


def install(torch):
    """Remember the slots, so that they can be taken out."""
    session.removable.append(slots)
    roots.hook_module = hook
    _watch_pickling(torch)


class CallSlot:
    """What is in a module's call slot. Holds the module weakly: a deleted model is freed."""

    __slots__ = ("inner", "judged_step", "look_due", "module", "still_trained", "trained")

    def __init__(self, module, trained, inner):
        self.module = weakref.ref(module)
        self.trained = self.still_trained = trained  # an optimizer has parameters of it
        self.look_due = 0  # the step from which on it is asked again whether it still has
        self.judged_step = -1  # the last one in which it was evaluated in eval mode
        self.inner = inner  # what ``module.compile()`` had put there, or None

    def __call__(self, *args, **kwargs):
        """``before`` and ``after`` around the call."""
        try:
            module: Any = self.module()
            call = self.inner or module._call_impl
            token = None
            try:
                if (
                    get_ident() == session.thread_ident
                    and not session.hooks_out
                    and not bound.compiling_flags["_is_compiling_flag"]
                ):
                    began = monotonic_ns()
                    token = before(self, module, args, kwargs)
                    session.hook_ns += monotonic_ns() - began
            except Exception:
                guard.failed("forward")
            try:
                return call(*args, **kwargs)
            finally:
                if token is not None:
                    try:
                        began = monotonic_ns()
                        after(self, token)
                        session.hook_ns += monotonic_ns() - began
                    except Exception:
                        guard.failed("forward")
        except BaseException as error:
            guard.vanish(error, "forward")
            raise

    def __reduce__(self):
        """Copies and pickles of a module whose class keeps the slot (DDP) find None in it."""
        return type(None), ()


guard.hide(CallSlot.__call__)
_OURS = (CallSlot, layer_slots.LayerSlot)


class Slots:
    """All call slots that were set: they are taken out between two windows."""

    def __init__(self):
        self.set = []  # (weak reference to the module, its ``CallSlot``)

    def put_in(self):
        """Set them again, unless somebody has set others meanwhile."""
        self.set = [(reference, slot) for reference, slot in self.set if reference() is not None]
        for reference, slot in self.set:
            module: Any = reference()
            if module is not None and module.__dict__.get(CALL_SLOT) is slot.inner:
                module.__dict__[CALL_SLOT] = slot

    def take_out(self):
        """Leave the instances as they were."""
        for reference, slot in self.set:
            module: Any = reference()
            if module is not None and module.__dict__.get(CALL_SLOT) is slot:
                layer_slots.restore(module, slot)


slots = Slots()


def hook(module, trained=True):
    """Put a timer into the module's call slot. Returns whether there was none."""
    inner = module.__dict__.get(CALL_SLOT)
    innermost = inner
    while type(innermost) is layer_slots.LayerSlot:
        innermost = innermost.inner
    if type(innermost) is CallSlot and innermost.module() is module:
        innermost.trained = innermost.trained or trained
        return False
    if type(inner) is CallSlot:
        inner = None  # a copied module has the slot of another
    module.__dict__[CALL_SLOT] = slot = CallSlot(module, trained, inner)
    reference = slot.module

    def put_back():
        owner = reference()
        if owner is not None and owner.__dict__.get(CALL_SLOT) is slot:
            layer_slots.restore(owner, slot)

    session.undo.append(put_back)
    slots.set.append((reference, slot))
    return True


def _watch_pickling(torch):
    """A class that pickles all of ``__dict__`` would pickle the slot's key: the slot leaves before
    it does.

    ``nn.Module.__getstate__`` leaves the key out by itself. The next backward without a forward
    puts the slot back.
    """
    module_class: Any = torch.nn.Module
    plain = module_class.__dict__.get("__getstate__")

    def __reduce_ex__(self, protocol):
        try:
            slot = self.__dict__.get(CALL_SLOT)
            if type(slot) in _OURS and type(self).__getstate__ is not plain:
                if type(slot) is layer_slots.LayerSlot:
                    layer_slots.restore(self, slot)
                    slot = self.__dict__.get(CALL_SLOT)
                if type(slot) is CallSlot:
                    layer_slots.restore(self, slot)
        except Exception:
            guard.failed("__reduce_ex__")
        return super(module_class, self).__reduce_ex__(protocol)

    if plain is not None and "__reduce_ex__" not in module_class.__dict__:
        guard.hide(__reduce_ex__)
        module_class.__reduce_ex__ = __reduce_ex__
        session.undo.append(lambda: delattr(module_class, "__reduce_ex__"))


def before(slot, module, args, kwargs):
    """Begin the phase. Returns what ``after`` needs; None inside a forward or a backward.

    That is the depth of the clock's stack, the phase, whether an evaluation may turn out to be
    training, the phase's total (ns) and the thread's CPU time (ns; 0: not probed).
    """
    if open_step.in_forward or open_step.in_backward:
        return None
    if open_step.in_optimizer:
        optimizer.heal()
    depth = len(clock.stack)
    graded = bound.is_grad_enabled()
    trained, training = _training_of(slot, module, graded)
    if not open_step.in_optimizer:
        _before_outermost(graded, training and trained, args, kwargs)
    if session.cuda:
        device.timer.mark("forward_begin")
    if session.autocast_looks < AUTOCAST_LOOKS:
        _look_for_autocast()
    open_step.in_forward = True
    phase, is_undecided = FORWARD, False
    if not (graded and training):
        phase, is_undecided = EVAL, _may_turn_out_to_train(graded, training)
        _note_mode(slot, module, is_undecided, graded=graded, trained=trained)
    may_train = phase == FORWARD or is_undecided
    _show_to_looks(module, args, kwargs, graded=graded, may_train=may_train)
    cpu_ns = fold.probe()
    _enter(phase, is_undecided)
    if layers.watch.look is not None:
        layers.root_called(module)
    return depth, phase, is_undecided, totals[phase], cpu_ns


def _training_of(slot, module, graded):
    """Whether the network is one that is trained, and whether this forward is taken as training;
    what was judged before is mended where this forward shows it.
    """
    trained = slot.trained and (module.training or _still_trained(slot, module))
    # a loss without parameters is of what went before it; a teacher may be asked twice
    training = module.training if trained else not open_step.may_evaluate(graded)
    if graded and training and open_step.unsure:
        # before a boundary, or what is moved would cross it
        open_step.train(module)
    elif module.training and slot.judged_step == session.step:
        _trains_again(slot)
    return trained, training


def _show_to_looks(module, args, kwargs, *, graded, may_train):
    """Show the forward to those looks at the training that are on."""
    if checkup.current.rows.is_on and may_train:
        guard.safely(checkup.current.rows.before, module, args, kwargs)
    if checkup.current.drawn.is_on:
        guard.safely(checkup.current.drawn.before, module, args, kwargs, graded)


def _before_outermost(graded, is_training, args, kwargs):
    """Note what a forward that no optimizer calls begins."""
    if graded:
        _graph_begins()
        if is_training:
            _note_inputs(args, kwargs)
    if session.phase == H2D:
        clock.switch(OTHER)


def _enter(phase, is_undecided):
    outer_phase = session.phase
    clock.enter(phase)
    if phase == EVAL and not is_undecided and outer_phase == OTHER:
        _book_evaluation()


def _trains_again(slot):
    """Evaluated in eval mode before, and in training mode now: that evaluation is over, and what
    comes, as samples that a policy draws, may be a part of the step.
    """
    slot.judged_step = -1
    if open_step.evaluated:
        open_step.belongs_to_evaluation()


def _note_mode(slot, module, is_undecided, *, graded, trained):
    """Note in which mode a network is called that may be evaluated."""
    if trained:
        _note_evaluation(module, is_undecided, with_graph=graded)
    elif module.training and not graded:
        modes.other_begins(module)
    if not (is_undecided or module.training):
        slot.judged_step = session.step


def _note_evaluation(module, is_undecided, with_graph):
    """Note what a trained network may be evaluated like: with graphs, or in training mode."""
    if with_graph:
        open_step.note_graph(module, is_undecided and not module.training)
        return
    modes.forward_begins(module)
    if not is_undecided:
        modes.was_evaluation()


def _still_trained(slot, module):
    """Whether a network in eval mode is the one that is trained, and no teacher."""
    if session.step >= slot.look_due:
        slot.look_due = session.step + events.WAIT_STEPS
        slot.still_trained = roots.still_trains(module)
    return slot.still_trained


def _graph_begins():
    events.compute_begins()
    if open_step.check_stage == FIRST_FORWARD:
        checkup.before_forward()


def _note_inputs(args, kwargs):
    """Keep what the samples are counted from, where no DataLoader counts them."""
    if session.step - open_step.last_fetch_step > LOADER_STEPS:
        open_step.inputs = args, kwargs


def _may_turn_out_to_train(graded, training):
    """Whether a backward may follow: without gradients, eval mode surely is evaluation, and so is
    training mode where the batch was fetched without gradients, too; not where a network is
    trained on what it draws.
    """
    if session.torch.is_inference_mode_enabled():
        return False
    return graded or session.trains_on_drawn or (training and not open_step.evaluated)


def after(slot, token):
    """End the phase and say what the time was."""
    depth, phase, is_undecided, total_before_ns, cpu_ns = token
    if layers.watch.look is not None:
        guard.safely(layers.watch.look.root_left)
    if checkup.current.rows.is_on:
        checkup.current.rows.after()
    clock.unwind(depth)
    open_step.in_forward = False
    if cpu_ns:
        totals[COMPUTE_CPU_NS] += thread_time_ns() - cpu_ns
    if session.cuda:
        device.timer.mark("forward_end")
    if phase == FORWARD:
        open_step.forwards += 1
        open_step.model_forwards += slot.trained
        session.forwards_for_gradients += 1
        open_step.forward_ns += totals[FORWARD] - total_before_ns
        open_step.gap_phase, open_step.gap_began = session.phase, totals[session.phase]
    elif is_undecided:
        open_step.soft_eval_ns += totals[EVAL] - total_before_ns
        session.soft_forwards += 1
        open_step.soft_forwards += 1
        open_step.unsure = True
    else:
        open_step.evaluated = open_step.unsure = True
        open_step.flags |= wire.F_EVAL
        open_step.eval_began = totals[OTHER]
        open_step.eval_forward_ns = totals[EVAL] - total_before_ns
        open_step.eval_progress = _progress()


def _book_evaluation():
    """Book what ran between two evaluating forwards as evaluation, if short as a metric."""
    gap_ns = totals[OTHER] - open_step.eval_began
    if gap_ns <= open_step.eval_forward_ns and open_step.eval_progress == _progress():
        clock.move(gap_ns, OTHER, EVAL)


def _progress():
    """Differs where a step ended, or training went on, between two moments."""
    return (
        session.step,
        id(open_step.cut),
        open_step.forwards,
        open_step.backwards,
        totals[OPTIMIZER_STEPS],
    )


def _look_for_autocast():
    session.autocast_looks += 1
    for device_type in ("cuda", "cpu"):
        if _autocast_is_on(device_type):
            session.autocast_seen = _autocast_dtype(device_type)
            return


def _autocast_is_on(device_type):
    try:
        return session.torch.is_autocast_enabled(device_type)
    except TypeError:
        # torch before 2.4; later ones warn of what follows, and warnings may be errors
        interrupts.pass_on()
        if device_type == "cuda":
            return session.torch.is_autocast_enabled()
        return session.torch.is_autocast_cpu_enabled()


def _autocast_dtype(device_type):
    torch = session.torch
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device_type)
    if device_type == "cuda":
        return torch.get_autocast_gpu_dtype()
    return torch.get_autocast_cpu_dtype()
