"""Which collection of the script grows with its memory, where no tensors do."""

import functools
import itertools
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from gputop_agent.runtime import frames, source
from gputop_agent.watchers.memory import collections_kept, keepers


@pytest.fixture(autouse=True)
def of_this_file(monkeypatch):
    """This file is the user's."""
    where = {__file__: frames.USER}
    monkeypatch.setattr(frames, "origin", lambda file: where.get(file, frames.LIBRARY))
    monkeypatch.setattr(keepers.session, "torch", torch)


class Film:
    """What an object of the user's keeps."""

    def __init__(self):
        self.frames, self.names = [], []

    def take(self, frame):
        self.frames.append(frame)  # the film
        self.names.append("frame")


TAKES = "        self.frames.append(frame)  # the film\n"


class World:
    def __init__(self, film=None):
        self.film = film or Film()


class Scenes(Dataset):
    def __init__(self, world):
        self.world = world


class SimpleTraining:
    def __init__(self, loader):
        self.loader = loader


def looked_twice(fill, grown_bytes):
    collection = collections_kept.GrowingCollection()
    for _ in range(40):
        fill()
    assert collection.look(0) == {}
    for _ in range(100):
        fill()
    return collection.look(grown_bytes)


def test_results_that_a_function_is_told_to_keep_are_found():
    class Zooms:
        def __init__(self):
            self.zoom = functools.cache(self.zoomed)

        def zoomed(self, factor):
            return np.full(4096, factor)

    zooms, factors = Zooms(), itertools.count()
    told = looked_twice(lambda: zooms.zoom(next(factors)), 3_500_000)
    assert told["grown_in"] == "zoom (functools.cache)"
    line = "            self.zoom = functools.cache(self.zoomed)\n"
    assert told["grown_site"].endswith(
        f"{Path(__file__).name}:{lines_of_this_file().index(line) + 1}"
    )


def test_a_view_keeps_its_whole_array():
    film = Film()
    told = looked_twice(lambda: film.take(np.zeros((64, 512))[:, 3]), 20_000_000)
    assert told["grown_in"] == "frames"
    assert told["grown_site"].endswith(f":{lines_of_this_file().index(TAKES) + 1}")


def test_rows_of_one_array_count_for_themselves():
    film, whole = Film(), np.zeros((200, 64, 128))
    assert looked_twice(lambda: film.take(whole[len(film.frames)]), 60_000_000) == {}


_counter = itertools.count()


@functools.cache
def masked(number):
    return np.full(4096, number)


def test_a_decorated_function_has_the_line_of_its_decorator(monkeypatch):
    path = Path(__file__)
    variables = [("masked", masked)]
    monkeypatch.setattr(source, "users_files", lambda: [str(path)])
    collection = collections_kept.GrowingCollection()
    for _ in range(100):
        masked(next(_counter))
    assert collection.look(0, variables) == {}
    for _ in range(100):
        masked(next(_counter))
    told = collection.look(3_500_000, variables)
    assert told["grown_in"] == "masked (functools.cache)"
    line = lines_of_this_file().index("def masked(number):\n")
    assert told["grown_site"].endswith(f"{path.name}:{line}")


def lines_of_this_file():
    return Path(__file__).read_text().splitlines(keepends=True)


def test_arrays_in_a_list_of_an_object_of_an_object_are_found():
    world = World()
    told = looked_twice(lambda: world.film.take(np.zeros(1000)), grown_bytes=900_000)
    with open(__file__) as file:
        line = 1 + next(n for n, text in enumerate(file) if text.rstrip().endswith("# the film"))
    assert told == {"grown_in": "frames", "grown_site": f"{frames.short_name(__file__)}:{line}"}


def test_texts_in_a_dict_of_lists_are_found_by_its_name():
    answers = {"wrong": [], "right": []}
    told = looked_twice(lambda: answers["wrong"].append("x" * 5000), grown_bytes=600_000)
    assert told["grown_in"] == "answers"


def test_keys_of_a_counter_are_of_its_size():
    visits, random = Counter(), np.random.default_rng(0)
    told = looked_twice(
        lambda: visits.update(tuple(row) for row in random.random((20, 8)).tolist()),
        grown_bytes=100 * 20 * 400,
    )
    assert told["grown_in"] == "visits"


def test_what_lies_deep_in_a_loaders_dataset_is_found():
    film = Film()
    loader = DataLoader(Scenes(World(film)))
    training = SimpleTraining(loader)
    told = looked_twice(lambda: film.take(np.zeros(1000)), grown_bytes=900_000)
    assert training.loader is loader and told["grown_in"] == "frames"


def test_lists_by_many_keys_are_found_together():
    history = {key: [] for key in range(30)}
    turn = iter(range(10_000))
    told = looked_twice(lambda: history[next(turn) % 30].append("x" * 5000), grown_bytes=600_000)
    assert told["grown_in"] == "history[...]" and told["grown_site"]


def test_lists_of_many_objects_are_found_by_their_attribute():
    reels = [Film() for _ in range(700)]
    turn = iter(range(10_000))
    told = looked_twice(
        lambda: reels[next(turn) * 5 % 700].take(np.zeros(1000)), grown_bytes=900_000
    )
    assert told["grown_in"] == "frames" and told["grown_site"]


def test_a_list_that_grows_by_less_than_memory_does_is_not_blamed():
    losses = []
    told = looked_twice(lambda: losses.append(0.5), grown_bytes=50 << 20)
    assert told == {} and len(losses) == 140


def test_objects_that_run_code_when_looked_at_are_not_asked():
    class Careful:
        @property
        def nbytes(self):
            raise AssertionError("a look runs no code of the user's")

    kept = []
    assert looked_twice(lambda: kept.append(Careful()), grown_bytes=1 << 20) == {}
    kept.append(SimpleNamespace())


def test_what_refers_to_itself_ends():
    ring = World()
    vars(ring.film)["world"] = ring
    assert collections_kept.GrowingCollection().look(0) == {}


def test_handles_of_cs_that_do_not_tell_their_size_are_found_where_they_are_alone():
    works, losses, others = [], [], []
    grown_bytes = 50 << 20

    def step():
        works.append(memoryview(b"as a handle of a collective"))
        losses.append(0.5)

    assert looked_twice(step, grown_bytes)["grown_in"] == "works"

    def both():
        step()
        others.append(memoryview(b"another"))

    works.clear()
    assert looked_twice(both, grown_bytes) == {}
