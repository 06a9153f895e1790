"""Programs run bare and under ``gputop run``: what a user could tell apart, to the byte.

    python bench/bare_against_gputop.py [NAME ...] [--jobs 2]

Compared: stdout, stderr (without the lines that gputop adds at its end), exit status, and every
file that the program left in its folder. Prints one line a difference and, last, the counts as
JSON. Exit code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.bare import data_and_ranks, loops, python

_LIMIT_S = 180


class Outcome(NamedTuple):
    """What a program showed."""

    stdout: bytes
    stderr: bytes
    status: int
    files: dict[str, str]


def programs() -> dict[str, str]:
    """Source of each program by its name."""
    return {
        f"{module.__name__.rpartition('.')[2]}/{name}": module.PRELUDE + source + "\n"
        for module in (loops, data_and_ranks, python)
        for name, source in module.SCRIPTS.items()
    }


def outcome(name: str, source: str, launcher: list[str], scratch: Path) -> Outcome:
    """Run the program in a folder of its own, whose path is the same for both ways of
    running it.
    """
    folder = scratch / "work"
    folder.mkdir(parents=True)
    script = folder / "program.py"
    script.write_text(source)
    words = [
        *launcher,
        sys.executable,
        str(script),
        *python.ARGUMENTS.get(name.rpartition("/")[2], []),
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GPUTOP_RUNS_DIR": str(scratch.parent / "runs"),
    }
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment,
        input=python.STANDARD_INPUT,
        capture_output=True,
        timeout=_LIMIT_S,
    )
    files = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    return Outcome(done.stdout, done.stderr, done.returncode, files)


def differences(bare: Outcome, watched: Outcome) -> list[str]:
    """What differs, a line each."""
    stderr = without_own_words(watched.stderr)
    found = []
    if bare.stdout != watched.stdout:
        found.append(f"stdout: {_first_difference(bare.stdout, watched.stdout)}")
    if bare.stderr not in (stderr, stderr[:-1]):
        found.append(f"stderr: {_first_difference(bare.stderr, stderr)}")
    if status(bare.status) != status(watched.status):
        found.append(f"exit status: {bare.status} and {watched.status}")
    if bare.files != watched.files:
        names = {
            n
            for n in bare.files.keys() | watched.files.keys()
            if bare.files.get(n) != watched.files.get(n)
        }
        found.append(f"files: {sorted(names)}")
    return found


def status(code: int) -> int:
    """A shell's number of an exit status: 128 + n after signal n."""
    return 128 - code if code < 0 else code


def without_own_words(stderr: bytes) -> bytes:
    """The command's part of stderr: gputop's own lines come last."""
    begin = stderr.find(b"\ngputop: ")
    if stderr.startswith(b"gputop: "):
        return b""
    return stderr if begin < 0 else stderr[: begin + 1]


def _first_difference(bare: bytes, watched: bytes) -> str:
    at = next(
        (i for i, (a, b) in enumerate(zip(bare, watched, strict=False)) if a != b),
        min(len(bare), len(watched)),
    )
    start = max(at - 40, 0)
    return (
        f"at byte {at} of {len(bare)} and {len(watched)}: {bare[start : at + 60]!r} and "
        f"{watched[start : at + 60]!r}"
    )


def compare(name: str, source: str) -> list[str]:
    """Run one program both ways."""
    with tempfile.TemporaryDirectory(prefix="bare") as folder:
        scratch = Path(folder)
        try:
            bare = outcome(name, source, [], scratch / "a")
            watched = outcome(
                name,
                source.replace(str(scratch / "a"), str(scratch / "b")),
                [sys.executable, "-m", "gputop", "run", "--headless", "--"],
                scratch / "b",
            )
        except subprocess.TimeoutExpired as error:
            return [f"ran over {error.timeout} s"]
        bare = Outcome(*[_same_paths(part, scratch) for part in bare[:2]], *bare[2:])
        watched = Outcome(*[_same_paths(part, scratch) for part in watched[:2]], *watched[2:])
        return differences(bare, watched)


def _same_paths(text: bytes, scratch: Path) -> bytes:
    for side in (b"/a/work", b"/b/work"):
        text = text.replace(str(scratch).encode() + side, b"FOLDER")
    return text


def main() -> int:
    """Compare all programs, or those named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    chosen = {
        n: s
        for n, s in programs().items()
        if not options.names or any(w in n for w in options.names)
    }
    different = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        compared = {pool.submit(compare, name, source): name for name, source in chosen.items()}
        for future in as_completed(compared):
            lines = future.result()
            different += bool(lines)
            for line in lines:
                print(f"{compared[future]}: {line}", flush=True)
    print(
        json.dumps(
            {"programs": len(chosen), "same": len(chosen) - different, "different": different}
        )
    )
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
