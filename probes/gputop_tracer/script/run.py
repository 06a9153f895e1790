"""One way of tracing a script, in its process: set the stage, run, write the log, leave."""

from __future__ import annotations

import ast
import importlib
import io
import json
import os
import sys
import time
import traceback
import warnings
from typing import Any, Dict, List, NoReturn

from gputop_tracer.sandbox import enter

from . import launched
from .fallback_source import NothingToBuildError
from .hub import explained
from .waiting import Waiting, WatchedInput

_NO_INPUT = "; it reads standard input, of which there was none: gputop estimate %s < FILE"
LIMIT_S = 240
"""For one way; a script that has made a whole step by then is answered from that."""


class Run:
    """Runs a script, or a model class of it, on fake tensors."""

    def __init__(self, path: str, arguments: List[str], options: Any, folder: str) -> None:
        self.path = path
        self.arguments = arguments
        self.options = options
        self.folder = folder
        self.launched = getattr(options, "launched", "")
        self.world = (
            options.world or int(os.environ.get("WORLD_SIZE", "0") or 0) or int(bool(self.launched))
        )
        self._output = io.StringIO()

    def way(self, name: str) -> NoReturn:
        """Go one way (``ran`` or ``module``) and leave the process."""
        lacking = enter.enter(self.folder, self.path, os.path.dirname(self.options.outcome))
        if self.world:
            os.environ.update(launched.variables(self.world))
        warnings.simplefilter("ignore")
        self._stage()
        for sentence in lacking:
            self.steps.note(sentence)
        from gputop_tracer.operators.kernels import as_on_cuda

        stdout, sys.stdout = sys.stdout, self._output
        error_text = sys.stderr = _LastLine(sys.stderr)  # type: ignore[assignment]
        asked_input = sys.stdin = WatchedInput(sys.stdin)  # type: ignore[assignment]
        try:
            with as_on_cuda(), self.devices, self.fakes, self.tracker:
                self.tracker.mark("init", 0)
                self._run_script() if name == "ran" else self._run_module()
            if self.steps.enough():
                self.finish(name)
            error = "ended before its first optimizer step"
        except SystemExit as end:
            error = _why_it_ended(end.code, error_text.last) + _what_to_give(
                end.code, self.arguments
            )
            if self.steps.enough():
                self.finish(name)
        except BaseException as problem:  # the script's own error is the answer, whatever it is
            error = _why_it_failed(problem)
            if self.steps.done:
                self.steps.note("The script failed in its second step: %s" % _one_line(problem))
                self.finish(name)
            if name == "ran" and asked_input.missed():
                error += _NO_INPUT % os.path.basename(self.path)
            demanded = "" if self.world else launched.demanded(problem)
            self._leave(
                {
                    "error": error,
                    "traceback": _own_traceback(problem, self.path),
                    "demanded": demanded,
                }
            )
        finally:
            sys.stdout = stdout
        self._leave({"error": error})

    def _stage(self) -> None:
        """All that stands between the script and this machine."""
        from . import (
            cuda,
            device,
            distributed,
            fake,
            libraries,
            processes,
            recurrent,
            steps,
            torch_calls,
            tracker,
        )

        self.fakes = fake.Fakes()
        self.tracker = tracker.ScriptTracker()
        self.fakes.moved = self.tracker.track
        device.accept_indices()
        self.devices = device.Devices(self.fakes)
        self.steps = steps.Steps(self.tracker, self.fakes, lambda: self.finish("ran"))
        if self.launched:
            launched.say(self.launched, self.steps.note)
        self.steps.deadline = time.monotonic() + LIMIT_S
        Waiting(self.path, LIMIT_S, lambda: self.steps.done > 0, self._give_up).begin()
        cuda.pretend(max(1, min(self.world, 8)))
        fake.show_devices()
        torch_calls.replace(self.fakes, self.steps.note)
        libraries.replace(self.fakes, self.steps.note, libraries.read_configs(self.options.configs))
        processes.replace()
        recurrent.replace(self.steps.note)
        distributed.replace(self.tracker, self.steps.note, self.world, self.fakes)
        self.steps.watch()

    def _give_up(self, error: str) -> None:
        if not self.steps.enough():
            self._leave({"error": error})

    def _run_script(self) -> None:
        sys.argv = [self.path, *self.arguments]
        with open(self.path, "rb") as source:
            tree = ast.parse(source.read(), self.path)
        import types

        module = types.ModuleType("__main__")
        module.__file__ = self.path
        sys.modules["__main__"] = module
        if any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree)):
            module.__package__ = _package_of(self.path)
        exec(compile(tree, self.path, "exec"), module.__dict__)

    def _run_module(self) -> None:
        from . import fallback_modules

        sys.argv = [self.path, *self.arguments]
        fallback_modules.train(self.path, self.steps.note)

    def finish(self, how: str) -> NoReturn:
        """Write the log and leave; nothing of the script runs on, not even its ``finally``."""
        from gputop_tracer.model_trace import versions

        self.tracker.meta = {
            "versions": versions(),
            "script": self.path,
            "how": how,
            "world": self.world or 1,
            "layers": len(self.tracker.layers),
            "depth": len(self.tracker.layers),
            "steps": self.steps.done,
            "notes": self.steps.notes,
        }
        self.tracker.log.save(self.options.out, self.tracker.meta)
        answer = {"done": True, "notes": self.steps.notes, "guessed": self.steps.guesses}
        self._leave({**answer, "steps": self.steps.done})

    def _leave(self, outcome: Dict[str, Any]) -> NoReturn:
        with open(self.options.outcome, "w", encoding="utf-8") as text:
            json.dump(outcome, text)
        sys.stderr.flush()
        os._exit(0)


class _LastLine:
    """A stream that knows the last line written to it, which tells why a script ended itself."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.last = ""

    def write(self, text: str) -> int:
        self.last = next(
            (line.strip() for line in reversed(text.splitlines()) if line.strip()), self.last
        )
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _why_it_ended(code: Any, said: str) -> str:
    """``sys.exit("words")`` ends with code 1 and prints the words."""
    words = code.strip() if isinstance(code, str) else said
    number = 1 if isinstance(code, str) else code or 0
    return "ended by itself with exit code %s before its first optimizer step%s" % (
        number,
        words and ": " + words,
    )


def _what_to_give(code: Any, arguments: List[str]) -> str:
    """Most programs end with code 2 where their arguments are wrong."""
    if code != 2 or arguments:
        return ""
    return " (the script's own arguments go after `--`)"


def _why_it_failed(problem: BaseException) -> str:
    if isinstance(problem, NothingToBuildError):
        return str(problem)
    if "SparseTensorImpl" in str(problem):
        return (
            "has sparse gradients, whose size depends on the data: a trace on "
            "fake tensors cannot follow them"
        )
    return "failed before its first optimizer step: %s" % (explained(problem) or _one_line(problem))


def _package_of(path: str) -> str:
    """The package of a script for ``python -m``, imported; empty where it is in none."""
    names: List[str] = []
    folder = os.path.dirname(path)
    while os.path.exists(os.path.join(folder, "__init__.py")):
        folder, name = os.path.split(folder)
        names.insert(0, name)
    if names:
        sys.path.insert(0, folder)
        importlib.import_module(".".join(names))
    return ".".join(names)


def _one_line(problem: BaseException) -> str:
    return "%s: %s" % (
        type(problem).__name__,
        (str(problem).strip() or "no message").splitlines()[0],
    )


def _own_traceback(problem: BaseException, path: str) -> str:
    """The script's own traceback, without our frames and those of torch's fake tensors."""
    report = traceback.TracebackException(type(problem), problem, problem.__traceback__)
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    inside = [at for at, frame in enumerate(report.stack) if frame.name == "__torch_dispatch__"]
    stack = report.stack[: inside[0] if inside else None]
    frames = [frame for frame in stack if not frame.filename.startswith(ours)]
    while frames and frames[-1].filename.endswith(("eval_frame.py", "_compile.py")):
        del frames[-1]
    report.stack = traceback.StackSummary.from_list(frames)
    return "".join(report.format(chain=False))
