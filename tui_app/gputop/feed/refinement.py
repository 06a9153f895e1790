"""The trace that refines a quick estimate on screen: when it is made, beside a training too."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gputop_analysis.vram.estimate import Estimate
    from gputop_analysis.vram.setup import Setup

LIMIT_S = 30.0
"""Seconds after which a trace that nobody asked for ends."""
SETTLED_S = 1.5
"""Seconds that a form stands unchanged before its setup is traced."""
_IDLE_CORES = 3.0
"""Cores that must have nothing to do before a trace runs beside a training."""


def has_libraries() -> bool:
    """Whether this interpreter can trace a model."""
    return all(find_spec(name) is not None for name in ("torch", "transformers"))


def after_s() -> float | None:
    """Seconds after which a screen begins a trace by itself; None: it waits for its key."""
    return SETTLED_S if has_libraries() else None


def beside_training(setup: Setup, take: Callable[[Estimate], None]) -> None:
    """Trace a setup in the background, at the lowest priority, where cores are idle; ``take`` gets
    the estimate from another thread. A trace that fails says nothing: the quick answer stands.
    """
    if not has_libraries() or _idle_cores() < _IDLE_CORES:
        return
    threading.Thread(target=_trace, args=(setup, take), name="gputop-trace", daemon=True).start()


def _trace(setup: Setup, take: Callable[[Estimate], None]) -> None:
    from gputop.api import answer
    from gputop.tracing import BackgroundWatch

    watch = BackgroundWatch(lambda _line: None)
    timer = threading.Timer(LIMIT_S, watch.stop)
    timer.daemon = True
    timer.start()
    try:
        take(answer(setup, "trace", advice=False, progress=watch))
    except Exception:  # nobody asked for it: the quick answer stands
        return
    finally:
        timer.cancel()


def _idle_cores() -> float:
    try:
        return (os.cpu_count() or 1) - os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0
