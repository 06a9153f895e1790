"""``gputop run COMMAND``: start the training first, then everything else."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gputop import __version__
from gputop.cli.errors import CliError, silence_stdout
from gputop.cli.notices import notice, notice_goes_on
from gputop.cli.parsing import Parser, split_command
from gputop.cli.quantities import positive_seconds
from gputop.cli.slow.lastly import end_in_child, run_without_us
from gputop.cli.terminal import has_room_to_draw, has_terminal, screen_failure

if TYPE_CHECKING:
    from gputop.cli.slow.beside import Beside
    from gputop.cli.slow.bursts import WhenSteady
    from gputop_probes.launch import RunHandle
    from gputop_probes.record.reader import RunRecord

_WITH_VALUE = {
    "--run-dir",
    "--name",
    "--timeout",
    "--hang-seconds",
    "--profile-steps",
    "--log-mb",
    "--publish",
    "--notify",
}
_USAGE = "gputop run [options] [--] COMMAND [ARG ...]"


def execute(words: list[str]) -> int:
    """Start the command, watch it, and return its own exit code."""
    return watched(words)[0]


def watched(words: list[str], output_to_stderr: bool = False) -> tuple[int, Path]:
    """The same, and where the record of it is; stdout can be left to whoever asks."""
    ours, command = split_command(words, _WITH_VALUE)
    options = parser().parse_args(ours)
    options.output_to_stderr = output_to_stderr or options.json
    if not command:
        raise CliError("no command: say what to run, for example `gputop run python train.py`")
    live = not (options.headless or options.calibrate) and has_terminal()
    published = _published(options)
    handle = _start(command, options, live)
    beside = _beside(handle, published or _published_by_settings())
    burst = _burst(handle, options)
    if live:
        code, left_early = _watch_live(handle, options)
    else:
        code, left_early = (_watch_headless(handle, options), False)
    if left_early:
        return code, handle.run_dir
    end_in_child(lambda: _print_end(handle, options, burst), handle.run_dir)
    if live and code and not handle.stopped_by_us:
        _leave_last_words(handle)
    if beside is not None:
        beside.finish()
    return 0 if handle.stopped_by == "calibrate" else code, handle.run_dir


def parser() -> Parser:
    """Options of the command."""
    parser = Parser("run", "Start a training command unchanged and watch it.", usage=_USAGE)
    _add_command_options(parser)
    _add_measuring_options(parser)
    _add_publishing_options(parser)
    return parser


def _add_command_options(parser: Parser) -> None:
    """How the command runs, and what is recorded of it where."""
    parser.add_argument(
        "--headless",
        action="store_true",
        help="no live screen; chosen by itself without a terminal",
    )
    parser.add_argument("--pty", action="store_true", help="give the command a pseudo-terminal")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="where the record goes")
    parser.add_argument("--name", help="name of the run (default: time and script)")
    parser.add_argument(
        "--json", action="store_true", help="print the report as JSON on stdout at the end"
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="stop the command once its figures are stable, then judge",
    )
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        metavar="S",
        help="with --calibrate: stop after this long at the latest",
    )
    parser.add_argument(
        "--log-mb",
        type=_whole,
        metavar="MB",
        help="keep so much of the output in the record (default 1024; 0: all)",
    )
    parser.add_argument(
        "--hang-seconds",
        type=positive_seconds,
        metavar="S",
        help="silence that counts as a hang (default 30)",
    )


def _add_measuring_options(parser: Parser) -> None:
    """What is measured beyond the steps."""
    parser.add_argument(
        "--count-flops",
        action="store_true",
        help="count the operations of one step, for MFU (that step is slower)",
    )
    parser.add_argument(
        "--layers",
        action="store_true",
        help="watch single steps layer by layer from the start (gputop layers)",
    )
    parser.add_argument(
        "--watch-numerics",
        action="store_true",
        help="watch each step, to name where a NaN or a jump "
        "of the loss began; steps take some 10 to 20 %% longer",
    )
    parser.add_argument(
        "--memory-history",
        action="store_true",
        help="record what CUDA's allocator does; a snapshot on lack of memory (gputop memory)",
    )
    parser.add_argument(
        "--profile-steps",
        type=_steps,
        metavar="N",
        help="take N steps under torch.profiler once the run is steady",
    )


def _add_publishing_options(parser: Parser) -> None:
    """Who else is told."""
    parser.add_argument(
        "--publish",
        action="append",
        default=[],
        metavar="NAME=TARGET",
        help="hand the figures on from a process beside it, as `gputop publish` does",
    )
    parser.add_argument(
        "--notify",
        action="append",
        default=[],
        metavar="URL|COMMAND",
        help="say the first critical finding, a hang and the end there",
    )


def _steps(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r}: between 1 and 100 steps can be profiled")
    return int(text)


def _whole(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def _start(command: list[str], options: argparse.Namespace, live: bool) -> RunHandle:
    from gputop_probes.launch import RecordingImpossible, RunSpec, StartError, start

    if options.timeout and not options.calibrate:
        raise CliError("--timeout belongs to --calibrate; use timeout(1) to bound a whole run")
    if options.count_flops:
        os.environ["GPUTOP_COUNT_FLOPS"] = "1"  # the command inherits it
    if options.layers:
        os.environ["GPUTOP_LAYERS"] = "1"
    if options.memory_history:
        os.environ["GPUTOP_MEMORY_HISTORY"] = "1"
    if options.watch_numerics:
        os.environ["GPUTOP_WATCH_NUMERICS"] = "1"
    spec = RunSpec(
        command=command,
        run_dir=options.run_dir,
        name=options.name,
        headless=not live,
        output_to_stderr=options.output_to_stderr,
        log_mb=options.log_mb,
        pty=options.pty,
        hang_s=options.hang_seconds,
        gputop_version=__version__,
    )
    try:
        return start(spec, _load_for_the_screen if live else None)
    except RecordingImpossible as error:
        run_without_us(
            command, f"{error}: the command runs without gputop", options.output_to_stderr
        )
    except StartError as error:
        raise CliError(str(error), error.exit_code) from None


def _load_for_the_screen() -> None:
    """Imports of screen and handle while the recorder takes its time to start the command."""
    import asyncio  # noqa: F401
    import ctypes  # noqa: F401


def _published(options: argparse.Namespace) -> list[str]:
    """Options of ``gputop publish``."""
    if not options.publish and not options.notify:
        return []
    from gputop.cli.slow.beside import options_of

    return options_of(options.publish, options.notify)


def _published_by_settings() -> list[str]:
    """The same, of ``notifications.to`` in the settings."""
    from gputop import settings

    chosen = settings.load()
    for trouble in chosen.trouble:
        notice(trouble)
    words = []
    for target in chosen.entries("notifications.to"):
        from gputop.publish.targets import refused

        if why := refused("notify", target):
            notice(f"notifications.to {target}: {why}")
        else:
            words.append(f"--notify={target}")
    return words


def _beside(handle: RunHandle, words: list[str]) -> Beside | None:
    if not words:
        return None
    from gputop.cli.slow.beside import start

    return start(handle.run_dir, words)


def _burst(handle: RunHandle, options: argparse.Namespace) -> WhenSteady | None:
    if options.profile_steps is None:
        return None
    from gputop.cli.slow.bursts import WhenSteady

    return WhenSteady(handle.run_dir, options.profile_steps)


def _watch_live(handle: RunHandle, options: argparse.Namespace) -> tuple[int, bool]:
    """Exit code, and whether the command was left running."""
    from gputop.app import Source, run_app
    from gputop.control import RunControl

    if not has_room_to_draw():
        notice("no room for the live screen under this limit of memory (ulimit -v)")
        return _watch_headless(handle, options), False
    source = Source(handle.run_dir, "live", RunControl(handle))
    try:
        result = run_app(source)
    except Exception as error:
        with suppress(OSError):  # the terminal may be gone
            notice(f"{screen_failure(source, error)}; going on without")
        return _watch_headless(handle, options), False
    if result.action == "detached" and result.signal in (None, signal.SIGHUP):
        with suppress(OSError):  # the terminal may be gone
            notice_goes_on(handle.run_dir.name)
        return 128 + result.signal if result.signal else 0, True
    if result.still_running and result.signal is None:
        # stopped before there was a screen that showed its output
        return _watch_headless(handle, options), False
    code = handle.wait(None)
    assert code is not None
    return code, False


def _leave_last_words(handle: RunHandle) -> None:
    """The traceback of a command that failed, as it would stand in the terminal without the live
    screen: the last thing before the prompt.
    """
    from gputop.output.last_words import last_words

    for line in last_words(handle.host_dir):
        print(line, file=sys.stderr)


def _watch_headless(handle: RunHandle, options: argparse.Namespace) -> int:
    from gputop.cli.slow.headless import watch

    return watch(handle, calibrate=options.calibrate, timeout_s=options.timeout)


def _remember(record: RunRecord) -> None:
    """What it measured, for the next estimate of this model."""
    from gputop.feed.prediction import remember_run

    try:
        text = remember_run(record)
    except Exception as error:
        text = f"what this run measured was not kept ({type(error).__name__}: {error})"
    if text:
        notice(text)


def _say_calibrated(record: RunRecord, options: argparse.Namespace) -> None:
    if options.calibrate:
        from gputop.cli.slow.calibrated import outcome

        notice(outcome(record))


def _print_end(handle: RunHandle, options: argparse.Namespace, burst: WhenSteady | None) -> None:
    """Summary on stderr, report on stdout; a failure must not hide the command's exit code."""
    try:
        from gputop.cli.slow.summary import print_report_json, print_summary

        report = print_summary(handle.run_dir)
        if report is not None:
            _remember(report.record)
            _say_calibrated(report.record, options)
        if burst is not None:
            burst.print_result()
        if options.json and report is not None:
            print_report_json(report)
    except BrokenPipeError:
        silence_stdout()
    except Exception as error:
        why = (str(error).strip().splitlines() or [""])[0]
        notice(f"the summary failed ({type(error).__name__}: {why})")
        notice(f"the record is {handle.run_dir}")
