"""Collectives that the script calls and waits for. DDP itself tells what a backward has."""

import sys

from gputop_agent.runtime import finder, guard
from gputop_agent.runtime.session import BACKWARD, COMM, FORWARD, session
from gputop_agent.timing import clock, gradient_sums
from gputop_agent.watchers import messages

NAMES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "broadcast",
    "broadcast_object_list",
    "scatter",
    "gather",
    "gather_object",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "monitored_barrier",
)
_EXCHANGES = (
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "gather",
    "all_to_all",
    "all_to_all_single",
)


def install(torch):
    """Wrap them in the module and in the package that re-exports them."""
    finder.after_import("torch.distributed.distributed_c10d", _wrap)
    finder.after_import("torch.distributed.tensor._api", _wrap_sharded)


def _wrap_sharded(module):
    """A sharded tensor made whole, which gathers it from all ranks."""
    sharded = getattr(module, "DTensor", None)
    original = getattr(sharded, "full_tensor", None)
    if original is not None:
        guard.patch(sharded, "full_tensor", guard.around(original, before, after))


def _wrap(module):
    package = sys.modules.get("torch.distributed")
    for name in NAMES:
        original = getattr(module, name, None)
        if original is None:
            continue
        begin = before_exchange if name in _EXCHANGES else _BEFORE.get(name, before)
        _put_in(module, package, name, guard.around(original, begin, after))
    broadcast = getattr(package, "_broadcast_coalesced", None)
    if broadcast is not None:  # DDP's, of a model's buffers before each forward
        guard.patch(package, "_broadcast_coalesced", guard.around(broadcast, before, after))
    for name, begin in _MESSAGES.items():
        original = getattr(module, name, None)
        if original is not None:
            wrapper = guard.around(original, begin, after_message, always=True)
            _put_in(module, package, name, wrapper)
    work = getattr(module, "Work", None)
    if work is not None:
        guard.patch(work, "wait", guard.around(work.wait, before_wait, after))
    # torch compares the functions isend and irecv with those of each P2POp: what they call is
    # wrapped instead
    for name, begin in (("send", before_isend), ("recv", before_irecv)):
        original = getattr(module.ProcessGroup, name)
        wrapper = guard.around(original, begin, after_irecv, always=True)
        guard.patch(module.ProcessGroup, name, wrapper)


def _put_in(module, package, name, wrapper):
    """Wrap a function in the module, and in the package that re-exports it."""
    original = getattr(module, name)
    guard.patch(module, name, wrapper)
    if getattr(package, name, None) is original:
        guard.patch(package, name, wrapper)


def before(args, kwargs):
    """Begin the phase; an asynchronous call costs its launch only and is left alone."""
    if kwargs.get("async_op"):
        return None
    depth = len(clock.stack)
    clock.enter(COMM)
    return depth


def before_sum(args, kwargs):
    """Begin the phase, and note how much is summed: it may be the gradients."""
    gradient_sums.before_sum(args, kwargs)
    return before(args, kwargs)


def before_exchange(args, kwargs):
    """Begin the phase, and note that ranks may hold parts of one model: what one computes goes to
    the others, and gradients come back.
    """
    if session.phase in (FORWARD, BACKWARD) or any(map(_wants_gradient, args)):
        session.exchange_seen = True
    return before(args, kwargs)


def _wants_gradient(argument):
    parts = argument if isinstance(argument, (list, tuple)) else (argument,)
    return any(getattr(part, "requires_grad", False) for part in parts)


def before_wait(args, kwargs):
    """Begin the phase: the script waits for an asynchronous call. Where torch does, as FSDP2 in a
    forward, that is part of what it does there.
    """
    caller = sys._getframe(2).f_globals.get("__name__") or ""
    if session.phase == COMM or caller.startswith("torch."):
        return None
    return before((), {})


def after(token, args, result):
    """End the phase."""
    clock.unwind(token)


def before_send(args, kwargs):
    """Begin the phase, and note whom the message is for."""
    return _before_message("send", args, kwargs, "dst", "group_dst")


def before_recv(args, kwargs):
    """Begin the phase, and note whom the message is from."""
    return _before_message("recv", args, kwargs, "src", "group_src")


def before_isend(args, kwargs):
    """Note whom the message is for; nobody has to ask whether it is through."""
    if sys._getframe(2).f_code.co_name == "isend":
        _note_call("send", *args)


def before_irecv(args, kwargs):
    """Note whom the message is from."""
    if sys._getframe(2).f_code.co_name == "irecv":
        return _note_call("recv", *args)
    return None


def after_irecv(entry, args, work):
    """It runs until its work is done."""
    messages.runs_as(entry, work)


def after_message(token, args, result):
    """The message is through."""
    depth, entry = token
    entry[-1] = "completed"
    if depth is not None:
        clock.unwind(depth)


def _before_message(operation, args, kwargs, peer_name, in_group_name):
    tensor = args[0] if args else kwargs.get("tensor")
    peer = args[1] if len(args) > 1 else kwargs.get(peer_name)
    group = args[2] if len(args) > 2 else kwargs.get("group")
    if peer is None:
        peer = _global_rank(group, kwargs.get(in_group_name))
    entry = messages.note(operation, peer, _name_of(group), tensor, "started")
    if session.hooks_out:
        return None, entry
    return before((), {}), entry


def _note_call(operation, group, tensors, peer, *_):
    peer = _global_rank(group, peer)
    return messages.note(operation, peer, _name_of(group), tensors[0], "issued")


def _global_rank(group, rank):
    if group is None or rank is None:
        return rank
    module = sys.modules["torch.distributed.distributed_c10d"]
    return module.get_global_rank(group, rank)


def _name_of(group):
    name = getattr(group, "group_name", None)
    return str(name) if name is not None else "0"


_BEFORE = {"all_reduce": before_sum}
_MESSAGES = {
    "send": before_send,
    "recv": before_recv,
}
