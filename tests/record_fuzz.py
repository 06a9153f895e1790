"""Damages records by chance, and says what a command made of them that it must not."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

COMMANDS = (
    ("report", "--json"),
    ("report",),
    ("report", "--md"),
    ("report", "--explain"),
    ("report", "--html", "{out}"),
    ("export", "--format", "json"),
    ("export", "--format", "csv"),
)
SECONDS = 60.0
"""That a command may take; the machine may be busy."""
_TIMES = (
    "step_time_p50_ms",
    "duration_s",
    "phases_mean_ms.forward",
    "phases_mean_ms.data",
    "steps_per_s",
)
_FAR = 10.0
"""Times the sound figure: further off is nonsense."""

Mutation = Callable[[Path, random.Random], str]


class TooSlow(BaseException):
    """A command took longer than it may. No Exception, so that nothing swallows it."""


# ---- damaging


def flip(run: Path, chance: random.Random) -> str:
    """Change single bits."""
    path = _file(run, chance)
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 1, 4, 64))):
        if data:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return f"flip in {path.relative_to(run)}"


def insert(run: Path, chance: random.Random) -> str:
    """Put bytes in between."""
    path = _file(run, chance)
    data, at = path.read_bytes(), 0
    at = chance.randrange(len(data) + 1)
    path.write_bytes(data[:at] + chance.randbytes(chance.choice((1, 7, 232, 5000))) + data[at:])
    return f"insert into {path.relative_to(run)} at {at}"


def append(run: Path, chance: random.Random) -> str:
    """Add bytes at the end."""
    path = _file(run, chance)
    with path.open("ab") as file:
        file.write(chance.choice((b"\0", b"\xff", b"{")) * chance.choice((1, 231, 232, 100_000)))
    return f"append to {path.relative_to(run)}"


def remove(run: Path, chance: random.Random) -> str:
    """Take bytes out."""
    path = _file(run, chance)
    data = path.read_bytes()
    begin = chance.randrange(len(data) + 1)
    path.write_bytes(data[:begin] + data[begin + chance.choice((1, 50, 232, 10_000)) :])
    return f"remove from {path.relative_to(run)}"


def cut(run: Path, chance: random.Random) -> str:
    """Cut the end off."""
    path = _file(run, chance)
    os.truncate(path, chance.randrange(path.stat().st_size + 1))
    return f"cut {path.relative_to(run)}"


def zero(run: Path, chance: random.Random) -> str:
    """Blank a part, as a file system does after a crash."""
    path = _file(run, chance)
    data = bytearray(path.read_bytes())
    begin = chance.randrange(len(data) + 1)
    end = min(len(data), begin + chance.choice((100, 4096, 1 << 20)))
    data[begin:end] = bytes(end - begin)
    path.write_bytes(data)
    return f"zeros in {path.relative_to(run)}"


def swap(run: Path, chance: random.Random) -> str:
    """Exchange two files."""
    one, other = _file(run, chance), _file(run, chance)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    return f"swap {one.relative_to(run)} and {other.relative_to(run)}"


def delete(run: Path, chance: random.Random) -> str:
    """Remove a file, or put something else into its place."""
    path = _file(run, chance)
    path.unlink()
    kind = chance.choice(("nothing", "directory", "pipe", "loop", "device", "socket"))
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        make_socket(path)
    return f"{kind} for {path.relative_to(run)}"


def retype(run: Path, chance: random.Random) -> str:
    """Put values of other types into the JSON."""
    path = chance.choice([one for one in _files(run) if one.suffix in (".json", ".jsonl")])
    lines = path.read_bytes().splitlines() if path.suffix == ".jsonl" else [path.read_bytes()]
    said = []
    for _ in range(chance.choice((1, 1, 10, 200))):
        place = chance.randrange(len(lines))
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(lines[place])
            said.append(_retype_one(value, chance))
            lines[place] = json.dumps(value).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")
    return f"retype in {path.relative_to(run)}: {said[:3]}"


MUTATIONS: tuple[Mutation, ...] = (
    flip,
    flip,
    insert,
    append,
    remove,
    cut,
    zero,
    swap,
    delete,
    retype,
    retype,
    retype,
)

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 10**400, -(10**30), 2**63, 1e308, float("nan"), float("inf"), "", "x",
    "\x1b]0;pwned\x07", "\ud800", "9" * 5000, "y" * 200_000, [], [None], [[]], [1, "a", {}], {},
    {"a": 1}, {"": None}, [[1]] * 40,
)  # fmt: skip


def damage(run: Path, seed: int) -> str:
    """One to three mutations of a record, by the seed."""
    chance = random.Random(seed)
    said = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        with contextlib.suppress(OSError):  # what an earlier one has put there is no file any more
            said.append(chance.choice(MUTATIONS)(run, chance))
    return "; ".join(said)


def make_socket(path: Path) -> None:
    """Leave a Unix socket's name at ``path``, however long it is."""
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def _retype_one(value: Any, chance: random.Random) -> str:
    """Change one value somewhere below."""
    if not isinstance(value, (dict, list)):  # by a change before this one
        return f"{str(value)[:40]!r} holds nothing"
    name = ""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return f"{name} was empty"
        key = chance.choice(keys)
        name += f".{key}"
        if isinstance(value[key], (dict, list)) and value[key] and chance.random() < 0.7:
            value = value[key]
            continue
        value[key] = chance.choice(VALUES)
        return f"{name}={str(value[key])[:40]!r}"


def _files(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*") if path.is_file() and path.suffix != ".lock")


def _file(run: Path, chance: random.Random) -> Path:
    return chance.choice(_files(run))


# ---- looking


def outcome(words: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command, run here.

    Raises:
        TooSlow: it took longer than it may.
        Exception: whatever the command let through.
    """
    from gputop.cli import main

    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")

    def ring(*_: Any) -> None:
        raise TooSlow(" ".join(words))

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(words)
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("utf-8"))  # type: ignore[attr-defined]
    return code, texts[0], texts[1]


def problems(
    run: Path, sound: dict[str, float], out: Path, other: Path | None = None
) -> Iterator[str]:
    """What the commands did with a record that they must not."""
    commands = [
        [*words[:1], str(run), *(w.format(out=out) for w in words[1:])] for words in COMMANDS
    ]
    commands += (
        [["diff", str(other), str(run)], ["diff", str(run), str(other), "--json"]] if other else []
    )
    for words in commands:
        began = time.monotonic()
        try:
            code, stdout, stderr = outcome(words)
        except TooSlow:
            yield f"{words[0]} {words[2:]}: over {SECONDS:.0f} s"
            continue
        except BaseException:
            yield f"{words[0]} {words[2:]}:\n{traceback.format_exc()[-1800:]}"
            continue
        said = f"{words[0]} {words[2:]} ({time.monotonic() - began:.1f} s)"
        foreign = [
            line for line in stderr.splitlines() if not line.startswith(("gputop: ", "wrote "))
        ]
        if code not in (0, 1, 2) or (code == 2 and not stderr) or foreign:
            yield f"{said}: exit {code}, {stderr[-300:]!r}"
        if "Warning" in stderr or "Traceback" in stderr:
            yield f"{said}: {stderr[-400:]!r}"
        if words[:1] == ["report"] and words[2:] == ["--json"] and code == 0:
            yield from nonsense(json.loads(stdout), sound)


def nonsense(data: dict[str, Any], sound: dict[str, float]) -> Iterator[str]:
    """Figures that neither the sound record nor the damage that is said explains."""
    found = figures(data)
    for name, value in found.items():
        if name.startswith(("budget.share", "goodput.share")) and not -1e-6 <= value <= 1 + 1e-6:
            yield f"{name} is {value}"
        if name.endswith(("_ms", "_s")) and value < 0 and not name.startswith("numerics"):
            yield f"{name} is {value}"
    if data["damage"] or data["steps"] == 0:
        return
    for name in _TIMES:
        usual, value = sound.get(name, 0.0), found.get(name, 0.0)
        if usual and not usual / _FAR <= value <= usual * _FAR:
            yield f"{name} is {value}, in the sound record {usual}, and no damage is said"


def figures(data: dict[str, Any]) -> dict[str, float]:
    """The numbers of a report by their dotted names."""
    from gputop_analysis.report.figures import numbers

    return {name: value for name, value in numbers(data) if value is not None}


def sound_figures(run: Path) -> dict[str, float]:
    """Of the record before it was damaged."""
    return figures(json.loads(outcome(["report", str(run), "--json"])[1]))


def damaged_copy(run: Path, folder: Path, seed: int) -> tuple[Path, str]:
    """A damaged copy of a record, and what was done to it."""
    copy = folder / f"run-{seed}"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    return copy, damage(copy, seed)
