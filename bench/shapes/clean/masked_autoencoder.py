"""A masked autoencoder: three patches of four are left out, a light decoder fills them in."""

import math

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(11)
SIDE, PATCH, KEEP = 32, 4, 16
PATCHES = (SIDE // PATCH) ** 2


def waves(count):
    grid = torch.linspace(0, 1, SIDE)
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    angle, frequency = torch.rand(count, 1, 1) * math.pi, 0.3 + 0.5 * torch.rand(count, 1, 1)
    phase = 2 * math.pi * torch.rand(count, 1, 1)
    along = x * angle.cos() + y * angle.sin()
    return torch.sin(2 * math.pi * frequency * along + phase)


def patchify(pictures):
    shape = (-1, SIDE // PATCH, PATCH, SIDE // PATCH, PATCH)
    return pictures.view(shape).transpose(2, 3).reshape(-1, PATCHES, PATCH * PATCH)


def layer(width):
    return nn.TransformerEncoderLayer(
        width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )


class MaskedAutoencoder(nn.Module):
    def __init__(self, width=96, narrow=48):
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, width)
        self.place = nn.Parameter(0.02 * torch.randn(PATCHES, width))
        self.encoder = nn.Sequential(*[layer(width) for _ in range(3)], nn.LayerNorm(width))
        self.bridge = nn.Linear(width, narrow)
        self.blank = nn.Parameter(0.02 * torch.randn(narrow))
        self.decoder_place = nn.Parameter(0.02 * torch.randn(PATCHES, narrow))
        self.decoder = nn.Sequential(layer(narrow), nn.LayerNorm(narrow))
        self.pixels = nn.Linear(narrow, PATCH * PATCH)

    def forward(self, patches):
        order = torch.rand(patches.shape[:2]).argsort(1)
        back = order.argsort(1)
        kept = order[:, :KEEP, None]
        tokens = self.embed(patches) + self.place
        seen = self.encoder(tokens.gather(1, kept.expand(-1, -1, tokens.shape[2])))
        seen = self.bridge(seen)
        blanks = self.blank.expand(len(patches), PATCHES - KEEP, -1)
        full = torch.cat([seen, blanks], 1)
        full = full.gather(1, back[:, :, None].expand(-1, -1, full.shape[2]))
        guess = self.pixels(self.decoder(full + self.decoder_place))
        hidden = (back >= KEEP).float()
        return ((guess - patches).square().mean(2) * hidden).sum() / hidden.sum()


patches = patchify(waves(8_000))
model = MaskedAutoencoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, betas=(0.9, 0.95), weight_decay=0.05)
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=30)
cool = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 210)
schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cool], [30])
for step in range(240):
    loss = model(patches[torch.randint(len(patches), (24,))])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 30 == 0:
        print(f"step {step} masked error {loss.item():.4f}")
torch.save(model.state_dict(), "mae.pt")
