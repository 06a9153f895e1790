"""Tries all ways out of the sandbox as one user, with some of its layers: ``sandbox_escape_run.py
UID LAYER...``.

A layer is ``landlock``, ``namespaces`` or ``namespaces:N``, the Nth choice of them alone.
stdout gets one JSON object: of each way whether harm was done, or null where it could not be tried,
and what was said.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import tempfile
from typing import Any

from sandbox_escapes import ESCAPES, REFUSED

from gputop_tracer.sandbox import enter, landlock, namespaces

_DUMPABLE = 4


def main() -> None:
    """Prepare outside, try inside, look outside."""
    user, layers = int(sys.argv[1]), set(sys.argv[2:])
    if user != os.getuid():
        become(user)
    with tempfile.TemporaryDirectory(
        prefix="gputop-escapes-", ignore_cleanup_errors=True
    ) as folder:
        print(json.dumps(all_tried(folder, layers)))


def all_tried(folder: str, layers: set[str]) -> dict[str, Any]:
    """Answer of each way that these layers hold, with its files in ``folder``."""
    outcomes = os.path.join(folder, "outcomes")
    os.makedirs(os.path.join(outcomes, "script"))
    aims: dict[str, Any] = {}
    answers: dict[str, Any] = {}
    ways = [way for way in ESCAPES if not way.held_by or way.held_by & of_layers(layers)]
    for index, way in enumerate(ways):
        try:
            aims[way.name] = way.prepare(os.path.join(folder, str(index)))
        except OSError as problem:
            answers[way.name] = {"harmed": None, "said": f"cannot be prepared here: {problem}"}
    inside(aims, outcomes, layers)
    said = read(os.path.join(outcomes, "said.json"))
    for way in ways:
        if way.name in aims:
            harmed = way.harmed(aims[way.name], said["ways"][way.name][0])
            answers[way.name] = {"harmed": harmed, "said": said["ways"][way.name][1]}
    return {"lacking": said["lacking"], "ways": answers}


def of_layers(layers: set[str]) -> set[str]:
    """What holds a way out: each layer by its name, and what namespaces consist of."""
    return layers | ({"files", "processes"} if "namespaces" in layers else set())


def become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    ctypes.CDLL(None).prctl(_DUMPABLE, 1, 0, 0, 0)


def read(path: str) -> Any:
    with open(path) as text:
        return json.load(text)


def inside(aims: dict[str, Any], outcomes: str, layers: set[str]) -> None:
    """Try each way in a process of its own within one sandbox."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    if "namespaces" not in layers:
        one = next(
            (int(layer.partition(":")[2]) for layer in layers if layer.startswith("namespaces:")),
            None,
        )
        namespaces._CHOICES = () if one is None else namespaces._CHOICES[one : one + 1]
    if "landlock" not in layers:
        landlock._CREATE_RULESET = 9999
    lacking = enter.enter(os.path.join(outcomes, "script"), __file__, outcomes)
    ways = {way.name: attempt(way, aims[way.name]) for way in ESCAPES if way.name in aims}
    with open(os.path.join(outcomes, "said.json"), "w") as text:
        json.dump({"ways": ways, "lacking": lacking}, text)
    os._exit(0)


def attempt(way: Any, aim: Any) -> Any:
    """(Whether the kernel let it through, what it said.)"""
    told, tells = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(10)
        try:
            result = way.attempt(aim)
            answer = (result is not False, f"returned {result!r}"[:80])
        except OSError as problem:
            answer = (problem.errno not in REFUSED, str(problem))
        except BaseException as problem:
            answer = (False, repr(problem))
        os.write(tells, json.dumps(answer).encode())
        os._exit(0)
    os.close(tells)
    with open(told, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else (False, f"ended with status {status}")


if __name__ == "__main__":
    main()
