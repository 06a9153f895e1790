"""``gputop check --baseline B -- CMD``: is the command slower than before, as a test for CI."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.happened.diff import fraction
from gputop.cli.parsing import Parser, split_command
from gputop.cli.printing import writing
from gputop.cli.quantities import positive_seconds
from gputop_analysis.text import signed_percent
from gputop_probes.record import layout

if TYPE_CHECKING:
    import numpy as np

    from gputop.checking import Side, Work
    from gputop_analysis.paired import PairedChange
    from gputop_analysis.stats import Interval

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WITH_VALUE = {"--baseline", "--threshold", "--time", "--md", "--json"}
_USAGE = "gputop check --baseline RUN|FILE|DIR [--threshold 3%] [--time S] -- CMD"
_WORDS = {
    "slower": "slower: surely by more than the threshold",
    "slower at all": "slower: surely, and likelier than not by more than the threshold",
    "not slower": "not slower: surely not by more than the threshold",
    "undecided": "undecided: the noise of this machine leaves both open",
}


def execute(words: list[str]) -> int:
    """Measure both in turns, print the verdict. Returns 1 where CMD is surely slower."""
    ours, command = split_command(words, _WITH_VALUE)
    options = parser().parse_args(ours)
    if not command:
        raise CliError("no command: say what to judge after --, as `-- python train.py`")
    from gputop.checking import CheckError, Side, Work, rounds

    for path in (options.md, options.json):
        _look_writable(path)
    work = Work(command, Path.cwd())
    baseline = _baseline(options.baseline, work)
    for judged_or_base in (baseline, work):
        _look_startable(judged_or_base)
    with (
        cli_errors(CheckError),
        tempfile.TemporaryDirectory(prefix="gputop-check-") as folder,
    ):
        a, b = Side(baseline, Path(folder), "baseline"), Side(work, Path(folder), "command")
        with _ended_with_us(a, b):
            measured = rounds(a, b, time.monotonic() + options.time)
            judged = _measured(measured, options.threshold, options.time)
    text = markdown(judged, options.threshold, baseline, work)
    print(text, end="")
    if options.md is not None:
        _write(options.md, text)
    if options.json is not None:
        _write(options.json, json.dumps(as_data(judged, options.threshold, baseline), indent=2))
    return 1 if judged.verdict == "slower" else 0


@contextlib.contextmanager
def _ended_with_us(*sides: Side) -> Iterator[None]:
    """End both commands whatever ends us, also a second signal meanwhile: one of them is stopped
    and would stay so for ever.
    """
    before = {number: signal.getsignal(number) for number in _ENDING}
    for number in _ENDING:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
        for side in sides:
            side.kill()
        for side in sides:
            side.end()
        for number in _ENDING:
            signal.signal(number, before[number])


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "check",
        "Judge whether a command got slower: it and its baseline run in turns until the interval "
        "decides. Exit code 1 only where it is surely slower.",
        usage=_USAGE,
    )
    parser.example = "gputop check --baseline last -- python train.py"
    parser.add_argument(
        "--baseline",
        required=True,
        metavar="RUN|FILE|DIR",
        help="a run, whose command is run again where it ran; "
        "a directory, another checkout, in which CMD is run; "
        'or a JSON file {"command": [...], "cwd": "..."}, as --json writes it',
    )
    parser.add_argument(
        "--threshold",
        type=fraction,
        default=0.03,
        metavar="P",
        help="slowdown from which on it counts: 3%% or 0.03 (default 3%%)",
    )
    parser.add_argument(
        "--time",
        type=positive_seconds,
        default=120.0,
        metavar="S",
        help="measure for so long (default 120)",
    )
    parser.add_argument(
        "--md", type=Path, metavar="FILE", help="write the Markdown, for a pull request"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON")
    return parser


def _baseline(name: str, work: Work) -> Work:
    """What is run as the baseline.

    Raises:
        CliError: there is nothing that could be run.
    """
    path = Path(name)
    if path.is_dir() and not (path / layout.MANIFEST_FILE).exists():
        return work._replace(cwd=path.resolve())
    if path.is_file():
        fields = _read(path)
    else:
        from gputop.cli.records import find_readable
        from gputop_probes.record.files import json_or_empty

        fields = json_or_empty(find_readable(name) / layout.MANIFEST_FILE)
    command, cwd = fields.get("command"), Path(str(fields.get("cwd", "")))
    if not isinstance(command, list) or not command or not all(isinstance(w, str) for w in command):
        raise CliError(f"{name} names no command: give a run, a checkout or what --json wrote")
    if not cwd.is_dir():
        raise CliError(f"{name} ran in {cwd}, which is not here: give a checkout as --baseline DIR")
    return work._replace(words=command, cwd=cwd)


def _read(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CliError(f"cannot read {path}: {error}") from None
    return fields if isinstance(fields, dict) else {}


def _look_startable(work: Work) -> None:
    """Say before anything is measured that a command cannot be started.

    Raises:
        CliError: there is no such program where it would run.
    """
    program = work.words[0]
    where = work.cwd / program if "/" in program else program
    if shutil.which(where) is None:
        quoted = ": write its words one by one, without quotes around"
        if " " not in program:
            quoted = ""
        raise CliError(f"no program {program!r} in {work.cwd} or on PATH{quoted}")


def _look_writable(path: Path | None) -> None:
    """The same of a file that the result is to be written to.

    Raises:
        CliError: it cannot be written.
    """
    if path is not None and (path.is_dir() or not os.access(path.resolve().parent, os.W_OK)):
        raise CliError(f"cannot write {path}: no file can be made there")


def _write(path: Path, text: str) -> None:
    with writing(path):
        path.write_text(text, encoding="utf-8")


def _measured(measured: Iterator[np.ndarray], threshold: float, limit_s: float) -> PairedChange:
    """Rounds until the interval decides or the time is up.

    The chance of an error is spent in proportion to the time, so that all looks together have it
    (alpha spending; Lan and DeMets 1983).
    """
    import numpy as np

    from gputop.checking import FEWEST_ROUNDS
    from gputop_analysis.paired import ERROR, judge, judge_last

    began, spent, before = time.monotonic(), 0.0, 0.0
    ratios, count = np.zeros((0, 2)), 0
    judged = judge(ratios, count, threshold)
    for count, more in enumerate(measured, 1):
        ratios = np.concatenate([ratios, more])
        if count < FEWEST_ROUNDS:
            continue
        before, spent = spent, min(1.0, (time.monotonic() - began) / limit_s)
        if spent == 1.0:
            break
        judged = judge(ratios, count, threshold, ERROR * (spent - before))
        if judged.verdict != "undecided":
            return judged
    # No round has room any more: the last look may spend what is left.
    return judge_last(ratios, count, threshold, ERROR * (1 - before))


def markdown(judged: PairedChange, threshold: float, baseline: Work, work: Work) -> str:
    """The verdict for a pull request."""
    columns = "interval | threshold | pairs of slices | starts of each"
    verdict = judged.verdict if judged.surely_beyond else "slower at all"
    lines = [
        f"### gputop check: {_WORDS[verdict]}",
        "",
        f"| step time | {columns} |",
        "|---|---|---|---|---|",
        f"| {signed_percent(judged.change.value)} without waits for a core "
        f"| {_between(judged.change)} "
        f"| {100 * threshold:.1f} % | {judged.pairs} | {judged.rounds} |",
        f"| {signed_percent(judged.clock.value)} by the clock | {_between(judged.clock)} | | | |",
        "",
        f"baseline `{' '.join(baseline.words)}` in `{baseline.cwd}`, judged "
        f"`{' '.join(work.words)}`: mean step of slices that lie beside each other in time",
        "",
    ]
    if judged.change == judged.clock:
        del lines[4]
    return "\n".join(lines)


def _between(change: Interval) -> str:
    return f"{signed_percent(change.low)} to {signed_percent(change.high)}"


def as_data(judged: PairedChange, threshold: float, baseline: Work) -> dict[str, Any]:
    """The same as plain values; ``command`` and ``cwd`` are the baseline's: the file is one."""
    change = judged.change
    return {
        "verdict": judged.verdict,
        "surely_beyond_threshold": judged.verdict == "slower" and judged.surely_beyond,
        "change": _number(change.value),
        "interval": [_number(change.low), _number(change.high)],
        "change_by_clock": _number(judged.clock.value),
        "interval_by_clock": [_number(judged.clock.low), _number(judged.clock.high)],
        "threshold": threshold,
        "pairs": judged.pairs,
        "rounds": judged.rounds,
        "command": baseline.words,
        "cwd": str(baseline.cwd),
    }


def _number(value: float) -> float | None:
    return round(value, 6) if value - value == 0 else None
