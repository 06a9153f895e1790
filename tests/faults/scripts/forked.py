"""Ranks of one script, forked after torch is imported, so that a start costs one import."""

import atexit
import gc
import os
import sys


def run_ranks(world, train):
    """Call ``train(rank)`` in a process for each rank. Returns the first exit code that is not 0.

    What ``train`` returns is never freed: a DDP model waits at its end for gloo's thread and holds
    the GIL, and where that thread frees a tensor of the last collective just then, both wait for
    ever.
    """
    children = []
    gc.freeze()  # a collection in a child then copies no page of the parent's objects
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            kept = train(rank)
            leave(kept)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    return next((code for code in codes if code), 0)


def leave(_):
    """End the process well, without freeing what it has."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)
