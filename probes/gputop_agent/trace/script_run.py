"""One way of tracing a script, inside the process that does it: set the stage, run, write the log, leave at once."""

from __future__ import annotations

import io
import json
import os
import sys
import time
import traceback
import warnings
from typing import Any, Dict, List, NoReturn

from . import script_sandbox
from .fallback_source import NothingToBuildError
from .script_waiting import Input, Waiting

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
        self.world = options.world or int(os.environ.get("WORLD_SIZE", "0") or 0) or _wants_ranks(path)
        self._output = io.StringIO()

    def way(self, name: str) -> NoReturn:
        """Go one way (``ran`` or ``module``) and leave the process."""
        lacking = script_sandbox.enter(self.folder, self.path, os.path.dirname(self.options.outcome))
        if self.world:
            script_sandbox.ranks(self.world)
        warnings.simplefilter("ignore")
        self._stage()
        for sentence in lacking:
            self.steps.note(sentence)
        from .kernels import as_on_cuda

        stdout, sys.stdout = sys.stdout, self._output
        said = sys.stderr = _Remembering(sys.stderr)  # type: ignore[assignment]
        asked = sys.stdin = Input(sys.stdin)  # type: ignore[assignment]
        try:
            with as_on_cuda(), self.devices, self.fakes, self.tracker:
                self.tracker.mark("init", 0)
                self._run_script() if name == "ran" else self._run_module()
            if self.steps.enough():
                self.finish(name)
            error = "ended before its first optimizer step"
        except SystemExit as end:
            error = _why_it_ended(end.code, said.last) + _what_to_give(end.code, self.arguments)
            if self.steps.enough():
                self.finish(name)
        except BaseException as problem:  # the script's own error is the answer, whatever it is
            error = _why_it_failed(problem)
            if self.steps.done:
                self.steps.note("The script failed in its second step: %s" % _one_line(problem))
                self.finish(name)
            error += _NO_INPUT % os.path.basename(self.path) if name == "ran" and asked.missed() else ""
            self._leave({"error": error, "traceback": _own_traceback(problem, self.path)})
        finally:
            sys.stdout = stdout
        self._leave({"error": error})

    def _stage(self) -> None:
        """All that stands between the script and this machine."""
        from . import (
            script_cuda,
            script_device,
            script_distributed,
            script_fake,
            script_libraries,
            script_processes,
            script_recurrent,
            script_steps,
            script_torch,
            script_tracker,
        )

        self.fakes = script_fake.Fakes()
        self.tracker = script_tracker.ScriptTracker()
        self.fakes.moved = self.tracker.track
        script_device.accept_indices()
        self.devices = script_device.Devices(self.fakes)
        self.steps = script_steps.Steps(self.tracker, self.fakes, lambda: self.finish("ran"))
        self.steps.deadline = time.monotonic() + LIMIT_S
        Waiting(self.path, LIMIT_S, lambda: self.steps.done > 0, self._give_up).begin()
        script_cuda.pretend(max(1, min(self.world, 8)))
        script_fake.show_devices()
        script_torch.replace(self.fakes, self.steps.note)
        script_libraries.replace(self.fakes, self.steps.note, script_libraries.read_configs(self.options.configs))
        script_processes.replace()
        script_recurrent.replace(self.steps.note)
        script_distributed.replace(self.tracker, self.steps.note, self.world, self.fakes)
        self.steps.watch()

    def _give_up(self, error: str) -> None:
        if not self.steps.enough():
            self._leave({"error": error})

    def _run_script(self) -> None:
        sys.argv = [self.path, *self.arguments]
        with open(self.path, "rb") as source:
            code = compile(source.read(), self.path, "exec")
        import types

        module = types.ModuleType("__main__")
        module.__file__ = self.path
        sys.modules["__main__"] = module
        exec(code, module.__dict__)

    def _run_module(self) -> None:
        from . import fallback_modules

        sys.argv = [self.path, *self.arguments]
        fallback_modules.train(self.path, self.steps.note)

    def finish(self, how: str) -> NoReturn:
        """Write the log and leave; nothing of the script runs any more, not even its ``finally``."""
        from .models import versions

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
        self._leave({"done": True, "notes": self.steps.notes, "steps": self.steps.done})

    def _leave(self, outcome: Dict[str, Any]) -> NoReturn:
        with open(self.options.outcome, "w", encoding="utf-8") as text:
            json.dump(outcome, text)
        sys.stderr.flush()
        os._exit(0)


class _Remembering:
    """A stream that knows the last line written to it, which tells why a script ended itself."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.last = ""

    def write(self, text: str) -> int:
        self.last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), self.last)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _why_it_ended(code: Any, said: str) -> str:
    """``sys.exit("words")`` ends with code 1 and prints the words."""
    words = code.strip() if isinstance(code, str) else said
    number = 1 if isinstance(code, str) else code or 0
    return "ended by itself with exit code %s before its first optimizer step%s" % (number, words and ": " + words)


def _what_to_give(code: Any, arguments: List[str]) -> str:
    """Most programs end with code 2 where their arguments are wrong."""
    return "" if code != 2 or arguments else " (the script's own arguments go after `--`)"


def _why_it_failed(problem: BaseException) -> str:
    if isinstance(problem, NothingToBuildError):
        return str(problem)
    if "SparseTensorImpl" in str(problem):
        return "has sparse gradients, whose size depends on the data: a trace on fake tensors cannot follow them"
    return "failed before its first optimizer step: %s" % _one_line(problem)


def _one_line(problem: BaseException) -> str:
    return "%s: %s" % (type(problem).__name__, (str(problem).strip() or "no message").splitlines()[0])


def _own_traceback(problem: BaseException, path: str) -> str:
    """The traceback of the script's own error, without our frames and those of torch's fake tensors."""
    report = traceback.TracebackException(type(problem), problem, problem.__traceback__)
    ours = os.path.dirname(os.path.abspath(__file__))
    inside = [at for at, frame in enumerate(report.stack) if frame.name == "__torch_dispatch__"]
    stack = report.stack[: inside[0] if inside else None]
    frames = [frame for frame in stack if os.path.dirname(frame.filename) != ours]
    while frames and frames[-1].filename.endswith(("eval_frame.py", "_compile.py")):
        del frames[-1]
    report.stack = traceback.StackSummary.from_list(frames)
    return "".join(report.format(chain=False))


def _wants_ranks(path: str) -> int:
    """1 for a script that reads what a launcher of ranks sets, else 0."""
    with open(path, "rb") as source:
        text = source.read()
    return int(b"LOCAL_RANK" in text or b"init_process_group" in text)
