"""The line of a frame whose instruction has none, as the compiler leaves it after a trailing if."""

import sys
import threading
from types import SimpleNamespace

import pytest

from gputop_agent.runtime.lines import line_of

SEARCH = """
def closest(words, best):
    found = None
    for word in words:
        shared = word & 7
        if shared > best:
            best, found = shared, word
        elif shared < 0:
            found = word
    return found
"""


def compiled(text):
    names = {}
    exec(compile(text, "search.py", "exec"), names)
    return names["closest"]


def unlined(code):
    """Offsets of its instructions that have no line."""
    return [first for first, _, line in code.co_lines() if line is None]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="each instruction has a line before 3.11")
def test_the_jump_back_after_an_if_counts_to_what_leads_to_it():
    code = compiled(SEARCH).__code__
    offsets = unlined(code)
    seen = [line_of(SimpleNamespace(f_lineno=None, f_code=code, f_lasti=at)) for at in offsets]
    assert seen and set(seen) <= {6, 8}


def test_a_line_that_is_known_stands():
    code = compiled(SEARCH).__code__
    assert line_of(SimpleNamespace(f_lineno=5, f_code=code, f_lasti=0)) == 5


def test_a_thread_that_looks_at_a_search_sees_its_loop():
    """Whatever the switch interval, no look falls on the line of the ``def``."""
    search, done, seen = compiled(SEARCH), threading.Event(), []

    def work():
        while not done.is_set():
            search(range(4000), 8)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while len(seen) < 20:
        frame = sys._current_frames().get(thread.ident)
        if frame is not None and frame.f_code.co_name == "closest":
            seen.append(line_of(frame))
        done.wait(0.002)
    done.set()
    thread.join()
    assert set(seen) <= {4, 5, 6, 7, 8, 9, 10}
    assert seen.count(2) == 0
