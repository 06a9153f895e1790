"""Where a data set of samples in a row goes through them."""

import pytest
from torch.utils.data import IterableDataset

from gputop_agent.description import sample_loop


class Songs(IterableDataset):
    def __iter__(self):
        while True:
            for number in range(3):
                yield 2 * number


class Given(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield 1


class Inherits(Songs):
    pass


@pytest.mark.parametrize(("kind", "offset"), [(Songs, 2), (Inherits, 2), (Given, 0), (Endless, 1)])
def test_the_first_loop_or_where_it_begins(kind, offset):
    line = kind.__iter__.__code__.co_firstlineno + offset
    assert sample_loop.looped_at(kind()).endswith(f"test_sample_loop.py:{line}")


def test_none_of_a_package():
    class Plain(IterableDataset):
        __iter__ = dict.__iter__

    assert sample_loop.looped_at(Plain()) is None
