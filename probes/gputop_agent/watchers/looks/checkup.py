"""A look at gradients and parameters in a few steps, for what no step record tells.

After step 20, 41, 61 and 100, and then every 503 steps but at most every 5 s, the next step is
looked at four times: before its forward (which gradients are still held), before its first backward
(are they zero?), before its update (which parameters have none) and after it (did the update change
anything?). So three looks in a row never fall on the same step of a short cycle. One ``checkup``
event says it all; later ones are sent only where something has changed, and once more where two
looks have agreed with that one. Nothing waits for a GPU: what lies there is read at the next look.
Where there are several optimizers, ``uncleared`` goes on until each of them has made two updates.
"""

import sys
from time import monotonic_ns
from typing import Any

from gputop_agent.runtime import frames, guard, interrupts, late, modes, source, transport
from gputop_agent.runtime.living import alive, outermost
from gputop_agent.runtime.session import session
from gputop_agent.timing import events, gradient_sums, replicas, steps
from gputop_agent.timing.step_state import (
    FIRST_BACKWARD,
    FIRST_FORWARD,
    NO_CHECK,
    OTHER_UPDATES,
    UPDATE,
    open_step,
)
from gputop_agent.watchers import tracers
from gputop_agent.watchers.looks import (
    by_hand,
    discarded,
    drawn_texts,
    frozen_groups,
    gradients,
    habits,
    misspelt,
    rate_steps,
    reseeding,
    single_rows,
    training_mode,
    uncleared,
    undetached,
    used_at,
    used_now_and_then,
)
from gputop_agent.watchers.memory import growth

FIRST_STEPS = (20, 41, 61, 100)
MAX_STAGES = 3
PERIOD_STEPS, PERIOD_NS = 503, 5_000_000_000
EVERY_STEPS = 10  # whether a look is due is asked
GIVE_UP_STEPS = 3  # a look that met no update for so long ends
SURE_LOOKS = 3  # looks in a row that found the same: worth an event of their own
SOON_AT_MOST = 6  # looks that come soon since parameters have lost their gradients
# of the largest learning rate: a million such steps are less than one of the largest
VANISHED = 2.0**-24
_SETS_RATE = r"""\[["']lr["']\] *[-+*/]?=[^=]"""
_REENTRANT_WARNING = "None of the inputs have requires_grad=True. Gradients will be None"
_DROPS = r"\.grad *= *None"
_GATHERS = r"\ball_gather(_into_tensor)?\("
_CLEARS = r"\.zero_grad\("
_HOLDS_BACK = r"\.set_requires_gradient_sync\(|\.no_sync\("
_SCHEDULER_WARNING = "Detected call of `lr_scheduler.step()` before `optimizer.step()`"


class Checkup:
    """The look that is going on, and when the next one is due."""

    def __init__(self):
        self.stages = 0  # that an optimizer has begun after the first steps
        self.stage_step = 0
        self.next_step = FIRST_STEPS[0]
        self.not_before_ns = 0
        self.began_step = 0
        self.count = False  # memory has grown: count the tensors
        self.optimizer: Any = None  # the one whose parameters are looked at
        self.findings: "dict[str, Any]" = {}
        self.values = late.Late()
        self.weights: Any = None  # a parameter and a copy of its values before the update
        self.unsent: Any = None  # (findings, values) that wait for a device
        self.warned_looked = False
        self.gist: Any = None  # what was found last, in short
        self.alike = 0  # looks in a row that found the same
        self.looks_soon = 0  # see SOON_AT_MOST
        self.lr_peak = 0.0  # the largest learning rate that a look has seen
        self.zeros = gradients.Zeros()
        self.had_gradient: "set[int]" = set()  # ids of parameters after the last backward
        self.strays = gradients.Strays()
        self.used_now_and_then = used_now_and_then.UsedNowAndThen()
        self.mode = training_mode.TrainingMode()
        self.habits = habits.SeenHabits()
        self.discarded = discarded.Discarded()
        self.by_hand = by_hand.ByHand()
        self.rows = single_rows.SingleRows()
        self.drawn = drawn_texts.DrawnTexts()
        self.drawn.begin(0)
        self.undetached = undetached.Undetached()


current = Checkup()


@session.after_fork
def reset():
    """In a forked child."""
    current.__init__()
    growth.reset()
    replicas.reset()
    uncleared.reset()


def _note_stage(step):
    """Look as often as at first where an optimizer was found later, as after a stage with another;
    a few times only, as some scripts make one for each update.
    """
    newest = max(events.found_optimizers.values(), default=0)
    if newest > _last_of_first() - FIRST_STEPS[0] and current.stages < MAX_STAGES:
        current.stages += 1
        current.stage_step = newest
        current.next_step, current.not_before_ns = newest + FIRST_STEPS[0], 0


def _last_of_first():
    return current.stage_step + FIRST_STEPS[-1]


def on_step_closed(step):
    """A step at or after ``open_step.check_due`` has ended: begin a look, or give one up that met
    no update.
    """
    open_step.check_due = step + EVERY_STEPS
    if session.ddp or gradient_sums.sums.are_made:
        replicas.begin()
    _note_stage(step)
    if open_step.check_stage:
        if step >= current.began_step + GIVE_UP_STEPS:
            uncleared.end()
            current.undetached.end()
            if open_step.check_stage < OTHER_UPDATES:
                _finish()
            open_step.check_stage = NO_CHECK
        return
    current.count = growth.due(step)
    if current.count or (step >= current.next_step and monotonic_ns() >= current.not_before_ns):
        _begin(step)
    elif current.next_step > step:
        open_step.check_due = min(open_step.check_due, current.next_step)


def _begin(step):
    firsts = (current.stage_step + first for first in FIRST_STEPS)
    current.next_step = next((first for first in firsts if first > step), step + PERIOD_STEPS)
    if step >= _last_of_first():
        current.not_before_ns = monotonic_ns() + PERIOD_NS
    else:
        current.not_before_ns = 0
    guard.safely(tracers.look_again)
    optimizers = outermost(alive(session.optimizers.values()))
    if late.may_look():
        _send_unsent()
        optimizers.sort(key=_stepped_and_size, reverse=True)
        # the last one may be gone, and the next one not have stepped yet
        current.optimizer = optimizers[0] if optimizers else None
        current.findings, current.values, current.weights = {"step": step}, late.Late(), None
        current.discarded.begin(current.optimizer)
        current.by_hand.begin()
        current.findings.update(current.rows.fields())
        current.rows.begin(step)
        current.findings.update(current.drawn.fields())
        current.drawn.begin(step)
        current.began_step, open_step.check_stage = step, FIRST_FORWARD
        uncleared.begin(optimizers)
        current.undetached.begin(optimizers)


def before_forward():
    """The first forward after an update."""
    steps.book_agent_time(_look_at_held)
    current.habits.before_forward()


def _others_that_step(optimizer):
    """Optimizers beside this one that the steps of late have had."""
    return [
        other
        for other in outermost(alive(session.optimizers.values()))
        if other is not optimizer and events.has_stepped(other) and events.steps_lately(id(other))
    ]


@modes.unseen
def _stepped_and_size(optimizer):
    """To look at one that steps, and now: of two of a size the other may be forgotten. In values:
    of as many tensors, the collector's order would choose.
    """
    size = sum(part.numel() for group in optimizer.param_groups for part in group["params"])
    return events.has_stepped(optimizer), events.steps_lately(id(optimizer)), size


def before_backward(args, kwargs):
    """An outermost backward begins."""
    if open_step.check_stage < OTHER_UPDATES:
        habits_ = current.habits
        steps.book_agent_time(habits_.before_backward, args, kwargs, current.optimizer)
        if late.may_look():
            steps.book_agent_time(current.discarded.before_backward, args)
            steps.book_agent_time(current.zeros.before_backward, args)
            if current.optimizer is not None:
                steps.book_agent_time(current.strays.before_backward, args)
            else:
                steps.book_agent_time(_look_by_hand_before, args)
    if uncleared.is_open():
        steps.book_agent_time(uncleared.before_backward)
        steps.book_agent_time(current.undetached.before_backward, args)
    elif open_step.check_stage < UPDATE and not open_step.backwards:
        steps.book_agent_time(_look_at_stale)


def after_backward():
    """An outermost backward has ended."""
    current.undetached.after_backward()
    if open_step.check_stage < OTHER_UPDATES and late.may_look():
        steps.book_agent_time(current.discarded.after_backward)
        steps.book_agent_time(_note_gradients)
        if current.optimizer is None:
            steps.book_agent_time(_look_by_hand_after)


def _note_gradients():
    current.had_gradient = {id(part) for part in _trainable() if part.grad is not None}


def _look_by_hand_before(args):
    """Weights of a loop without an optimizer."""
    current.findings.setdefault("backward_at", frames.caller_site())
    current.findings.update(current.by_hand.before_backward(args))


def _look_by_hand_after():
    current.findings.update(current.by_hand.after_backward())


def before_update(optimizer):
    """The update begins."""
    if uncleared.is_open():
        steps.book_agent_time(uncleared.before_update, optimizer)
        current.undetached.before_update(optimizer)
        if not uncleared.is_open():
            current.undetached.end()
    if open_step.check_stage < OTHER_UPDATES:
        if current.habits.replaces(optimizer, current.optimizer):
            current.optimizer = optimizer
    if optimizer is current.optimizer:
        steps.book_agent_time(_look_at_missing, optimizer)
    elif open_step.check_stage == OTHER_UPDATES and not uncleared.is_open():
        open_step.check_stage = NO_CHECK


def after_update(optimizer):
    """The update is done."""
    if optimizer is current.optimizer:
        steps.book_agent_time(_look_at_change)
        current.findings.update(current.habits.after_update(optimizer, current.values))
        _finish()


def _count():
    """Count the tensors if that is due; where the forward runs inside the update, at the update."""
    if current.count:
        current.count = False
        growth.count()


def _look_at_held():
    """Gradients held at a forward were not freed; zeroed ones take as much memory as others."""
    _count()
    if open_step.check_stage == FIRST_FORWARD:
        open_step.check_stage = FIRST_BACKWARD
        parameters = _trainable()
        current.findings["parameter_bytes"] = sum(map(_bytes, parameters))
        current.findings["held_bytes"] = sum(
            _bytes(parameter.grad) for parameter in parameters if parameter.grad is not None
        )


def _look_at_stale():
    """Gradients of the only optimizer that are not zero before the first backward after an update
    are added up over steps.
    """
    open_step.check_stage = UPDATE
    gradients_left = [
        late.local_part(parameter.grad)
        for parameter in _trainable()
        if parameter.grad is not None and late.is_plain(late.local_part(parameter.grad))
    ]
    gradients_left = late.spread(gradients_left)
    if not gradients_left:
        current.findings["stale"] = False
    elif late.may_look():
        current.values.put(
            "stale", late.count_nonzero, late.some_values(gradients_left, late.MAX_VALUES)
        )


def _look_at_missing(optimizer):
    """Parameters without gradient take no part in the update. Keep some values to compare with."""
    _count()
    parameters = _trainable()
    without = [parameter for parameter in parameters if parameter.grad is None]
    without = current.used_now_and_then.never(optimizer, without)
    if without:
        without = used_now_and_then.not_updated_by(_others_that_step(optimizer), without)
    if len(without) < len(parameters):  # else the gradients may come later, as in LBFGS
        _note_missing(parameters, without)
        _look_at_gradients(parameters)
        if late.may_look():
            current.findings.update(current.strays.look())
            current.findings.update(current.discarded.before_update())
        _look_at_mode(parameters)
        current.findings.update(reseeding.seeds.before_update())
        current.findings.update(current.habits.before_update(parameters, current.values))
    current.findings["lr_max"] = max(
        (_number(group.get("lr")) for group in optimizer.param_groups), default=None
    )
    current.findings.update(rate_steps.of(optimizer))
    _note_resting(optimizer)
    current.findings.update(frozen_groups.fields(optimizer))
    current.findings.update(misspelt.fields())
    low = [
        parameter
        for parameter in parameters
        if parameter.dtype is session.torch.bfloat16
        and parameter.grad is not None
        and late.is_plain(parameter)
    ]
    if low and late.may_look():
        largest = max(low, key=lambda parameter: parameter.numel())
        current.weights = largest, largest.detach().reshape(-1)[: late.MAX_VALUES].clone()


def _look_at_mode(parameters):
    """Whether the model is in training mode; a first suspicion is soon looked at again."""
    fields = current.mode.look(current.findings["step"], parameters)
    current.findings.update(fields)
    if 0 < fields.get("eval_mode_looks", 0) < training_mode.SURE_LOOKS:
        current.next_step = min(current.next_step, current.findings["step"] + habits.SOON_STEPS)
        current.not_before_ns = 0


def _note_missing(parameters, without):
    current.findings["trainable"] = sum(parameter.numel() for parameter in parameters)
    current.findings["without_gradient"] = sum(parameter.numel() for parameter in without)
    if without:
        current.findings["without_gradient_names"] = gradients.names(without[: gradients.MAX_NAMES])
        current.findings["without_gradient_at"] = used_at.line_of_use(without)
        if all(id(parameter) in current.had_gradient for parameter in without):
            current.findings["dropped_at"] = source.place_matching(_DROPS)
        current.findings["cut_at"] = used_at.line_that_cuts(without)
        if session.world_size > 1:
            current.findings["gathered_at"] = source.place_matching(_GATHERS)
            current.findings["held_back_at"] = source.place_matching(_HOLDS_BACK)
        current.findings["new_leaf_at"] = source.place_with("tensor(", "requires_grad=True")
        if _has_warned(_REENTRANT_WARNING):
            current.findings["reentrant_at"] = source.place_with("use_reentrant=True")
    else:
        current.findings["without_gradient_names"] = []


def _note_resting(optimizer):
    """Parameters with gradients in groups whose learning rate is 0, where others have one."""
    resting = [
        parameter
        for group in optimizer.param_groups
        if _number(group.get("lr")) == 0
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    if resting and (current.findings["lr_max"] or 0) > 0:
        current.findings["resting"] = sum(parameter.numel() for parameter in resting)
        current.findings["resting_names"] = gradients.names(resting[: gradients.MAX_NAMES])


def _look_at_gradients(parameters):
    """How many of the values looked at are not zero: of tensors from first to last."""
    with_plain = [
        parameter
        for parameter in parameters
        if parameter.grad is not None and late.is_plain(parameter.grad)
    ]
    if with_plain and late.may_look():
        chosen = sorted(
            {
                round(i * (len(with_plain) - 1) / (late.MAX_TENSORS - 1))
                for i in range(late.MAX_TENSORS)
            }
        )
        parts = late.some_values([with_plain[i].grad for i in chosen], late.MAX_VALUES)
        current.findings["gradients_looked_at"] = sum(part.numel() for part in parts)
        current.values.put("gradients_not_zero", late.count_nonzero, parts)
        current.findings.update(current.zeros.look(with_plain))


def _look_at_change():
    """How many of the values that have a gradient did the update change?"""
    parameters = _trainable()
    if (
        "trainable" not in current.findings
        and parameters
        and all(parameter_.grad is None for parameter_ in parameters)
    ):
        _note_missing(parameters, parameters)
    if current.weights is not None and late.may_look():
        parameter, before = current.weights
        gradient = parameter.grad
        if gradient is not None and late.is_plain(gradient):
            after, gradient = late.some_values([parameter, gradient], late.MAX_VALUES)
            current.values.put("bf16", _bf16_change, [before, after, gradient])


def _bf16_change(parts):
    """How many of the values have a gradient, and how many of these the update did not change."""
    before, after, gradient = parts
    pushed = gradient != 0
    stuck = (after == before) & pushed
    return {"bf16_pushed": int(pushed.sum()), "bf16_stuck": int(stuck.sum())}


def _finish():
    """End the look, whatever it has seen."""
    current.habits.end()
    current.discarded.begin(None)
    if not current.warned_looked:
        current.warned_looked = True
        current.findings["scheduler_first"] = _has_warned(_SCHEDULER_WARNING)
    current.unsent = current.findings, current.values
    current.optimizer = current.weights = None
    if uncleared.is_open():
        open_step.check_stage = OTHER_UPDATES
    else:
        open_step.check_stage = NO_CHECK
    if not session.cuda:
        _send_unsent()


def _send_unsent():
    if current.unsent is not None:
        findings, values = current.unsent
        numbers = values.read()
        current.unsent = None
        if numbers is not None:
            for together in ("bf16", "target_classes"):
                numbers.update(numbers.pop(together, {}))
            if "stale" in numbers:
                numbers["stale"] = numbers["stale"] > 0
                if numbers["stale"]:
                    findings["cleared_at"] = source.place_matching(_CLEARS)
            _send(dict(findings, **numbers))


def _send(findings):
    pushed, lr = findings.get("bf16_pushed"), findings.get("lr_max")
    stuck = round(findings["bf16_stuck"] / pushed, 1) if pushed else None
    holds_gradients = findings.get("held_bytes", 0) > 0
    dead = findings.get("gradients_not_zero") == 0
    current.lr_peak = max(current.lr_peak, lr or 0.0)
    learns = lr is not None and lr > VANISHED * current.lr_peak
    if session.world_size > 1 or (not learns and current.lr_peak):
        findings["rate_set_at"] = source.place_matching(_SETS_RATE)
    partly = "zero_gradient" in findings, findings.get("stray_looks", 0) >= SURE_LOOKS
    gist = (
        holds_gradients,
        findings.get("stale"),
        findings.get("without_gradient"),
        stuck,
        learns,
        dead,
        partly,
        findings.get("resting"),
        findings.get("frozen_group"),
        findings.get("cleared_looks", 0) >= SURE_LOOKS,
        findings.get("eval_mode_looks", 0) >= training_mode.SURE_LOOKS,
        findings.get("evaluated_in_training_steps", 0) >= training_mode.SURE_STEPS,
        "seed_calls" in findings,
        "row_calls" in findings,
        "drawn_at" in findings,
        *habits.gist(findings),
    )
    current.alike = current.alike + 1 if gist == current.gist else 1
    if current.alike < SURE_LOOKS and (habits.is_suspected(findings) or _may_look_soon(findings)):
        current.next_step = min(current.next_step, findings["step"] + habits.SOON_STEPS)
        current.not_before_ns = 0
    if gist != current.gist or findings["step"] <= _last_of_first() or current.alike == SURE_LOOKS:
        current.gist = gist
        transport.send_event("checkup", alike=current.alike, **findings)


def _may_look_soon(findings):
    """Whether part of the model does not learn any more, as where its optimizer has kept another
    that was replaced; a few times only, as of experts now one and now another has no gradient.
    """
    trains_less = findings.get("without_gradient") or findings.get("frozen_whole")
    if findings["step"] <= _last_of_first() or not trains_less:
        return False
    current.looks_soon += 1
    return current.looks_soon <= SOON_AT_MOST


def _trainable():
    """Parameters of the optimizer that want gradients."""
    return [
        parameter
        for group in getattr(current.optimizer, "param_groups", ())
        for parameter in group["params"]
        if parameter.requires_grad
    ]


def _bytes(tensor):
    return tensor.numel() * tensor.element_size()


def _number(lr):
    if getattr(lr, "is_cuda", False):
        return -1.0
    try:
        return float(lr)
    except (TypeError, ValueError):
        interrupts.pass_on()
        return -1.0


def _has_warned(begin):
    """Whether torch has warned so; Python keeps warnings in the module that caused them."""
    for module in list(sys.modules.values()):
        registry = getattr(module, "__dict__", {}).get("__warningregistry__")
        if registry and any(
            type(key) is tuple and str(key[0]).startswith(begin) for key in list(registry)
        ):
            return True
    return False


steps.on_check_due = on_step_closed
