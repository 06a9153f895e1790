"""A small GAN whose critic's loss trains the generator in vain (FAULT=undetached), or does not.

The last line printed is what that cost: {"truth_ms_per_step": ..., "steps": ...}, by as many
backwards with and without it at the end.
"""

import json
import os
import statistics
import time

import eager  # noqa: F401
import torch
import torch.nn.functional as F
from torch import nn

FAULT = os.environ.get("FAULT", "none")
STEPS = int(os.environ.get("STEPS", "250"))
BATCH, NOISE, PICTURE, TIMED = 256, 32, 192, 40
torch.set_num_threads(1)
torch.manual_seed(0)

generator = nn.Sequential(
    nn.Linear(NOISE, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, PICTURE)
)
critic = nn.Sequential(nn.Linear(PICTURE, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
for_generator = torch.optim.Adam(generator.parameters(), 2e-4, betas=(0.5, 0.999))
for_critic = torch.optim.Adam(critic.parameters(), 2e-4, betas=(0.5, 0.999))


def critics_loss(detached):
    real, fake = torch.rand(BATCH, PICTURE), generator(torch.randn(BATCH, NOISE))
    if detached:
        fake = fake.detach()
    return F.softplus(-critic(real)).mean() + F.softplus(critic(fake)).mean()


def backward_ms(detached):
    loss = critics_loss(detached)
    begin = time.perf_counter()
    loss.backward()
    return (time.perf_counter() - begin) * 1e3


for _ in range(STEPS):
    for_critic.zero_grad()
    critics_loss(detached=FAULT != "undetached").backward()
    for_critic.step()
    for_generator.zero_grad()
    F.softplus(-critic(generator(torch.randn(BATCH, NOISE)))).mean().backward()
    for_generator.step()

if FAULT == "undetached":
    pairs = [(backward_ms(detached=False), backward_ms(detached=True)) for _ in range(TIMED)]
    truth = statistics.median(shown - hidden for shown, hidden in pairs)
    print(json.dumps({"truth_ms_per_step": truth, "steps": STEPS}))
