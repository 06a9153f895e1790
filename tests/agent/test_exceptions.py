"""Where an exception is said to come from."""

import pytest
from agent_support import run_script

from gputop_agent.runtime import frames
from gputop_agent.watchers import exceptions


def test_the_line_of_a_loaders_worker_is_found_in_what_torch_quotes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(frames, "_names", {})
    message = f"""Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/x/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "{tmp_path}/rows.py", line 26, in __getitem__
    raise ValueError("corrupt sample 300")
ValueError: corrupt sample 300
"""
    outside = [(f"{tmp_path}/train.py", 28, "<module>")]
    assert exceptions._site(outside + exceptions._quoted(message)) == "rows.py:26 __getitem__"
    assert (
        exceptions._site(outside + exceptions._quoted(message.partition("\n")[2]))
        == "train.py:28 <module>"
    )


FAILS = """
import sys, eager, torch
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(30):
    out = net(torch.randn(8, 4))
    if not torch.isfinite(out).all() or step == 29:
        raise ValueError("logits")
    scale = float("nan") if sys.argv[1] == "nan" and step == 20 else 1.0
    optimizer.zero_grad()
    (out.square().mean() * scale).backward()
    optimizer.step()
"""


@pytest.mark.e2e
@pytest.mark.parametrize(("kind", "weight"), [("nan", "0.weight"), ("finite", None)])
def test_a_weight_that_is_no_number_is_told_with_what_it_led_to(tmp_path, kind, weight):
    script = tmp_path / "train.py"
    script.write_text(FAILS)
    outcome = run_script([str(script), kind])
    assert (outcome.exit_code, outcome.agent_errors) == (1, "")
    (raised,) = outcome.guests[0].of_type("exception")
    assert (raised["message"], raised.get("bad_weight")) == ("logits", weight)
