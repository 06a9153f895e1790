"""Work on two processors at once, for a command that ends with its answer."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def in_halves(work: Callable[[Item], int], items: Sequence[Item]) -> list[int]:
    """What ``work`` gives for each item, as ``map`` would; every other one is done by a forked child.

    A child that fails sends nothing: its share is then done here, where an error is raised as usual.
    """
    if len(items) < 2 or not _may_fork():
        return [work(item) for item in items]
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _send(work, items[::2], writing)
    os.close(writing)
    own = [work(item) for item in items[1::2]]
    with os.fdopen(reading, "rb") as sent:
        received = sent.read()
    os.waitpid(child, 0)
    theirs = json.loads(received) if received else [work(item) for item in items[::2]]
    found = [0] * len(items)
    found[::2], found[1::2] = theirs, own
    return found


def _may_fork() -> bool:
    """Whether there is a second processor, and no thread whose locks a child would inherit."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return processors > 1 and threading.active_count() == 1 and hasattr(os, "fork")


def _send(work: Callable[[Item], int], items: Sequence[Item], writing: int) -> None:
    """In the child: the results as one line of JSON, and no return; nothing of the parent's is flushed or closed."""
    try:
        os.write(writing, json.dumps([work(item) for item in items]).encode())
    finally:
        os._exit(0)
