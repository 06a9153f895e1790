"""FLOPs of one step of a real training, counted on request, and nothing of the training changed by
it.
"""

import pytest
from agent_support import run_plain, run_script

from gputop_agent import wire

pytestmark = pytest.mark.e2e

SCRIPT = """
import eager, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
for step in range(40):
    loss = model(torch.randn(16, 32)).pow(2).mean()
    loss.backward()
    optimizer.step(); optimizer.zero_grad()
print(repr(loss.item()), torch.utils._python_dispatch._get_current_dispatch_mode())
"""
#: forward of both layers, the gradients of both weights, and the gradient that passes through the
#: second layer
EXPECTED = 2 * 16 * (2 * 32 * 64 + 3 * 64 * 8)


def test_one_step_is_counted_and_the_results_stay(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    counted = run_script([str(script)], GPUTOP_COUNT_FLOPS="1")
    assert counted.exit_code == 0, counted.stderr
    assert counted.stdout == run_plain([str(script)]).stdout
    assert counted.agent_errors == ""
    (event,) = counted.guest.of_type("flops")
    assert event["flops"] == EXPECTED
    assert event["step"] > 1
    flagged = [r["step"] for r in counted.guest.steps if r["flags"] & wire.F_AGENT]
    assert event["step"] in flagged
    assert counted.guest.n_steps == 40
