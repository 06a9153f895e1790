"""A script that steps a world of its own acts in it, as reinforcement learning does."""

import pytest

from gputop_agent.runtime import source, worlds

ACTS = (
    "        self.now, reward, over = self.canals.step(moves.numpy())",
    "obs, r, d, _, info = env.step(a)",
    "seen, rewards, dones = (torch.tensor(v) for v in worlds.step(actions))",
)
TRAINS = (
    "optimizer.step()",
    "loss, preds, targets = self.step(batch)",
    "loss, observed = model.step(batch)",
    "rewards, scores = judge(answers)  # obs, r, d = env.step(a)",
)


@pytest.mark.parametrize("line", [*ACTS, *TRAINS])
def test_a_line_that_steps_a_world(tmp_path, monkeypatch, line):
    script = tmp_path / "train.py"
    script.write_text(f"import torch\n\n{line}\n")
    monkeypatch.setattr(source, "users_files", lambda: [str(script)])
    source.has.cache_clear()
    assert worlds.are_acted_in() == (line in ACTS)
    source.has.cache_clear()
