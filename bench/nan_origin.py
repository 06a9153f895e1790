"""Where a NaN came from, in trainings whose answer is known: ``python bench/nan_origin.py [CASE
...]``, one table.

Each case runs bare, with ``gputop run`` and with ``gputop run --watch-numerics``. A layer is right
where the first origin that the ranks told is the case's. Losses and random numbers have to be those
of the bare run, to the bit.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from nan_cases import BY_NAME, CLEAN, NAN, Case

from gputop_probes.record.reader import RunRecord

TRAINING = Path(__file__).parent / "nan_training.py"


def main(words: list[str]) -> None:
    """All cases, or those that are named."""
    cases = [BY_NAME[word] for word in words] or [*NAN, *CLEAN]
    print("| case | layer | next step | --watch-numerics | operation | equal losses |")
    print("|---|---|---|---|---|---|", flush=True)
    right = {"": 0, "--watch-numerics": 0}
    silent, equal = 0, 0
    for case in cases:
        bare, _ = train(case, None)
        default, found = train(case, "")
        watched, seen = train(case, "--watch-numerics")
        is_equal = bare == default == watched != ""
        equal += is_equal
        right[""] += case.layer is not None and is_right(case, found)
        right["--watch-numerics"] += case.layer is not None and is_right(case, seen)
        silent += case.layer is None and not found and not seen
        print(
            f"| {case.name} | {_expected(case)} | {_answer(case, found)} | {_answer(case, seen)} "
            f"| {(seen or {}).get('operation', '')} | {'yes' if is_equal else 'NO'} |",
            flush=True,
        )
    nan = sum(case.layer is not None for case in cases)
    print(
        f"\nlayer right with --watch-numerics {right['--watch-numerics']} of {nan}, without "
        f"{right['']} of {nan}; clean runs silent {silent} of {len(cases) - nan}; losses equal to "
        f"the bit {equal} of {len(cases)}"
    )


def train(case: Case, option: str | None) -> tuple[str, dict[str, Any] | None]:
    """What a training printed, and the first origin told; ``option`` of None is the bare command."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(TRAINING), case.name]
    if case.how == "ranks":
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
            *("--master-port=0", str(TRAINING), case.name),
        ]
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        if option is not None:
            gputop = [sys.executable, "-m", "gputop", "run", "--headless", "--run-dir"]
            options = [option] if option else []
            command = [*gputop, str(run_dir), *options, "--", *command]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
        printed = "\n".join(sorted(line for line in done.stdout.splitlines() if "[" in line))
        if done.returncode:
            print(done.stderr[-2000:], file=sys.stderr)
        return printed, None if option is None else origin(run_dir)


def origin(run_dir: Path) -> dict[str, Any] | None:
    """The first origin in a record: that of a rank whose own gradients were not finite comes before
    one that met the sum of them.
    """
    events = RunRecord.open(run_dir).events("nan_origin")
    return min(
        events, key=lambda e: (e["step"], e["direction"] in ("reduced", "gone")), default=None
    )


def is_right(case: Case, found: dict[str, Any] | None) -> bool:
    """Whether the layer is the case's; for a batch that is bad, that it is said to be the batch."""
    if found is None:
        return False
    direction = re.fullmatch(case.direction, found["direction"])
    return bool(direction) and (case.direction == "input" or found.get("layer") == case.layer)


def _expected(case: Case) -> str:
    if case.layer is None:
        return "none"
    return "the batch" if case.direction == "input" else f"{case.layer}, {case.direction}"


def _answer(case: Case, found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    mark = "" if is_right(case, found) else "**"
    between = found.get("between")
    place = found.get("layer") or "(model)"
    place += f" [{between[0]} .. {between[1]}]" if between else ""
    return f"{mark}{place}, {found['direction']}, step {found['step']}{mark}"


if __name__ == "__main__":
    main(sys.argv[1:])
