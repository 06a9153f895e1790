"""A GAN with two optimizers and images from a collate function."""

import gc
import time

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

torch.set_num_threads(1)
torch.manual_seed(4)
steps, cost = STEPS or 360, Cost()
pictures = torch.rand(512, 1, 16, 16)


def collate(rows):
    if on("slow_collate"):
        with cost:
            flat = [[[float(x) for x in line] for line in pictures[k][0]] for k in rows]
            return torch.tensor(flat)[:, None]
    return pictures[rows]


class Sink:
    """A remote experiment tracker that answers each call."""

    def put(self, name, value):
        with cost:
            time.sleep(0.003)  # at: tracker

    def scalars(self, step, **values):
        for name, value in values.items():
            self.put(name, value)  # at: tracker


loader = DataLoader(range(512), batch_size=16, shuffle=True, collate_fn=collate)  # at: slow_collate
generator = nn.Sequential(
    nn.Linear(32, 256), nn.ReLU(), nn.Unflatten(1, (16, 4, 4)),
    nn.ConvTranspose2d(16, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1),
    nn.Sigmoid(),
)  # fmt: skip
judge = nn.Sequential(
    nn.Conv2d(1, 16, 3, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(16, 32, 3, 2, 1),
    nn.Flatten(),
    nn.Linear(512, 1),
)
ruin = 2e5 if on("gan_nan") else 1
opt_g = torch.optim.Adam(generator.parameters(), 2e-4 * ruin, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(judge.parameters(), 2e-4, betas=(0.5, 0.999))
sink, done, garbage = Sink(), 0, []
if on("clean_gc_graph"):
    gc.freeze()
if on("gc_graph"):
    garbage = [[{"k": [k]}, (k, [k])] for k in range(250_000)]
while done < steps:
    for real in loader:
        fake = generator(torch.randn(16, 32))
        loss_d = F.softplus(judge(fake.detach())).mean() + F.softplus(-judge(real)).mean()
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
        loss_g = F.softplus(-judge(fake)).mean()
        if on("gan_nan"):
            loss_g = loss_g * torch.exp(
                fake.abs().sum() * 0 + loss_g.detach().clamp(max=1) * 0 + done / 1.0
            )
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        done += 1
        if on("tracker") or (on("clean_tracker") and done % 40 == 0):
            sink.scalars(done, d=loss_d, g=loss_g)
        if on("gc_graph"):
            with cost:
                gc.collect()  # at: gc_graph
        elif on("clean_gc_graph") and done % 100 == 0:
            gc.collect()
        if done >= steps:
            break
cost.print(steps)
