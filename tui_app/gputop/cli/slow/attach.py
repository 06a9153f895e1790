"""``gputop attach RUN``: the live screen on a run that is already going."""

from __future__ import annotations

from gputop.cli.errors import cli_errors
from gputop.cli.notices import notice, notice_goes_on
from gputop.cli.parsing import Parser
from gputop.cli.records import find_readable
from gputop.cli.terminal import need_terminal, show
from gputop_probes.runs import shell_name

_END_WITHIN_S = 5.0


def execute(words: list[str]) -> int:
    """Attach to a run; where its recorder is gone, a new one takes the run up again first."""
    options = parser().parse_args(words)
    path = find_readable(options.run)
    if not options.headless:
        need_terminal(f"gputop attach --headless {options.run}")
    from gputop_probes.launch import StartError, adopt, attach

    with cli_errors(StartError):
        adopted = adopt(path)
        handle = attach(path)
    if adopted:
        notice("the recorder of this run was gone; a new one has taken it up")
    if options.headless:
        return 0
    from gputop.app import Source
    from gputop.control import RunControl

    result = show(Source(path, "live", RunControl(handle)))
    if result.still_running:
        notice_goes_on(shell_name(path))
    else:
        from gputop.cli.slow.summary import print_summary

        handle.wait(_END_WITHIN_S)  # the last lines of the record are its recorder's
        print_summary(path)
    return 128 + result.signal if result.signal else 0


def parser() -> Parser:
    """Options of the command."""
    parser = Parser("attach", "Watch a run that is already going.", usage="gputop attach [RUN]")
    parser.add_run()
    parser.add_argument(
        "--headless", action="store_true", help="only see to it that a recorder follows the run"
    )
    return parser
