"""A small diffusion U-Net with an exponential average through swa_utils and sampling at the end of
each epoch.
"""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)
betas = torch.linspace(1e-4, 0.02, 100)
alphas = torch.cumprod(1 - betas, 0)


class UNet(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, c), nn.SiLU(), nn.Linear(c, c))
        self.a, self.b = nn.Conv2d(1, c, 3, padding=1), nn.Conv2d(c, 2 * c, 3, 2, 1)
        self.mid = nn.Conv2d(2 * c, 2 * c, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(2 * c, c, 2, 2), nn.Conv2d(2 * c, 1, 3, padding=1)

    def forward(self, x, t):
        a = torch.relu(self.a(x) + self.time(t[:, None] / 100)[:, :, None, None])
        mid = torch.relu(self.mid(torch.relu(self.b(a))))
        return self.out(torch.cat([torch.relu(self.up(mid)), a], 1))


model = UNet()
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.995))
optimizer = torch.optim.AdamW(model.parameters(), 2e-4)
pictures = (torch.rand(2_000, 1, 16, 16) > 0.7).float() * 2 - 1


@torch.no_grad()
def sample(count):
    ema.eval()
    x = torch.randn(count, 1, 16, 16)
    for t in reversed(range(100)):
        noise = ema(x, torch.full((count,), float(t)))
        x = (x - betas[t] / (1 - alphas[t]).sqrt() * noise) / (1 - betas[t]).sqrt()
        x = x + betas[t].sqrt() * torch.randn_like(x) * (t > 0)
    return x


for epoch in range(5):
    for index in torch.randperm(len(pictures)).split(32):
        x = pictures[index]
        t = torch.randint(0, 100, (len(x),))
        noise = torch.randn_like(x)
        level = alphas[t][:, None, None, None]
        loss = (
            (model(level.sqrt() * x + (1 - level).sqrt() * noise, t.float()) - noise).pow(2).mean()
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ema.update_parameters(model)
    torch.save(sample(4), f"epoch_{epoch}.pt")
    print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
