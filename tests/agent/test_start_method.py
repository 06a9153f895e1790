"""How a loader's workers are started, where that is not fork."""

import multiprocessing

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gputop_agent.description.describe_loader import describe_loader

DATA = TensorDataset(torch.zeros(4, 2))


@pytest.mark.parametrize(
    ("of_process", "of_loader", "n_workers", "told"),
    [
        ("spawn", None, 2, "spawn"),
        ("spawn", "fork", 2, "fork"),
        ("fork", None, 2, None),
        ("spawn", None, 0, None),
    ],
)
def test_the_loaders_own_or_else_that_of_the_process(
    monkeypatch, of_process, of_loader, n_workers, told
):
    def start_method(*, allow_none):
        assert allow_none, "asked otherwise, it would be set for good"
        return of_process

    monkeypatch.setattr(multiprocessing, "get_start_method", start_method)
    loader = DataLoader(
        DATA, num_workers=n_workers, multiprocessing_context=of_loader if n_workers else None
    )
    assert describe_loader(loader)["start_method"] == told
