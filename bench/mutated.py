"""Damaged recordings of other tools: each is judged or refused in one line, and nothing else.

    python bench/mutated.py [--each 500] [--large 20] [--seed 1] [-k WORD ...]

For each kind so many files with bytes changed, cut off or doubled; made-up files of every kind, and
recordings where ``GPUTOP_RECORDINGS`` names a folder, of those above 30 kB fewer. Counted are
crashes, messages of several lines, attempts to import or run anything (an audit hook), and the most
memory that was in use.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import resource
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("tests", "tests/analysis", "tui_app", "analysis")]
sys.path.append(str(ROOT / "probes"))

import test_evidence as made_up  # noqa: E402

from gputop_analysis.evidence import EvidenceError, gather  # noqa: E402
from gputop_analysis.evidence.text import as_text  # noqa: E402

_RUNS_SOMETHING = ("exec", "os.system", "subprocess.Popen", "pickle.find_class", "os.exec")
_WATCHED: list[str] = []
_LARGE = 30_000
_LIMIT_KIB = 1 << 21


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--each", type=int, default=500)
    parser.add_argument("--large", type=int, default=20, help="of a recording above 30 kB")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-k", nargs="*", default=[""], help="only names with one of these words")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        kinds = [*made_up.one_of_each(folder), *_recorded()]
        kinds = [kind for kind in kinds if any(word in kind[0] for word in options.k)]
        gather_all_once(folder, kinds)  # what is imported late is imported now
        sys.addaudithook(_watch)
        for name, sound in kinds:
            count = options.each if len(sound) < _LARGE else options.large
            outcomes = Counter(_try(folder / name, mutated(sound, rng)) for _ in range(count))
            told = ", ".join(f"{times} {outcome}" for outcome, times in sorted(outcomes.items()))
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            print(f"{name:<40} {told}; {most / 1024:,.0f} MiB at most so far", flush=True)
            wrong += count - outcomes["judged"] - outcomes["refused"]
            wrong += most > _LIMIT_KIB
    print(f"{wrong} wrong")
    return min(1, wrong)


def gather_all_once(folder: Path, kinds: list[tuple[str, bytes]]) -> None:
    for name, sound in kinds:
        _try(folder / name, sound)


def _recorded() -> list[tuple[str, bytes]]:
    folder = Path(os.environ.get("GPUTOP_RECORDINGS", ""))
    found = sorted(folder.rglob("*.gz")) if folder.name else []
    return [(path.name, path.read_bytes()) for path in found]


def mutated(sound: bytes, rng: random.Random) -> bytes:
    """A file with some bytes changed, a part cut off, or a part doubled; of a packed one mostly
    inside.
    """
    packed = sound.startswith(b"\x1f\x8b") and rng.random() < 0.8
    data = bytearray(gzip.decompress(sound) if packed else sound)
    for _ in range(rng.choice([1, 4, 30])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    turn = rng.randrange(4)
    at = rng.randrange(len(data))
    if turn == 0:
        del data[at:]
    elif turn == 1:
        data[at:at] = data[at : at + rng.randrange(1, 2000)]
    return gzip.compress(data, 1) if packed else bytes(data)


def _try(path: Path, data: bytes) -> str:
    """``judged``, ``refused``, or what went wrong."""
    path.write_bytes(data)
    _WATCHED.clear()
    try:
        as_text(gather(path), 80)
        outcome = "judged"
    except EvidenceError as error:
        outcome = "refused" if "\n" not in str(error) else "refused in several lines"
    except Exception as error:
        outcome = f"CRASHED: {error!r:.80}"
    return f"RAN SOMETHING: {_WATCHED[0]}" if _WATCHED else outcome


def _watch(event: str, _: tuple[object, ...]) -> None:
    if event in _RUNS_SOMETHING:
        _WATCHED.append(event)


if __name__ == "__main__":
    raise SystemExit(main())
