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

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from agent_support import run_plain, run_script

TRAINING = Path(__file__).parent / "nan_training.py"


def main(words: list[str]) -> None:
    """All cases, or those that are named."""
    cases = [BY_NAME[word] for word in words] or [*NAN, *CLEAN]
    bare, default, watched = (results(cases, option) for option in (None, "", "--watch-numerics"))
    print("| case | what is so | without | --watch-numerics | operation | equal losses |")
    print("|---|---|---|---|---|---|")
    for case in cases:
        printed = {found[case.name][0] for found in (bare, default, watched)}
        seen = watched[case.name][1]
        print(
            f"| {case.name} | {_expected(case)} | {_answer(case, default[case.name][1])} "
            f"| {_answer(case, seen)} | {(seen or {}).get('operation', '')} "
            f"| {'yes' if len(printed) == 1 else 'NO'} |"
        )
    print()
    for name, found in (("without", default), ("with --watch-numerics", watched)):
        nan = [is_right(case, found[case.name][1]) for case in cases if case.layer is not None]
        clean = [found[case.name][1] is None for case in cases if case.layer is None]
        equal = [found[case.name][0] == bare[case.name][0] for case in cases]
        print(
            f"{name}: layer right {sum(nan)} of {len(nan)}, clean runs silent {sum(clean)} of "
            f"{len(clean)}, losses equal to the bit {sum(equal)} of {len(equal)}"
        )


Result = tuple[str, dict[str, Any] | None]


def results(cases: list[Case], option: str | None) -> dict[str, Result]:
    """What each training printed, and the first origin told; ``option`` of None is the bare
    command.

    Those of one process run in children of one process, with the guest alone and no recorder.
    """
    single = [case.name for case in cases if case.how != "ranks"]
    found = of_children(single, option) if single else {}
    for case in cases:
        if case.how == "ranks":
            found[case.name] = of_ranks(case.name, option)
    return found


def of_children(names: list[str], option: str | None) -> dict[str, Result]:
    """Trainings of one process each."""
    command = [str(TRAINING), *names]
    if option is None:
        done = run_plain(command, timeout=240)
        events: list[list[dict[str, Any]]] = [[] for _ in names]
    else:
        watched = {"GPUTOP_WATCH_NUMERICS": "1"} if option else {}
        done = run_script(command, timeout=240, **watched)
        events = [guest.of_type("nan_origin") for guest in done.guests]
    found = {}
    for name, told in zip(names, events, strict=True):
        found[name] = _lines(done.stdout, name), origin(told)
    return found


def of_ranks(name: str, option: str | None) -> Result:
    """A training of two ranks, bare or under ``gputop run``."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launcher, str(TRAINING), name]
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        if option is not None:
            gputop = [sys.executable, "-m", "gputop", "run", "--headless", "--run-dir"]
            command = [*gputop, str(run_dir), *([option] if option else []), "--", *command]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=240, check=True
        )
        events = [] if option is None else RunRecord.open(run_dir).events("nan_origin")
    return _lines(done.stdout, name), origin(events)


def _lines(printed: str, name: str) -> str:
    return "\n".join(sorted(line for line in printed.splitlines() if line.startswith(name + " ")))


def origin(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The first origin: that of a rank whose own gradients were not finite comes before one that
    met the sum of them.
    """
    return min(
        events, key=lambda e: (e["direction"] in ("reduced", "gone"), e["step"]), default=None
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
