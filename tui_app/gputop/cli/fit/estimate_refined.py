"""An estimate that a trace refines while the user waits: first the quick answer, then that."""

from __future__ import annotations

import argparse
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from gputop.cli.notices import notice

if TYPE_CHECKING:
    from gputop_analysis.vram.estimate import Estimate
    from gputop_analysis.vram.setup import Setup


def seconds(options: argparse.Namespace) -> float:
    """How long a trace may take beside the quick answer; 0: none is made.

    A tier that was asked for answers alone, and an interpreter without the libraries traces
    nothing.
    """
    from gputop.feed.refinement import LIMIT_S, has_libraries

    if options.tier:
        return 0.0
    limit = options.wait
    if limit is None:
        watched = sys.stdout.isatty() and not options.json
        limit = LIMIT_S if watched else 0.0
    return limit if options.python or has_libraries() else 0.0


def refined(quick: Estimate, setup: Setup, options: argparse.Namespace, limit: float) -> Estimate:
    """The traced estimate beside the quick one; the quick one if the trace fails or is slow."""
    from gputop.api import answer
    from gputop.render.vram import gib
    from gputop.tracing import Watch

    tier, size = quick.peak.tier, gib(quick.device_total)
    _say(
        f"{size} GiB by the {tier} tier; tracing the model on fake tensors, {limit:g} s at the "
        f"most (--tier {tier} leaves it out)"
    )
    watch = Watch(lambda _line: None)
    timer = threading.Timer(limit, watch.stop)
    timer.daemon = True
    timer.start()
    try:
        traced = answer(
            setup,
            "trace",
            gpu=options.gpu,
            python=options.python,
            calibrate=not options.no_calibration,
            progress=watch,
        )
    except (ValueError, LookupError, ImportError) as error:
        if watch.stopped:
            why = f"it took over {limit:g} s; --tier trace waits"
        else:
            why = str(error)
        _say(f"no trace: {why}")
        return replace(quick, notes=(*quick.notes, f"not refined by a trace: {why}"))
    finally:
        timer.cancel()
    text = f"{size} GiB by the {tier} tier, {gib(traced.device_total)} traced"
    _say(text)
    return replace(traced, notes=(text, *traced.notes))


def _say(text: str) -> None:
    notice(text)
