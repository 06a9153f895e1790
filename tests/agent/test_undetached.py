"""Networks that another one's loss trains in vain; each beside what goes through them in need."""

import pytest
from agent_support import run_script

pytestmark = pytest.mark.e2e

SCRIPT = """
import eager, each_kind, torch
from torch import nn
kind = each_kind.fork()
def layers(*sizes):
    pairs = zip(sizes, sizes[1:])
    return nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairs))
maker, critic = layers(8, 16, 16, 12), layers(12, 16, 1)
for_maker = torch.optim.Adam(maker.parameters())
for_critic = torch.optim.Adam(critic.parameters())
class Training:
    def __init__(self):
        self.maker = maker
    def critic_loss(self, real):
        return critic(self.maker(torch.randn(4, 8))).mean() - critic(real).mean()
training = Training()
def loss_of_critic(real):
    if kind == "apart":
        return training.critic_loss(real)
    fake = maker(torch.randn(4, 8))
    if kind in ("detached", "matched"): fake = fake.detach()
    if kind == "unwanted": fake = fake.data
    return critic(fake).mean() - critic(real).mean()  # given
for step in range(160):
    real = torch.randn(4, 12)
    if kind == "together":
        for_maker.zero_grad()
        for_critic.zero_grad()
        critic(maker(torch.randn(4, 8))).square().mean().backward()
        for_critic.step()
        for_maker.step()
        continue
    for turn in range(3 if kind == "often" else 1):
        for_critic.zero_grad()
        if kind in ("shown", "often", "zeroed"):
            fake = maker(torch.randn(4, 8))
            loss = critic(real).mean()
            loss = critic(fake).mean() - loss  # shown
        else:
            loss = loss_of_critic(real)
        loss.backward()
        for_critic.step()
    if kind != "gathered": for_maker.zero_grad(set_to_none=kind != "zeroed")
    score = -critic(maker(torch.randn(4, 8))).mean()
    if kind == "matched":
        score = score + (critic(real).mean() + score).abs()
    score.backward()
    for_maker.step()
    if kind == "gathered": for_maker.zero_grad()
"""
IN_VAIN = ["shown", "often", "zeroed", "called", "apart"]
ALSO_NEEDED = ["matched"]
IN_NEED = ["detached", "unwanted", "together", "gathered"]


@pytest.fixture(scope="module")
def guests(tmp_path_factory):
    """What each child's guest sent, by the kind."""
    script = tmp_path_factory.mktemp("undetached") / "loops.py"
    script.write_text(SCRIPT)
    outcome = run_script([str(script), *IN_VAIN, *ALSO_NEEDED, *IN_NEED], timeout=200)
    assert (outcome.exit_code, outcome.agent_errors) == (0, ""), outcome.stderr
    return outcome.by_kind([*IN_VAIN, *ALSO_NEEDED, *IN_NEED])


@pytest.mark.parametrize("kind", IN_VAIN)
def test_a_network_that_a_loss_trains_in_vain(guests, kind):
    told = guests[kind].of_type("undetached")
    assert [event["looks"] for event in told][:1] == [3]
    assert told[0]["values"] == 8 * 16 + 16 + 16 * 16 + 16 + 16 * 12 + 12
    assert all(0 < took < 1000 for took in told[0]["took_ms"])
    assert len(told[0]["took_ms"]) >= 3
    assert not told[0]["is_needed_too"]


def test_a_critic_that_a_loss_needs_and_also_trains_in_vain(guests):
    """Matched features of real samples: HiFi-GAN's generator was told to detach its own result."""
    told = guests["matched"].of_type("undetached")
    assert told[0]["values"] == 12 * 16 + 16 + 16 + 1
    assert told[0]["is_needed_too"]


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("shown", "            loss = critic(fake).mean() - loss  # shown"),
        ("called", "        loss.backward()"),
    ],
)
def test_the_line_that_hands_it_on(guests, kind, line):
    number = 1 + SCRIPT.split("\n").index(line)
    event = guests[kind].of_type("undetached")[0]
    assert (event.get("made_at") or event["backward_at"]) == f"loops.py:{number}"


@pytest.mark.parametrize("kind", IN_NEED)
def test_gradients_that_are_used_or_never_made(guests, kind):
    assert guests[kind].of_type("checkup")
    assert not guests[kind].of_type("undetached")
