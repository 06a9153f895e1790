"""For every test: a check that fails raises, in place of being reported as one that could not be
judged.

Tests that start real processes and hold them against the clock are tried again, since a busy
machine is no fault of ours.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from gputop_analysis.findings import registry

# The readers of published runs, which only the benchmarks ship; last, since some are called as
# modules of Python are.
sys.path.append(str(Path(__file__).parent.parent / "bench"))

# The Pythons that the tests start end sooner: see there.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).parent / "site"), os.getenv("PYTHONPATH")])
)

# How long an example takes is the machine's affair. The same code is judged by the same examples;
# ``pytest --hypothesis-profile=search`` looks for new ones.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("gputop", PATIENT, derandomize=True)
settings.register_profile("search", PATIENT, max_examples=2000)
settings.load_profile("gputop")

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)

# A suite that was started in the background, or by nohup, ignores these, and so would all that it
# starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """What a command did to the signals of its process, run inside ours, is not handed to the next
    test's children.
    """
    before = {number: signal.getsignal(number) for number in ENDING}
    yield
    if threading.current_thread() is threading.main_thread():
        for number, handler in before.items():
            if handler is not None:  # set by C code, which nobody can put back
                signal.signal(number, handler)


@pytest.fixture(autouse=True)
def strict_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    """See ``registry.STRICT``."""
    monkeypatch.setattr(registry, "STRICT", True)


ONE_WORKER = ("agent", "tracer", "vram")
SHARING = ("test_diff.py", "test_real_trace.py", "test_run.py")
"""Their files share trainings and traces that take up to a minute to make: a file is not spread
over workers.
"""
LONG = ("agent", "tracer", "vram", "e2e", "planner", "launch", "recorder")
"""They begin, so that no worker is left with a long file when the others have nothing to do."""


AGAINST_THE_CLOCK = ("agent", "e2e", "frameworks", "launch", "neighbours", "recorder")
"""They start real trainings, real ranks and real servers, which a loaded machine may starve."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name in ONE_WORKER or item.path.name in SHARING:
            item.add_marker(pytest.mark.xdist_group(item.path.name))
        if item.path.parent.name in AGAINST_THE_CLOCK:
            item.add_marker(pytest.mark.flaky(reruns=2))
        # A shared machine may be slow for as long as all three tries of a fault take.
        if item.path.parent.name == "faults":
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=10))
    items.sort(key=turn)


def turn(item: pytest.Item) -> int:
    """Long files first; faults that must be alone last, when nobody has to stop for them."""
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("case") if callspec else None
    if getattr(case, "alone", False):
        return len(LONG) + 1
    return LONG.index(item.path.parent.name) if item.path.parent.name in LONG else len(LONG)
