"""Ranks of one script, forked after torch is imported, so that a start costs one import."""

import os


def run_ranks(world, train):
    """Call ``train(rank)`` in a process for each rank. Returns the first exit code that is not 0; 0 in the children."""
    children = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            train(rank)
            return 0
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    return next((code for code in codes if code), 0)
