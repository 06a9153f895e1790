"""The command of a trace: ``--setup FILE --out FILE`` for a model; what happens is told on stderr,
line by line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from typing import Any, Dict, List, Optional

from .progress import NO_LIBRARY, say

_OF_NAMES = ("diffusers", "timm")
"""Libraries that know models which no other tier covers."""


def main(arguments: Optional[List[str]] = None) -> int:
    """Trace what the arguments ask for, a model or a script; the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if words and not words[0].startswith("-"):
        from gputop_tracer.script import command

        return command.main(words)
    if words[:1] == ["--probe"]:
        return _probe(list(words[1:]))
    options = parser().parse_args(words)
    with open(options.setup, encoding="utf-8") as text:
        setup = json.load(text)
    try:
        return _trace(setup, options)
    except ImportError as error:
        say("error: %s" % _missing(error))
        return NO_LIBRARY
    except Exception as error:
        traceback.print_exc()
        say("error: %s" % _said(error))
        return 1


def _probe(arguments: List[str]) -> int:
    try:
        from gputop_tracer.probe import steps
    except ImportError as error:
        say(
            "error: %s has no %s: install it there, or name another with --python"
            % (sys.executable, error.name)
        )
        return NO_LIBRARY
    return steps.main(arguments)


def _trace(setup: Dict[str, Any], options: argparse.Namespace) -> int:
    began = time.perf_counter()
    say("importing torch and transformers")
    from . import model_trace

    say("tracing %s" % setup["model"].get("name", "the model"))
    tracker = model_trace.trace(setup, options.config, full=options.full, made_by=options.factory)
    tracker.meta["trace_s"] = round(time.perf_counter() - began, 2)
    tracker.log.save(options.out, tracker.meta)
    say("%d storages in %.1f s" % (len(tracker.log.storages), tracker.meta["trace_s"]))
    return 0


def _missing(error: ImportError) -> str:
    """A library that is not there, or one that does not load a part of its own."""
    if error.name in _OF_NAMES:
        return (
            "%s has no %s, which builds this model: pip install %s there, or trace the script "
            "that trains it, gputop estimate train.py" % (sys.executable, error.name, error.name)
        )
    if error.name and error.name.isidentifier():
        return "%s has no %s: install it there, or leave --tier trace" % (
            sys.executable,
            error.name,
        )
    reason = str(error).strip().splitlines()[0].partition(" Are this object")[0]
    return "a library of %s does not load: %s" % (sys.executable, reason)


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    if lines and isinstance(error, ValueError):
        return lines[0]
    if lines:
        return "%s: %s" % (type(error).__name__, lines[0])
    return type(error).__name__


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="gputop_tracer", description=__doc__)
    result.add_argument("--setup", required=True, help="JSON of a setup")
    result.add_argument("--out", required=True, help="the gzipped event log to write")
    result.add_argument(
        "--config", help="a Hugging Face config: a file, a directory or a name in the local cache"
    )
    result.add_argument("--factory", default="", help="module:callable that gives the nn.Module")
    result.add_argument(
        "--full", action="store_true", help="trace all layers instead of a few that stand for all"
    )
    return result
