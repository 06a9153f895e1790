"""The line that makes what keeps all graphs from itself, in the source."""

import pytest

from gputop_agent.watchers.graphs import graph_chain

ITSELF = ["total = 0.9 * total + loss"]
CUT = ["total = total.detach()"]
NUMBERS = ["total = 0.9 * total + loss.item()", "total += float(loss)"]
VIEW = ["part = self.total[n, :, top : top + 8]", "print(n)", "part += share"]
ADDED = ["part = total[0]", "part.add_(share)"]


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        (ITSELF, 1),
        (CUT + ITSELF, 2),
        (CUT, None),
        (NUMBERS + ITSELF, 3),
        (NUMBERS, None),
        (CUT + VIEW, 4),
        (ADDED, 2),
        (ITSELF + VIEW, 1),
        (ITSELF + ITSELF, None),
        (VIEW + ADDED, None),
        (["part = self.totals[n]", "part += share"], None),
    ],
)
def test_the_line_that_a_chain_is_made_at(monkeypatch, lines, number):
    places = [("train.py", at, line) for at, line in enumerate(lines, 1)]
    monkeypatch.setattr(graph_chain, "_lines_of_users", lambda: iter(places))
    assert graph_chain.place_of("total") == (f"train.py:{number}" if number else "")
    assert graph_chain.place_of("") == ""
