"""Fingerprints of a replica's parameters, of those that its optimizers have beside DDP, and of its
random numbers, for comparison with the other ranks'. Replicas are DDP's, or those of ranks that sum
the gradients of all parameters themselves.

Taken after two updates in a row, so that ranks which count their updates differently are not taken
for different ones. At a few updates first and then every 5000: 60-130 us each time on a CPU, and no
waiting for a GPU.
"""

import ctypes
import itertools
import re
import zlib
from functools import lru_cache

from gputop_agent.runtime import guard, late, source, transport
from gputop_agent.runtime.living import alive, outermost
from gputop_agent.runtime.session import session
from gputop_agent.timing import gradient_sums, steps
from gputop_agent.timing.clock import OPTIMIZER_STEPS, totals

FIRST = (10, 50, 100, 200, 300, 400, 500, 700, 1000, 1500, 2000, 3000, 4000)
PERIOD = 5000
LEAST_SUMMED, SUMMED_PART = 1000, 0.1  # values a step, and of all that have gradients
MAX_TENSORS, MAX_VALUES, MAX_NAMES, MAX_MODULES = 32, 256, 3, 5000
_SEEDS = r"(?<![\w.])(manual_seed|set_seed|seed_everything|fix_seed\w*)\(|accelerator\.set_seed\("

_WRAPPED = "DistributedDataParallel.module."
#: what follows the name of a tensor that is written to in place
_EDITS = (
    r"(\[[^\]]*\] *[-+*/]?= "
    r"|\.(copy|mul|div|add|sub|fill|zero|normal|uniform|lerp|clamp|index_copy)_\()"
)


class UpdatesAlone:
    """Updates that this process made before a DDP module took part in one."""

    def __init__(self):
        self.count: "int | None" = None


class LastBackward:
    """Of the step that is going on."""

    def __init__(self):
        self.sums: "bool | None" = None  # whether DDP sums its gradients; None: not seen


alone = UpdatesAlone()
last_backward = LastBackward()
_waiting = []  # (update, facts, values) whose sums are on their way from a device


def begin():
    """Look at boundaries from now on."""
    if on_boundary not in session.boundary_listeners:
        session.boundary_listeners.append(on_boundary)


def backward_begins():
    """Whether it is outside of ``no_sync()``: the last one before an update has to be."""
    module = _ddp()
    last_backward.sums = getattr(module, "require_backward_grad_sync", None)


def found():
    """A DDP module is trained: what was updated until now, no replica was."""
    if alone.count is None:
        alone.count = totals[OPTIMIZER_STEPS]


def updates_alone():
    """Updates that were made before: they are no updates of a replica."""
    return alone.count or 0


def next_update(update):
    """The first update after ``update`` that is looked at."""
    periodic = [update - update % PERIOD + more for more in (0, 1, PERIOD)]
    after_first = [first + 1 for first in FIRST]
    return min(due for due in [*FIRST, *after_first, *periodic] if due > update)


def on_boundary(step, t_end_ns):
    """A step has ended: the update number tells whether this is one to look at."""
    update = totals[OPTIMIZER_STEPS] - updates_alone()
    gradient_sums.on_boundary()
    if _waiting:
        _send_waiting()
    if (
        update in FIRST or update - 1 in FIRST or (update % PERIOD < 2 and update > 1)
    ) and late.may_look():
        steps.book_agent_time(_look, update)
    last_backward.sums = None


def _look(update):
    outside = [parameter for parameter in _outside() if late.is_plain(parameter)]
    if session.ddp:
        replica = [parameter for parameter in _parameters() if late.is_plain(parameter)]
        facts = {"group": _ddp_group_size()}
        if last_backward.sums is False:
            facts["unsynced_at"] = source.place_matching(r"\.no_sync\(|_grad_sync *=") or ""
    else:
        in_part = _are_summed_in_part(outside)
        replica = outside if in_part or _are_summed(outside) else []
        facts = {"group": session.world_size, "by_hand": True, "made_at": _model_line()}
        if in_part:
            facts["summed_in_part_at"] = gradient_sums.sums.site or ""
    if not replica:
        return
    values = late.Late()
    if outside and session.ddp:
        facts["outside_values"] = sum(parameter.numel() for parameter in outside)
        facts["outside_names"] = _names(outside[:MAX_NAMES])
        facts["exchange"] = session.exchange_seen
        values.put("outside", _checksum, _some_values(_sample(outside)))
    if _joins():
        facts["joins"] = True
    sample = _sample(replica)
    values.put("each", _checksums, _some_values(sample))
    facts["names"] = _names(sample)
    facts["edited_at"] = _edits(tuple(facts["names"]))
    _waiting.append((update, facts, values))
    _send_waiting()


def _sample(parameters):
    return parameters[:: -(-len(parameters) // MAX_TENSORS)]


def _some_values(parameters):
    return late.some_values(parameters, MAX_VALUES)


def _checksums(parts):
    """CRC-32 of each tensor's bits."""
    return [zlib.crc32(_content(part)) for part in parts]


def _checksum(parts):
    """CRC-32 of the values' bits."""
    crc = 0
    for part in parts:
        crc = zlib.crc32(_content(part), crc)
    return crc & 0xFFFFFFFF


@lru_cache(maxsize=1)
def _edits(names):
    """By name, the only line of the script that writes into a parameter in place."""
    places = {}
    for name in names:
        attribute = re.escape(name.rpartition(".")[2])
        place = source.place_matching(rf"\.{attribute}(\.data)?{_EDITS}") if attribute else None
        if place:
            places[name] = place
    return places


def reset():
    """In a forked child."""
    alone.__init__()
    last_backward.__init__()
    del _waiting[:]


def _ddp():
    return next(iter(alive(session.ddp)), None)


def _joins():
    """Whether DDP is under ``Join``: a rank that has run out of batches makes no update, while
    others do.
    """
    return bool(getattr(getattr(_ddp(), "_join_config", None), "enable", False))


def _parameters():
    module = _ddp()
    if module is None:
        return []
    ignored = set(getattr(module, "parameters_to_ignore", None) or ())
    return [
        parameter
        for name, parameter in module.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    ]


def _are_summed(parameters):
    """Whether the ranks have summed as many values as these have gradients, in the step that
    ends. Where these have been cleared already, as many as they are themselves.
    """
    return 0 < _values_with_gradients(parameters) <= gradient_sums.sums.of_step


def _are_summed_in_part(parameters):
    """Whether they have summed fewer, but too many for figures: some parameters were left out. Not
    where ranks may hold parts of one model.
    """
    sums = gradient_sums.sums
    if sums.in_model or session.exchange_seen or sums.of_step < LEAST_SUMMED:
        return False
    wanted = _values_with_gradients(parameters)
    return SUMMED_PART * wanted <= sums.of_step < wanted


def _values_with_gradients(parameters):
    graded = [parameter for parameter in parameters if parameter.grad is not None] or parameters
    return sum(parameter.numel() for parameter in graded)


def _model_line():
    """The one line that makes the model."""
    root = next(iter(alive(session.roots)), None)
    name = re.escape(type(root).__name__)
    return source.place_matching(rf"(?<!class )(?<!\w){name}\(") if root is not None else None


def _outside():
    """Parameters that an optimizer updates and that no DDP module has, each once and in the same
    order on all ranks: an optimizer that another one holds, as ZeRO's, has a rank's share alone.
    """
    inside = {id(parameter) for module in alive(session.ddp) for parameter in module.parameters()}
    outside = {
        id(parameter): parameter
        for optimizer in outermost(alive(session.optimizers.values()))
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad and id(parameter) not in inside
    }
    return list(outside.values())


def _names(parameters):
    """``Linear.weight``; ``""`` for one that lies in no module that is trained."""
    wanted = {id(parameter): "" for parameter in parameters}
    for root in alive(session.roots):
        for name, parameter in root.named_parameters():
            if id(parameter) in wanted:
                wanted[id(parameter)] = f"{type(root).__name__}.{name}"
    return [name.replace(_WRAPPED, "") for name in wanted.values()]


def _content(parameter):
    size = min(parameter.numel(), MAX_VALUES) * parameter.element_size()
    if size:
        return (ctypes.c_char * size).from_address(parameter.data_ptr())
    return b""


def _send_waiting():
    update, facts, values = _waiting[0]
    numbers = values.read()
    if numbers is not None:
        del _waiting[0]
        numbers["parameters"] = zlib.crc32(repr(numbers["each"]).encode())
        random = guard.safely(_random_state)
        transport.send_event("replica", update=update, random=random, **facts, **numbers)


def _ddp_group_size():
    """Ranks that hold the same parameters; fewer than all where pipeline stages are replicated."""
    module = _ddp()
    return module.process_group.size() if module is not None else None


def _random_state():
    """Seed of torch's CPU generator and a checksum of its state: equal ones draw equal numbers."""
    state = session.torch.get_rng_state()
    return {
        "seed": session.torch.initial_seed(),
        "state": zlib.crc32(_content(state[:MAX_VALUES])),
        "at": source.place_with("torch.manual_seed(") or source.place_matching(_SEEDS),
        "drops": _drops(),
    }


def _drops():
    """Whether one of the roots has a dropout that drops."""
    return any(
        module.p > 0
        for root in alive(session.roots)
        for module in itertools.islice(root.modules(), MAX_MODULES)
        if isinstance(module, session.torch.nn.modules.dropout._DropoutNd)
    )
