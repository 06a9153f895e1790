"""``gputop profile RUN``: a few steps of a running training under torch.profiler."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from gputop.cli.errors import CliError
from gputop.cli.notices import notice
from gputop.cli.parsing import Parser
from gputop.cli.records import find_readable
from gputop.cli.slow import bursts
from gputop_analysis.text import counted

_POLL_S = 0.1


def execute(words: list[str]) -> int:
    """Ask for the profile, wait for all ranks, print the analysis; the trace stays in the run."""
    options = parser().parse_args(words)
    if not 1 <= options.n <= 100:
        raise CliError(f"-n {options.n}: between 1 and 100 steps can be profiled at a time")
    run_dir = find_readable(options.run)
    asked_ns = time.time_ns()
    ranks = bursts.ask(run_dir, options.n, options.rank)
    notice(f"profiling the next {counted(options.n, 'step')} of {_ranks(ranks)}")
    events = _wait(run_dir, asked_ns, ranks, options.timeout)
    if options.json:
        print(json.dumps([_data(event) for event in events], indent=2))
    else:
        from gputop.cli.printing import report_width

        print("\n".join(bursts.result_lines(events, report_width())))
    return 1 if any(event.get("error") for event in events) else 0


def parser() -> Parser:
    """Options of the command."""
    usage = "gputop profile [RUN] [-n STEPS] [--rank R] [--json]"
    parser = Parser(
        "profile", "Take a few steps of a running training under torch.profiler.", usage=usage
    )
    parser.add_run()
    parser.add_argument(
        "-n",
        "--steps",
        dest="n",
        type=int,
        default=3,
        metavar="STEPS",
        help="how many steps (default 3)",
    )
    parser.add_argument("--rank", type=int, metavar="R", help="only this rank (default: all)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="S",
        help="wait so long at most (default 120)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the analyses as JSON, one entry a rank"
    )
    return parser


def _wait(run_dir: Path, asked_ns: int, ranks: int, timeout_s: float) -> list[dict[str, Any]]:
    from gputop_probes.launch import attach
    from gputop_probes.record.reader import RunRecord

    record, handle = RunRecord.open(run_dir), attach(run_dir)
    deadline = time.monotonic() + timeout_s
    while True:
        # asked before the record is read: what came last is then in it
        ended = handle.wait(0) is not None
        record.refresh()
        events = bursts.profiles(record, asked_ns)
        if len(events) >= ranks or (ended and events):
            return events
        if ended:
            raise CliError("the run ended before its next steps were profiled", exit_code=1)
        if time.monotonic() > deadline:
            raise CliError(
                f"no profile after {timeout_s:g} s: is it making steps? --timeout gives it longer",
                exit_code=1,
            )
        time.sleep(_POLL_S)


def _data(event: dict[str, Any]) -> dict[str, Any]:
    from gputop_analysis.traces import TraceError, analyse_trace
    from gputop_analysis.traces.text import as_dict

    data = {
        name: event.get(name)
        for name in ("rank", "steps", "first_step", "error", "trace_path", "table")
    }
    try:
        data["trace"] = as_dict(analyse_trace(event["trace_path"]))
    except (TraceError, KeyError, TypeError):
        data["trace"] = None
    return data


def _ranks(count: int) -> str:
    return counted(count, "rank")
