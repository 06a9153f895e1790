"""Processes a script trains in: the first runs here, since fake tensors do not travel."""

from __future__ import annotations

import multiprocessing.process
import os
import sys
from typing import Any, Iterator, Set

import torch.multiprocessing

_TRAINS = {"backward", "zero_grad", "train", "fit", "init_process_group"}
"""Names in the code of a function that trains; what only reads or feeds has none of them."""


def replace() -> None:
    """``spawn`` and processes whose function trains run it here, as the first rank."""
    for namespace in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        for name in ("spawn", "start_processes"):
            if hasattr(namespace, name):
                setattr(namespace, name, _spawn)
    process_class: Any = multiprocessing.process.BaseProcess
    start = process_class.start

    def start_or_run(process: Any) -> None:
        target = getattr(process, "_target", None) or type(process).run
        if not trains(target):
            start(process)
            return
        process.run()
        process._popen = _Ended()

    process_class.start = start_or_run


class _Ended:
    """A process that came to its end without an error."""

    returncode = 0

    def wait(self, timeout: Any = None) -> int:
        return 0

    def poll(self, flag: Any = None) -> int:
        return 0

    def join(self, timeout: Any = None, grace_period: Any = None) -> bool:
        return True


def _spawn(function: Any, args: Any = (), nprocs: int = 1, *_rest: Any, **_options: Any) -> _Ended:
    os.environ.setdefault("WORLD_SIZE", str(nprocs))
    function(0, *args)
    return _Ended()


def trains(function: Any) -> bool:
    """Whether a function's code, or that it names in its file, does what training does."""
    return any(_TRAINS & set(code.co_names) for code in _codes(function, set()))


def _codes(function: Any, seen: Set[int]) -> Iterator[Any]:
    """The code of a function or class and of what it reaches in its own module."""
    function = getattr(function, "__func__", function)
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, type):
        for member in vars(function).values():
            yield from _codes(member, seen)
    code = getattr(function, "__code__", None)
    if code is None:
        return
    yield code
    for name in code.co_names:
        named = getattr(function, "__globals__", {}).get(name)
        if getattr(named, "__module__", None) == getattr(function, "__module__", ""):
            yield from _codes(named, seen)
