"""Losses that jump in a real training: the layer whose update had grown is named, once a jump."""

import pytest
from agent_support import run_plain, run_script

pytestmark = pytest.mark.e2e

EVERY = 48
SPIKES = [(layer, kind) for kind in ("gradient", "rate") for layer in (0, 2, 4)]

SCRIPT = f"""
import eager, copy, torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
groups = [{{"params": list(model[layer].parameters())}} for layer in (0, 2, 4)]
optimizer = torch.optim.SGD(groups, 1e-3)
x, y = torch.randn(256, 8), torch.randn(256, 1)
losses = []
for number, (layer, kind) in enumerate({SPIKES!r}):
    sound = copy.deepcopy(model.state_dict())
    for step in range({EVERY}):
        chosen = torch.randint(0, 256, (64,))
        loss = nn.functional.mse_loss(model(x[chosen]), y[chosen])
        loss.backward()
        losses.append(loss.item())
        group = optimizer.param_groups[layer // 2]
        if step == {EVERY} - 2:
            if kind == "rate":
                group["lr"] *= 1e7
            else:
                for parameter in group["params"]:
                    parameter.grad.normal_(0, 20_000)
        optimizer.step()
        group["lr"] = 1e-3
        optimizer.zero_grad()
    model.load_state_dict(sound)
print(repr(losses))
"""


def test_the_layer_whose_update_had_grown_is_named(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    found = run_script([str(script)], GPUTOP_WATCH_NUMERICS="1")
    assert found.exit_code == 0, found.stderr
    assert found.agent_errors == ""
    assert found.stdout == run_plain([str(script)]).stdout
    spikes = found.guest.of_type("spike_origin")
    assert [(spike["step"], spike["layer"]) for spike in spikes] == [
        (number * EVERY + EVERY - 1, str(layer)) for number, (layer, _) in enumerate(SPIKES)
    ]
    for spike in spikes:
        assert spike["update_step"] == spike["step"] - 1
        assert spike["relative_update"] > 100 * spike["usual_update"]
