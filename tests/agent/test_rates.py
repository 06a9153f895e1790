"""The learning rate of each step, whatever kind of number a schedule makes of it."""

import json

import pytest
from agent_support import run_script

pytestmark = pytest.mark.e2e

SCRIPT = """
import json
import eager
import numpy as np
import torch

kind = getattr(np, "KIND", None) or float
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: kind(1 / (1 + step)))
rates = []
for step in range(8):
    net(torch.randn(2, 4)).sum().backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), kind(0.5))
    rates.append(float(optimizer.param_groups[0]["lr"]))
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
print(json.dumps(rates))
"""


@pytest.mark.parametrize("kind", ["float", "float64", "float32"])
def test_a_rate_by_numpy_is_a_rate(tmp_path, kind):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("KIND", kind))
    outcome = run_script([str(script)])
    assert outcome.exit_code == 0, outcome.stderr
    rates = json.loads(outcome.stdout)
    (guest,) = outcome.guests
    seen = {int(record["step"]): float(record["lr"]) for record in guest.steps}
    assert seen == pytest.approx({step: rates[step] for step in seen})
    assert max(seen) >= len(rates) - 2
