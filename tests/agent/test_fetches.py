"""What the agent sees of a loader with workers, of padding, and of cores."""

import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset  # noqa: E402

from gputop_agent.description import describe_loader  # noqa: E402
from gputop_agent.runtime import affinity, transport  # noqa: E402
from gputop_agent.runtime.session import DATA, OTHER, session  # noqa: E402
from gputop_agent.timing import batch  # noqa: E402
from gputop_agent.watchers.loaders import fetches  # noqa: E402


class Rows(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(0.05 if index == 9 else 0.0)  # worker 1 of 2 is late with the tenth batch
        return torch.zeros(2)


@pytest.fixture
def sent(monkeypatch):
    events = []
    monkeypatch.setattr(
        transport, "send_event", lambda kind, **fields: events.append({"type": kind, **fields})
    )
    yield events
    fetches.reset()
    session.phase, session.thread_ident = OTHER, 0


def test_looks_say_whether_a_batch_lies_ready_and_who_is_late(sent):
    loader = DataLoader(Rows(), 1, num_workers=2)
    batches: Any = iter(loader)
    watch = fetches.FetchWatch()
    fetches.watch(batches, describe_loader.describe_loader(loader))
    watch.look()  # before the first batch nothing is counted
    for _ in range(9):
        next(batches)
    deadline = time.monotonic() + 5
    while batches._data_queue.qsize() == 0 and time.monotonic() < deadline:
        time.sleep(0.005)
    watch.look()
    watch.flush()
    (event,) = sent
    assert (event["looks"], event["empty"], event["fetching"]) == (1, 0, 0)
    assert (event["dataset"], event["num_workers"]) == ("Rows", 2)


def test_a_fetch_that_waits_names_its_worker(sent):
    loader = DataLoader(Rows(), 1, num_workers=2)
    batches: Any = iter(loader)
    watch = fetches.FetchWatch()
    fetches.watch(batches, describe_loader.describe_loader(loader))
    next(batches)
    parts = vars(batches)
    parts["_task_info"].update({1: (1,), 2: (0, "a batch that has come")})  # the second one has not
    parts["_tasks_outstanding"] = 3
    session.phase = DATA
    watch.look()
    watch.flush()
    assert sent[0]["waited_for"] == [{"worker": 1, "looks": 1}]
    assert sent[0]["behind"] == sum(sent[0]["states"].values()) == 1


def test_an_epoch_begins_with_the_end_of_the_last(sent):
    loader = DataLoader(Rows(), 1, num_workers=1)
    first, second = iter(loader), iter(loader)
    told = describe_loader.describe_loader(loader)
    fetches.watch(first, told)
    fetches.iterator_exhausted(second, 5_000_000)  # another loader's end says nothing
    fetches.iterator_exhausted(first, 20_000_000)
    fetches.iterator_made(second, 30_000_000)
    fetches.watch(second, told)
    fetches.first_fetch(second, 40_000_000)
    fetches.FetchWatch().flush()
    (start,) = sent[0]["epoch_starts"]
    assert (start["end_ms"], start["start_ms"], start["first_ms"]) == (20.0, 30.0, 40.0)


def test_an_iterator_that_is_gone_is_let_go_of(sent):
    loader = DataLoader(Rows(), 1, num_workers=1)
    batches: Any = iter(loader)
    fetches.watch(batches, describe_loader.describe_loader(loader))
    assert fetches._watched
    del batches
    assert not fetches._watched


def test_a_loader_without_workers_is_not_watched(sent):
    loader = DataLoader(Rows(), 1)
    fetches.watch(iter(loader), describe_loader.describe_loader(loader))
    fetches.FetchWatch().look()
    assert not fetches._watched


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.uint8])
def test_padding_is_counted_from_the_mask(dtype):
    batch.reset()
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]], dtype=dtype)
    batch.count({"input_ids": torch.zeros(2, 4, dtype=torch.int64), "attention_mask": mask})
    assert batch.take_padding() == {"batches": 1, "places": 8, "tokens": 4, "kept": 6}
    assert batch.take_padding() is None


@pytest.mark.parametrize(
    "mask",
    [
        torch.zeros(2, 4),
        torch.zeros(2, 1, 4, 4, dtype=torch.bool),
        torch.full((2, 4), -1),
        torch.ones(2, 4).long().T,
    ],
)
def test_other_masks_say_nothing(mask):
    batch.reset()
    batch.count({"attention_mask": mask})
    assert batch.take_padding() is None


def rows_of(lengths, width, filling, dtype=torch.int64):
    table = torch.full((len(lengths), width), filling, dtype=dtype)
    for row, length in zip(table, lengths, strict=True):
        row[:length] = torch.arange(1, length + 1)
    return table


@pytest.mark.parametrize("filling", [0, -100])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_without_a_mask_rows_that_end_alike_are_filled(filling, dtype):
    batch.reset()
    batch.count((rows_of([3, 9, 4, 5], 10, filling, dtype), torch.zeros(4)))
    counts = {"batches": 1, "places": 40, "tokens": 21, "kept": 36, "filling": str(filling)}
    assert batch.take_padding() == counts


def test_pictures_beside_the_texts_are_told():
    batch.reset()
    batch.count((torch.zeros(4, 3, 8, 8), rows_of([3, 9, 4, 5], 10, 0), torch.zeros(4)))
    assert batch.take_padding()["beside"] == 4 * 3 * 8 * 8
    batch.count({"ids": rows_of([3, 9, 4, 5], 10, 0), "weight_of_each": torch.zeros(4)})
    assert "beside" not in batch.take_padding()


def test_rows_that_begin_alike_are_filled():
    batch.reset()
    batch.count(rows_of([3, 9, 4, 5], 10, 0).flip(1))
    assert batch.take_padding() == {
        "batches": 1,
        "places": 40,
        "tokens": 21,
        "kept": 36,
        "filling": "0",
    }


@pytest.mark.parametrize(
    "table",
    [
        rows_of([10, 10, 10, 10], 10, 0),
        rows_of([9, 10, 9, 10], 10, 0),
        torch.tensor([[0, 1, 0, 2, 0, 3, 0, 0, 0, 0]] * 4),
        torch.zeros(4, 10, dtype=torch.int64),
    ],
    ids=["full", "one place", "zeros within", "nothing else"],
)
def test_other_rows_are_full(table):
    batch.reset()
    batch.count(table)
    assert batch.take_padding() == {"batches": 1, "places": 40, "tokens": 40, "kept": 40}


@pytest.mark.parametrize(
    "table", [torch.zeros(3, 10).long(), torch.zeros(4, 7).long(), torch.zeros(4, 10)]
)
def test_tables_that_cannot_tell_of_padding(table):
    batch.reset()
    batch.count(table)
    assert batch.take_padding() is None


@pytest.mark.parametrize("cpus", ["", "0", "0-3", "0-3,8", "1,3,5-7"])
def test_lists_of_cores(cpus):
    assert affinity.spell(affinity.parse(cpus)) == cpus


def test_batches_that_are_the_same_as_the_one_before_are_counted():
    batch.reset()
    for index in range(102):
        batch.count(torch.full((4, 2), float(index // 2)))
    assert batch.take_repeats() == {"batches": 9, "same": 6, "changed": 5}
    assert batch.take_repeats() is None
