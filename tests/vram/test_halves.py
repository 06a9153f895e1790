"""Work that two processes share: the results are those of ``map``, whoever got an item and whatever became of it."""

import os

import pytest

from gputop.cli import halves


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_results_come_in_the_order_of_their_items(count):
    assert halves.in_halves(lambda item: item * item, range(count))() == [item * item for item in range(count)]


def test_what_a_failing_child_took_is_done_here(monkeypatch):
    monkeypatch.setattr(halves, "_may_fork", lambda: True)
    here = os.getpid()

    def work(item):
        if os.getpid() != here:
            raise MemoryError
        return item + 1

    assert halves.in_halves(work, range(6))() == [1, 2, 3, 4, 5, 6]
