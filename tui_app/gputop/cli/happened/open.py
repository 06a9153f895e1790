"""``gputop open RUN``: replay a record through the same screens; alone, choose one."""

from __future__ import annotations

from gputop.cli.happened.evidence import evidence_at
from gputop.cli.parsing import Parser
from gputop.cli.records import find_readable
from gputop.cli.terminal import need_terminal, show


def execute(words: list[str]) -> int:
    """Open one run; a run that still goes on is followed."""
    options = parser().parse_args(words)
    if options.run is None:
        need_terminal("gputop runs")
        return _pick()
    evidence = evidence_at(options.run)
    if evidence is not None:
        need_terminal(f"gputop report {options.run}")
        if evidence.memory is not None:
            from gputop.app.memory import run_memory

            run_memory(evidence.memory)
            return 0
        from gputop.app.evidence import run_evidence

        run_evidence(evidence)
        return 0
    path = find_readable(options.run)
    need_terminal(f"gputop report {options.run}")
    from gputop.app import Source

    show(Source(path, "replay", None))
    return 0


def _pick() -> int:
    """The list of runs, and each run that is opened from it, until the user leaves."""
    from gputop.app import Source
    from gputop.app.runs import run_runs

    path = run_runs()
    while path is not None:
        if not show(Source(path, "replay", None, picked=True)).to_runs:
            return 0
        path = run_runs(path)
    return 0


def parser() -> Parser:
    """Options of the command."""
    parser = Parser("open", "Replay a run through the same screens.", usage="gputop open [RUN]")
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="a run's name or directory, `last`, `last~1`; none: choose one from the list",
    )
    return parser
