"""Work on two processors at once, for a command that ends with its answer."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def in_halves(work: Callable[[Item], int], items: Sequence[Item]) -> Callable[[], list[int]]:
    """Begins in a forked child; what it returns takes part, waits, and gives what ``work`` does for each item.

    Each process takes the next item when it is done with one, so that both end at about the same time. A child that
    fails sends nothing: its share is then done here, where an error is raised as usual.

    Args:
        work: takes an item; what it leaves behind in a child is lost.
        items: at most 256, whose numbers are bytes.
    """
    if len(items) < 2 or not _may_fork():
        return lambda: [work(item) for item in items]
    queue, numbers = os.pipe()
    os.write(numbers, bytes(range(len(items))))
    os.close(numbers)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _send(work, items, queue, writing)
    os.close(writing)

    def results() -> list[int]:
        found = _taken(work, items, queue)
        os.close(queue)
        with os.fdopen(reading, "rb") as sent:
            received = sent.read()
        os.waitpid(child, 0)
        found.update(json.loads(received) if received else ())
        return [found[number] if number in found else work(item) for number, item in enumerate(items)]

    return results


def _taken(work: Callable[[Item], int], items: Sequence[Item], queue: int) -> dict[int, int]:
    """The results of the items that this process got, by their numbers."""
    found = {}
    while number := os.read(queue, 1):
        found[number[0]] = work(items[number[0]])
    return found


def _may_fork() -> bool:
    """Whether there is a second processor, and no thread whose locks a child would inherit."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return processors > 1 and threading.active_count() == 1 and hasattr(os, "fork")


def _send(work: Callable[[Item], int], items: Sequence[Item], queue: int, writing: int) -> None:
    """In the child: the results as one line of JSON, and no return; nothing of the parent's is flushed or closed."""
    try:
        os.write(writing, json.dumps(list(_taken(work, items, queue).items())).encode())
    finally:
        os._exit(0)
