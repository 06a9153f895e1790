"""Texts that a network draws token by token: those that it is trained on, and those that are looked
at only.
"""

import pytest
import torch
from agent_support import run_script

from gputop_agent.runtime.session import session
from gputop_agent.watchers.looks import drawn_texts

SCRIPT = """
import each_kind, torch
from torch import nn
kind = each_kind.fork()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.cell = nn.Embedding(50, 64), nn.GRU(64, 64, batch_first=True)
        self.head = nn.Linear(64, 50)
    def forward(self, tokens, state=None):
        hidden, state = self.cell(self.tokens(tokens), state)
        return self.head(hidden), state
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
@torch.no_grad()
def draw(n_rows=4, n_tokens=40):
    text = token = torch.randint(50, (n_rows, 6))
    state = None
    for _ in range(n_tokens):
        if kind == "kept":
            scores, state = net(token, state)
        else:
            scores, _ = net(text)  # whole
        token = torch.multinomial(scores[:, -1].softmax(-1), 1)
        text = torch.cat([text, token], 1)
    return text
def train(text):
    scores, _ = net(text[:, :-1])
    loss = nn.functional.cross_entropy(scores.transpose(1, 2), text[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
for step in range(70):
    if kind == "read":
        train(torch.randint(50, (4, 46)))
        continue
    if kind in ("asleep", "looked at"): net.eval()
    if kind != "seldom" or step % 3 == 0: text = draw()
    net.train()
    if kind == "looked at":
        text = torch.randint(50, (4, 46))
    if kind == "shuffled":
        text = text[torch.randperm(4)[:2]]
    train(text)
"""
DRAWN = ["whole", "kept", "asleep", "seldom", "shuffled"]
OTHERS = ["looked at", "read"]


@pytest.fixture(scope="module")
def guests(tmp_path_factory):
    """What each child's guest sent, by the kind."""
    script = tmp_path_factory.mktemp("drawn") / "loops.py"
    script.write_text(SCRIPT)
    outcome = run_script([str(script), *DRAWN, *OTHERS], timeout=200)
    assert (outcome.exit_code, outcome.agent_errors) == (0, ""), outcome.stderr
    return outcome.by_kind([*DRAWN, *OTHERS])


def acts(guest):
    told = [*guest.of_type("hello"), *guest.of_type("hello_update")]
    return any(event.get("acts") for event in told)


def evaluated_ns(guest):
    """After the first steps, in which nobody knows yet."""
    return sum(record["eval_ns"] for record in guest.steps if record["step"] > 10)


@pytest.mark.e2e
@pytest.mark.parametrize("kind", DRAWN)
def test_texts_that_it_is_trained_on_are_no_evaluation(guests, kind):
    assert acts(guests[kind])
    assert evaluated_ns(guests[kind]) == 0


@pytest.mark.e2e
@pytest.mark.parametrize("kind", OTHERS)
def test_texts_that_it_is_not_trained_on(guests, kind):
    assert not acts(guests[kind])
    assert (evaluated_ns(guests[kind]) > 0) == (kind == "looked at")


@pytest.mark.e2e
@pytest.mark.parametrize("kind", [*DRAWN, "looked at"])
def test_what_reading_the_whole_text_again_takes(guests, kind):
    looks = [look for look in guests[kind].of_type("checkup") if "drawn_at" in look]
    if kind == "kept":
        assert not looks
        return
    line = 1 + SCRIPT.split("\n").index("            scores, _ = net(text)  # whole")
    for look in looks:
        assert look["drawn_at"] == f"loops.py:{line}"
        assert look["drawn_tokens"] == 40
        assert len(look["drawn_ms"]) == len(look["read_again_ms"])
    assert sum(len(look["drawn_ms"]) for look in looks) >= 8
    assert sum(sum(look["read_again_ms"]) for look in looks) > 0


def run_of(*periods):
    """A run of calls that read so many tokens and took so many nanoseconds."""
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    run = drawn_texts._DrawnText(torch.nn.Identity(), tokens)
    run._periods = list(periods)
    return run


def test_time_that_grows_with_the_length_went_into_tokens_read_before():
    growing = run_of((4, 9_000), *((length, 1_000 + 50 * length) for length in range(5, 15)))
    assert growing.again_ns() == pytest.approx(sum(50 * (length - 1) for length in range(5, 15)))
    even = run_of((4, 9_000), *((length, 1_000) for length in range(5, 15)))
    assert even.again_ns() == pytest.approx(0)
    assert even.is_text
    judged = run_of(*((46, 1_000 * number) for number in range(12)))
    assert not judged.is_text and judged.again_ns() == 0


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ([7, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9], 1.0),
        ([1, 2, 3, 4, 5, 6, 7, 9, 8, 9, 9], 0.0),
        ([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0.0),
    ],
    ids=["holds", "other order", "padding"],
)
def test_rows_that_hold_a_text(monkeypatch, text, share):
    monkeypatch.setattr(session, "torch", torch)
    drawn = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8], [0] * 8])
    batch = torch.tensor([text])
    share_that_holds = drawn_texts._share_that_holds(tuple(batch.shape))
    assert share_that_holds([batch.reshape(-1), *drawn.unbind(1)]) == share
