"""Which attribute of a data set holds values that are not finite."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from gputop_agent.runtime.session import session
from gputop_agent.watchers.nan import held_values

np = pytest.importorskip("numpy")
NAN = float("nan")


class UsersList(list):
    """Whose methods are the user's, and not to be called."""

    def __iter__(self):
        raise AssertionError


@pytest.fixture(autouse=True)
def with_torch(monkeypatch):
    monkeypatch.setattr(session, "torch", torch)


def attribute_of(dataset):
    holder = held_values.of_dataset(dataset)
    return None if holder is None else (holder.kind.__name__, holder.attribute)


@pytest.mark.parametrize(
    "value",
    [
        NAN,
        float("inf"),
        torch.tensor([[1.0, 2.0], [3.0, NAN]])[:, 1],
        torch.tensor([1.0, float("-inf")], dtype=torch.float16),
        np.array([1.0, np.nan]),
        np.float32("nan"),
        [(np.ones(3), 1), (np.array([1.0, np.inf], np.float32), 0)],
        {"train": [1.0, 2.0], "test": [NAN]},
    ],
)
def test_values_not_finite_are_found(value):
    assert attribute_of(SimpleNamespace(a=1, b=value)) == ("SimpleNamespace", "b")


@pytest.mark.parametrize(
    "value",
    [
        1.0,
        "nan",
        None,
        torch.empty(0),
        torch.tensor([1, 2]),
        torch.ones(2, device="meta"),
        np.arange(3),
        np.array(["nan"]),
        np.array([], np.float32),
        [[[[NAN]]]],
        np.ma.masked_all(3),
        UsersList([NAN]),
    ],
)
def test_others_are_not(value):
    assert attribute_of(SimpleNamespace(a=value)) is None


def test_a_mapped_file_and_what_is_too_long_are_not_read(tmp_path, monkeypatch):
    path = tmp_path / "rows.npy"
    np.save(path, np.full(8, np.nan))
    assert attribute_of(SimpleNamespace(rows=np.load(path, mmap_mode="r")[2:])) is None
    monkeypatch.setattr(held_values, "_MAX_VALUES", 7)
    assert attribute_of(SimpleNamespace(rows=np.load(path))) is None


def test_nothing_is_warned_of(recwarn):
    with np.errstate(all="raise"):
        assert attribute_of(SimpleNamespace(rows=np.array([np.nan, 1.0], np.float16)))
    assert not recwarn.list


def test_wrapped_data_sets_are_looked_into():
    data = TensorDataset(torch.tensor([1.0, NAN]))
    assert attribute_of(Subset(Subset(data, [0, 1]), [0])) == ("TensorDataset", "tensors")


def test_an_object_without_attributes():
    assert attribute_of([1.0, NAN]) is None
    assert attribute_of(None) is None


def test_columns_of_a_table():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"name": ["a", None], "price": [1.0, 2.0]})
    assert attribute_of(SimpleNamespace(table=table)) is None
    table.loc[1, "price"] = NAN
    assert attribute_of(SimpleNamespace(table=table)) == ("SimpleNamespace", "table")
