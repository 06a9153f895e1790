"""A GAN: two models, two optimizers, a critic that steps twice as often, an average model copied by
deepcopy.
"""

import copy

import torch
from torch import nn

device = "cuda:0"
generator = nn.Sequential(nn.Linear(64, 256), nn.LeakyReLU(0.2), nn.Linear(256, 784), nn.Tanh()).to(
    device
)
critic = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)).to(device)
average = copy.deepcopy(generator).eval().requires_grad_(False)
for_generator = torch.optim.Adam(generator.parameters(), 2e-4, betas=(0.5, 0.999))
for_critic = torch.optim.Adam(critic.parameters(), 2e-4, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
for step in range(20):
    real = torch.rand(16, 784, device=device)
    for _ in range(2):
        fake = generator(torch.randn(16, 64, device=device)).detach()
        loss = bce(critic(real), torch.ones(16, 1, device=device)) + bce(
            critic(fake), torch.zeros(16, 1, device=device)
        )
        for_critic.zero_grad()
        loss.backward()
        for_critic.step()
    loss = bce(critic(generator(torch.randn(16, 64).cuda())), torch.ones(16, 1).to(device))
    for_generator.zero_grad()
    loss.backward()
    for_generator.step()
    with torch.no_grad():
        for mean, now in zip(average.parameters(), generator.parameters()):
            mean.lerp_(now, 0.01)
