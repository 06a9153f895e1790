"""Networks that are asked for the rows of a batch one by one."""

from pathlib import Path

import pytest
import torch
from torch import nn

from gputop_agent.runtime.session import session
from gputop_agent.timing.step_state import open_step
from gputop_agent.watchers.looks import single_rows


class Asked:
    """A network whose calls are told, as by its call slot."""

    def __init__(self, network):
        self.network = network
        self.rows = single_rows.SingleRows()
        self.rows.begin(session.step)

    def __call__(self, *args, **kwargs):
        self.rows.before(self.network, args, kwargs)
        answer = self.network(*args, **kwargs)
        self.rows.after()
        return answer

    @property
    def calls(self):
        """So many rows in turn; 0: no finding."""
        return self.rows.fields().get("row_calls", 0)


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setattr(session, "torch", torch)
    monkeypatch.setattr(session, "step", 20)
    monkeypatch.setattr(open_step, "backwards", 0)
    return Asked(nn.Linear(6, 2))


BATCH = torch.randn(16, 6)
WAYS = {
    "slices": lambda: [BATCH[i : i + 1] for i in range(16)],
    "indices": lambda: [BATCH[i] for i in range(16)],
    "items": lambda: list(BATCH),
    "split": lambda: BATCH.split(1),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_rows_however_they_are_taken(asked, way, context):
    with context():
        for row in WAYS[way]():
            asked(row)
    assert asked.calls == 16
    told = asked.rows.fields()
    assert told["row_calls_ms"] >= 0 and told["row_calls_convolve"] is False
    assert told["row_calls_at"].startswith("tests/agent/test_single_rows.py:")


def test_the_loop_is_the_place_and_not_a_function_that_calls(asked):
    def ask(row):
        return asked(row)

    for row in BATCH:
        ask(row)
    loop = asked.rows.fields()["row_calls_at"]
    assert int(loop.rpartition(":")[2]) == line_of("        ask(row)\n")


def line_of(text):
    """The number of the only line of this file that begins with the text."""
    lines = Path(__file__).read_text().splitlines(keepends=True)
    (number,) = (n for n, line in enumerate(lines, 1) if line.startswith(text))
    return number


def test_the_same_rows_again_are_another_count(asked):
    for _ in range(3):
        for row in BATCH[:9]:
            asked(row)
    assert asked.calls == 9


def test_few_rows_and_whole_batches_are_none(asked):
    for row in BATCH[:7]:
        asked(row)
    for part in BATCH.repeat(8, 1).split(16):
        asked(part)
    assert asked.calls == 0


def test_a_backward_ends_the_count(asked):
    for number, row in enumerate(BATCH):
        open_step.backwards = number
        asked(row)
    assert asked.calls == 0


def test_an_answer_that_makes_the_next_question_is_none(asked):
    state = BATCH[:1]
    for _ in range(16):
        state = torch.cat([asked(state), state[:, 2:]], 1)
    assert asked.calls == 0


def test_a_memory_that_goes_from_call_to_call_is_none(monkeypatch):
    monkeypatch.setattr(session, "torch", torch)
    cell = Asked(nn.GRUCell(6, 4))
    heard = torch.zeros(1, 4)
    for moment in BATCH.split(1):
        heard = cell(moment, heard)
    assert cell.calls == 0


def test_what_is_the_same_for_all_rows_does_not_matter(asked):
    class Masked(nn.Module):
        def forward(self, row, mask):
            return row * mask

    masked, mask = Asked(Masked()), torch.ones(6)
    for row in BATCH:
        masked(row, mask=mask)
    assert masked.calls == 16


def test_a_batch_that_is_written_over_in_between_is_none(asked):
    batch = BATCH.clone()
    for i in range(16):
        with torch.no_grad():
            batch[i] += asked(batch[i : i + 1]).mean()
    assert asked.calls == 0


def test_it_ends_by_itself_after_two_steps_and_holds_no_network(asked):
    for row in BATCH:
        asked(row)
    session.step += single_rows.STEPS + 1
    asked(BATCH[0])
    assert not asked.rows.is_on and asked.calls == 16


def test_convolutions_are_told(monkeypatch):
    monkeypatch.setattr(session, "torch", torch)
    pictures = Asked(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()))
    for picture in torch.randn(9, 1, 5, 5).split(1):
        pictures(picture)
    assert pictures.calls == 9 and pictures.rows.fields()["row_calls_convolve"] is True
