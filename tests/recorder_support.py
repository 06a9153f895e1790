"""A front process without the command line, children that speak the wire without torch, and ways to
wait.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gputop_agent import wire
from gputop_probes import locations
from gputop_probes.record import layout
from gputop_probes.record.files import json_or_empty

ROOTS = [str(Path(__file__).parents[1] / name) for name in ("probes", "tests")]

FRONT = f"""
import json, sys
sys.path[:0] = {ROOTS!r}
from gputop_probes import launch
try:
    handle = launch.start(launch.RunSpec(**json.loads(sys.argv[1])))
except launch.StartError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
while (code := handle.wait(0.03)) is None:
    pass
handle.pass_on_output()
sys.exit(code)
"""

FRONT_OF_ARGUMENTS = f"""
import pathlib, sys
sys.path[:0] = {ROOTS!r}
from gputop_probes import launch
handle = launch.start(launch.RunSpec(sys.argv[2:], pathlib.Path(sys.argv[1]), headless=True))
code = handle.wait()
handle.pass_on_output()
sys.exit(code)
"""

SPEAKER = f"""
import json, os, socket, struct, sys, time
sys.path[:0] = {ROOTS!r}
from gputop_agent import wire

def now():
    return time.monotonic_ns() + int(os.environ[wire.ENV_CLOCK_OFFSET])

def connect():
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect(os.environ[wire.ENV_SOCKET])
    return link

def event(kind, **fields):
    return wire.MSG_EVENT + json.dumps(dict(fields, type=kind, t_ns=now())).encode()

def step(index, wall_ns=1_000_000):
    phases = [wall_ns // 10] * 10
    sizes = [wall_ns] + [0] * 8
    return wire.STEP.pack(
        now(), wall_ns, *phases, *sizes, 1.0, 1.0, 0, 0, 0, index, 1, 0, 0, 0, 0, 0, 0, 0)

def hello(link, **fields):
    link.send(event("hello", pid=os.getpid(), tid=os.getpid(), **fields))

def steps(link, count, start=0, pause=0.002):
    for index in range(start, start + count):
        link.send(wire.MSG_STEPS + step(index))
        time.sleep(pause)
"""


def environment(tmp_path: Path, **extra: str) -> dict[str, str]:
    """A user's environment whose runs directory is ours."""
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("GPUTOP_", "FORCE_COLOR", "CLICOLOR"))
    }
    return {**kept, "GPUTOP_RUNS_DIR": str(tmp_path / "runs"), **extra}


def front(
    tmp_path: Path, command: list[str], *, env: dict[str, str] | None = None, options=None, **popen
):
    """Start a front process that runs ``command`` headless; the record is in ``tmp_path/run``
    unless told otherwise.
    """
    spec = {
        "command": command,
        "headless": True,
        "run_dir": str(tmp_path / "run"),
        **(options or {}),
    }
    if spec["run_dir"] is not None:
        spec["run_dir"] = str(spec["run_dir"])
    source = FRONT.replace("RunSpec(**json.loads(sys.argv[1]))", "RunSpec(**_spec())")
    head = (
        "import json, pathlib, sys\n"
        "def _spec():\n"
        "    spec = json.loads(sys.argv[1])\n"
        "    spec['run_dir'] = spec['run_dir'] and pathlib.Path(spec['run_dir'])\n"
        "    return spec\n"
    )
    streams = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        **popen,
    }
    return subprocess.Popen(
        [sys.executable, "-c", head + source, json.dumps(spec)],
        env=environment(tmp_path, **(env or {})),
        cwd=tmp_path,
        **streams,
    )


def run(
    tmp_path: Path, command: list[str], timeout: float = 60, **keywords
) -> tuple[int, str, str]:
    """Run a command to its end. Returns exit code, forwarded stdout and stderr."""
    process = front(tmp_path, command, **keywords)
    out, err = process.communicate(timeout=timeout)
    return process.returncode, (out or b"").decode(), (err or b"").decode()


def python(source: str, *arguments: str) -> list[str]:
    """A command that runs Python source."""
    return [sys.executable, "-c", source, *arguments]


def speaker(body: str) -> list[str]:
    """A command that speaks the wire: ``body`` may use ``connect``, ``hello``, ``steps`` and
    ``event``.
    """
    return python(SPEAKER + body)


def host_dir(run_dir: Path) -> Path:
    return layout.host_dir(run_dir, locations.host_name())


def state(run_dir: Path) -> dict[str, Any]:
    return json_or_empty(host_dir(run_dir) / layout.STATE_FILE)


def output(run_dir: Path) -> str:
    """What the command has written so far."""
    path = host_dir(run_dir) / "output.log"
    return path.read_text() if path.exists() else ""


def events(run_dir: Path, *kinds: str) -> list[dict[str, Any]]:
    path = host_dir(run_dir) / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [item for item in map(json.loads, lines) if not kinds or item["type"] in kinds]


def step_indices(run_dir: Path, rank: int = 0) -> list[int]:
    """Index of every step record of a rank, in the order written."""
    path = layout.rank_file(run_dir, "steps", rank)
    if not path.exists():
        return []
    place = [name for name, _ in wire.STEP_FIELDS].index("step")
    raw = path.read_bytes()
    return [
        fields[place]
        for fields in wire.STEP.iter_unpack(raw[: len(raw) // wire.STEP.size * wire.STEP.size])
    ]


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for a condition and return its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return value
