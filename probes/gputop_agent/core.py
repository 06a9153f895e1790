"""Where the guest begins: called once, right after ``import torch``."""

from . import (
    activation,
    dryrun,
    exceptions,
    finder,
    guard,
    hello,
    modes,
    process,
    sampling,
    steps,
    transport,
)
from .hooks import (
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
    optimizer,
    pipelining,
    save,
)
from .session import session

HOOKS = (
    modes,
    forward,
    optimizer,
    autograd,
    dataloader,
    amp,
    clip,
    save,
    collectives,
    dynamo,
    gc_pauses,
    deepspeed,
    pipelining,
    empty_cache,
    dryrun,
    sampling,
)


def install(torch, import_finder):
    """Put every hook in place. A hook that does not fit this version of torch is left out; the others work."""
    session.torch = torch
    finder.use(import_finder)
    for hook in HOOKS:
        guard.safely(hook.install, torch)
    transport.on_reconnect = hello.send_again
    steps.on_first_step = hello.on_first_step
    activation.on_start.extend((exceptions.install, process.finalize_forked_child))
    guard.safely(process.install)
    guard.safely(exceptions.install)
