"""The loss of an update whose micro-batches divide theirs by how many there are."""

import pytest
from agent_support import run_script

pytestmark = pytest.mark.e2e

SCRIPT = """
import sys, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
for _ in range(12):
    for _ in range(int(sys.argv[2])):
        loss = (model(torch.ones(8, 4)) * 0 + 6.0).mean()
        eval(sys.argv[1]).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("backward_of", "micro_batches", "told"),
    [
        ("loss / 4", 4, 6.0),
        ("loss * 0.25", 4, 6.0),
        ("loss / torch.tensor(4.0)", 4, 6.0),
        ("loss", 4, 6.0),
        ("loss / 2", 4, 3.0),
        ("(loss + loss) / 2", 1, 6.0),
        ("loss / 2", 1, 3.0),
    ],
)
def test_the_loss_is_told_as_it_was_before_the_division(tmp_path, backward_of, micro_batches, told):
    """diloco's and accelerate's loss was told as half of what they print."""
    script = tmp_path / "accumulates.py"
    script.write_text(SCRIPT)
    outcome = run_script([str(script), backward_of, str(micro_batches)])
    assert (outcome.exit_code, outcome.agent_errors) == (0, ""), outcome.stderr
    losses = {round(record["loss"], 4) for record in outcome.guests[0].steps}
    assert losses == {told}
