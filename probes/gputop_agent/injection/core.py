"""Where the guest begins: called once, right after ``import torch``."""

from gputop_agent.hooks import (
    amp,
    autograd,
    clip,
    collectives,
    dataloader,
    deepspeed,
    dynamo,
    empty_cache,
    forward,
    gc_pauses,
    load,
    optimizer,
    pipelining,
    plateau,
    save,
    seed,
    startup,
)
from gputop_agent.injection import hello, process
from gputop_agent.runtime import bound, finder, guard, transport
from gputop_agent.runtime.session import session
from gputop_agent.timing import activation, sampling, steps
from gputop_agent.timing import startup as milestones
from gputop_agent.watchers import dryrun, exceptions
from gputop_agent.watchers.memory import memory_history

HOOKS = (
    bound,
    forward,
    optimizer,
    autograd,
    dataloader,
    amp,
    clip,
    save,
    load,
    plateau,
    seed,
    collectives,
    dynamo,
    gc_pauses,
    deepspeed,
    pipelining,
    empty_cache,
    dryrun,
    sampling,
    startup,
    memory_history,
)


def install(torch, import_finder):
    """Put every hook in place. One that does not fit this torch is left out; others work."""
    session.torch = torch
    finder.use(import_finder)
    guard.safely(milestones.imported, import_finder)
    for hook in HOOKS:
        guard.safely(hook.install, torch)
    transport.on_reconnect = hello.send_again
    steps.on_first_step = hello.on_first_step
    activation.on_start.extend((exceptions.install, process.finalize_forked_child))
    guard.safely(process.install)
    guard.safely(exceptions.install)
