"""The trace of a user's script, in up to three ways: run it, build a model class of it, or read
which model it names.

``SCRIPT --out FILE [--world N] [--configs FILE] [--no-execute] -- ARGUMENTS``. Each way runs in a
process of its own in an empty folder. stdout gets one JSON object: ``how`` (``ran``, ``module``,
``source``, null), ``tried`` (each way with what came of it), ``traceback`` of the script where it
failed, and what the source says (``pretrained``, ``options``). Exit code 0 when there is a log, 3
when there is none and the source names a model, else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from typing import Any, Dict, List, NoReturn, Optional

from gputop_tracer.progress import say
from gputop_tracer.sandbox import scratch

from . import fallback_source
from .run import LIMIT_S

_ENTRY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "__main__.py")
_WAYS = (
    ("ran", "run its code to the second optimizer step"),
    ("module", "build a model class of it"),
)


def main(arguments: Optional[List[str]] = None) -> int:
    """Trace the script that the arguments name; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    own_options, remaining = _split(words)
    options = parser().parse_args(own_options)
    if options.way:
        _one_way(options, remaining)
    source = fallback_source.read(options.script)
    if options.no_execute:
        return _answer({"how": "source", "tried": [], **source}, 0)
    tried: List[Dict[str, str]] = []
    trace = None
    for way, does in _WAYS:
        say("trying to %s" % does)
        outcome = _start(options, remaining, way)
        if outcome.get("demanded"):
            options.launched = outcome["demanded"]
            say("it needs %s, which a launcher sets: again as rank 0 of 1" % options.launched)
            outcome = _start(options, remaining, way)
        if outcome.get("done"):
            tried.append({"way": way, "outcome": "done"})
            return _answer({"how": way, "tried": tried, "traceback": trace, **source, **outcome}, 0)
        tried.append({"way": way, "outcome": outcome["error"]})
        trace = outcome.get("traceback") if way == "ran" else trace
        say(outcome["error"])
    named = bool(source["pretrained"])
    tried.append(
        {
            "way": "source",
            "outcome": "names " + ", ".join(source["pretrained"]) if named else "names no model",
        }
    )
    return _answer(
        {"how": "source" if named else None, "tried": tried, "traceback": trace, **source},
        3 if named else 1,
    )


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="gputop_tracer", description=__doc__)
    result.add_argument("script")
    result.add_argument("--out", default="", help="the gzipped event log to write")
    result.add_argument(
        "--world",
        type=int,
        default=0,
        help="ranks, as torchrun would start them; this is the first",
    )
    result.add_argument(
        "--configs", default="", help="JSON: Hugging Face configurations by model name"
    )
    result.add_argument("--no-execute", action="store_true", help="only read the source")
    result.add_argument("--way", default="", help=argparse.SUPPRESS)
    result.add_argument("--launched", default="", help=argparse.SUPPRESS)
    result.add_argument("--outcome", default="", help=argparse.SUPPRESS)
    return result


def _split(given: List[str]) -> Any:
    """Our arguments, and the script's own after ``--``."""
    if "--" not in given:
        return given, []
    at = given.index("--")
    return given[:at], given[at + 1 :]


def _start(options: Any, rest: List[str], way: str) -> Dict[str, Any]:
    """One way in a process of its own; what it says of itself, or how it ended."""
    with scratch.scratch() as folder:
        outcome, log = os.path.join(folder, "outcome.json"), os.path.join(folder, "log.json.gz")
        command = [sys.executable, _ENTRY, options.script, "--way", way, "--out", log]
        command += ["--outcome", outcome, "--world", str(options.world)]
        if options.launched:
            command += ["--launched", options.launched]
        if options.configs:
            command += ["--configs", os.path.abspath(options.configs)]
        ended = _wait(command + ["--"] + rest, stdin=None if way == "ran" else subprocess.DEVNULL)
        if ended is None:
            return {"error": "made no whole step in %d s" % LIMIT_S}
        outcome_ = scratch.read_json(outcome)
        if outcome_ is not None and (
            "error" in outcome_ or ("done" in outcome_ and scratch.is_file(log))
        ):
            if scratch.is_file(log):
                shutil.move(log, options.out)
            return outcome_
    if ended < 0:
        return {"error": "its process was ended by %s" % signal.Signals(-ended).name}
    return {"error": "its process ended with code %d and no word" % ended}


def _wait(command: List[str], stdin: Optional[int]) -> Optional[int]:
    """Run a command to its end, and end whatever it leaves behind; None if it takes too long."""
    process = subprocess.Popen(command, stdin=stdin, stdout=sys.stderr, start_new_session=True)
    try:
        return process.wait(LIMIT_S + 60)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _one_way(options: Any, rest: List[str]) -> NoReturn:
    from . import run

    folder = os.path.join(os.path.dirname(options.outcome), "script")
    os.mkdir(folder)
    run.Run(os.path.abspath(options.script), rest, options, folder).way(options.way)


def _answer(result: Dict[str, Any], code: int) -> int:
    print(json.dumps(result))
    return code
