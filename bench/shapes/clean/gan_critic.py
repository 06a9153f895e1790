"""A WGAN with weight clipping: five updates of the critic for one of the generator."""

import itertools

import torch
from torch import nn

torch.manual_seed(5)
generator = nn.Sequential(
    nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64)
)
critic = nn.Sequential(
    nn.Linear(64, 256), nn.LeakyReLU(0.2), nn.Linear(256, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1)
)
opt_g = torch.optim.RMSprop(generator.parameters(), lr=5e-5)
opt_c = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
mixing = torch.randn(8, 64)
loader = torch.utils.data.DataLoader(
    torch.randn(64_000, 8) @ mixing, 128, shuffle=True, drop_last=True
)
batches = itertools.chain.from_iterable(itertools.repeat(loader))
for step in range(500):
    for _ in range(5):
        real = next(batches)
        with torch.no_grad():
            fake = generator(torch.randn(len(real), 16))
        loss_c = critic(fake).mean() - critic(real).mean()
        opt_c.zero_grad()
        loss_c.backward()
        opt_c.step()
        for p in critic.parameters():
            p.data.clamp_(-0.01, 0.01)
    loss_g = -critic(generator(torch.randn(128, 16))).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    if step % 50 == 0:
        print(f"[{step}] C {loss_c.item():.5f} G {loss_g.item():.5f}")
