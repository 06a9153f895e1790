"""What a trace leaves out of garbage collections, and what it does not."""

import gc
import weakref

from gputop_tracer.tracking.garbage import passed_over


class Node:
    """Refers to itself, so that only a collection frees it."""

    def __init__(self):
        self.itself = self


def test_garbage_of_the_steps_is_collected_and_what_was_there_is_looked_at_afterwards():
    frozen = gc.get_freeze_count()
    before = Node()
    there = weakref.ref(before)
    with passed_over():
        step = weakref.ref(Node())
        del before
        gc.collect()
        assert step() is None
        assert there() is not None
    gc.collect()
    assert there() is None
    assert gc.get_freeze_count() == frozen


def test_a_process_that_passes_over_objects_itself_keeps_doing_so():
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with passed_over():
            assert gc.get_freeze_count() == count
        assert gc.get_freeze_count() == count
    finally:
        gc.unfreeze()
