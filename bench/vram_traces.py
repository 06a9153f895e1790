"""Traces of many setups for the benches: kept in a temporary folder, the libraries imported once
for all.

A trace takes 1 to 3 s, and importing torch and transformers 7 s. So this process imports them once,
and each trace runs in a child that is forked off it: as fresh as a process of its own, since the
parent traces nothing itself.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import traceback
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from gputop import tracing
from gputop_analysis.vram.eventlog import EventLog, load
from gputop_analysis.vram.setup import Setup


class OutOfTimeError(ValueError):
    """A trace would have to be made, and no time is left for it."""


def trace(setup: Setup, until: float = float("inf")) -> EventLog:
    """The trace of a setup, all layers in it; made anew only before ``until``, a reading of the
    clock.

    Raises:
        OutOfTimeError: it is not made yet, and ``until`` is over.
        ValueError: as of ``tracing.trace``.
    """

    def run(arguments: Sequence[str], out: Path, *_: Any) -> EventLog:
        return _run(list(arguments), out, until)

    with mock.patch.object(tracing, "run", run):
        return tracing.trace(setup)


def _run(arguments: list[str], out: Path, until: float) -> EventLog:
    """``tracing.run``, in a child of this process and only where it was not run before."""
    asked = Path(arguments[arguments.index("--setup") + 1])
    kept = (
        _folder()
        / f"{zlib.crc32(asked.read_bytes()):08x}{'-full' if '--full' in arguments else ''}"
    )
    log, said = kept.with_suffix(".json.gz"), kept.with_suffix(".txt")
    if not log.exists() and not said.exists():
        if time.monotonic() > until:
            raise OutOfTimeError("no time was left to trace it (--limit-s)")
        code = _forked([*arguments, "--out", str(out)], out.with_suffix(".txt"))
        if code:
            said.write_text(tracing._reason(out.with_suffix(".txt").read_text().splitlines(), code))
        else:
            shutil.move(out, log)
    if said.exists():
        raise ValueError(said.read_text())
    return load(log)


@cache
def _folder() -> Path:
    """One for each state of the tracer, but for the files that only a user's script needs."""
    import gputop_tracer

    root = Path(gputop_tracer.__file__).parent
    files = [
        file for file in sorted(root.rglob("*.py")) if file.parent.name not in ("script", "sandbox")
    ]
    state = zlib.crc32(b"".join(file.read_bytes() for file in files))
    folder = Path(tempfile.gettempdir(), "gputop-vram-traces", f"{state:08x}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _forked(arguments: list[str], said: Path) -> int:
    """The exit code of a trace in a child, whose narration goes to a file, that of the libraries
    too.
    """
    _libraries()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        with said.open("w") as log:
            os.dup2(log.fileno(), 2)
        from gputop_tracer.main import main

        code = main(arguments)
    except BaseException:  # a child that went on would be a second bench
        traceback.print_exc()
    finally:
        os._exit(code)


@cache
def _libraries() -> None:
    """What every trace imports, as ``tracing.run`` would have it: no GPU, no network."""
    os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1")
    import peft  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401

    import gputop_tracer.model_trace  # noqa: F401
