"""Where the batches of a loader are filled up to one length."""

import pytest
import torch
from torch.utils.data import DataLoader

from gputop_agent.runtime import source
from gputop_agent.runtime.session import session
from gputop_agent.watchers.loaders import batch_origin, padded_at

SOURCE = """
import torch


def padded(rows):
    width = max(map(len, rows))
    table = torch.zeros(len(rows), width)  # the line
    return table


class Collator:
    def __call__(self, rows):
        return pad_sequence(rows)  # of a call


def stacked(rows):
    return torch.stack(rows)


filler = Collator()
"""


@pytest.mark.parametrize(
    ("name", "line"), [("padded", "# the line"), ("filler", "# of a call"), ("stacked", None)]
)
def test_the_first_line_of_a_collator_that_fills(tmp_path, monkeypatch, name, line):
    monkeypatch.setattr(session, "torch", torch)
    monkeypatch.setattr(batch_origin, "batches", batch_origin.Batches())
    monkeypatch.setattr(source, "place_matching", lambda pattern: None)
    path = tmp_path / "data.py"
    path.write_text(SOURCE)
    space = {"__name__": "data"}
    exec(compile(SOURCE, str(path), "exec"), space)
    loader = DataLoader([torch.zeros(2)] * 4, 2, collate_fn=space[name])
    iterator = iter(loader)
    batch_origin.fetched(iterator, None)
    told = padded_at.fields().get("padded_at")
    if line is None:
        assert told is None
        return
    number = next(at for at, text in enumerate(SOURCE.split("\n"), 1) if line in text)
    assert told is not None and told.endswith(f"data.py:{number}")


@pytest.mark.parametrize("is_there", [True, False])
def test_calls_that_leave_filling_out_are_told(monkeypatch, is_there):
    monkeypatch.setattr(batch_origin, "batches", batch_origin.Batches())
    monkeypatch.setattr(source, "place_matching", lambda pattern: None)
    monkeypatch.setattr(source, "has", lambda pattern: is_there)
    assert padded_at.fields() == ({"left_out": True} if is_there else {})
