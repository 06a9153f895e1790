"""Unbalanced classes drawn evenly by a sampler; mixup or cutmix by turns, smoothed labels."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.set_num_threads(1)
torch.manual_seed(31)
CLASSES = 7
counts = torch.tensor([1500, 1000, 700, 500, 300, 200, 150])
labels = torch.arange(CLASSES).repeat_interleave(counts)
looks = F.interpolate(torch.randn(CLASSES, 3, 5, 5), size=20, mode="bilinear")
pictures = looks[labels] + 0.8 * torch.randn(len(labels), 3, 20, 20)
sampler = WeightedRandomSampler((1 / counts)[labels], num_samples=4_000)
loader = DataLoader(TensorDataset(pictures, labels), batch_size=64, sampler=sampler)
beta = torch.distributions.Beta(0.4, 0.4)


def mixup(x, order):
    share = beta.sample().item()
    return share * x + (1 - share) * x[order], share


def cutmix(x, order):
    share = beta.sample().item()
    side = x.shape[-1]
    cut = int(side * (1 - share) ** 0.5)
    top, left = torch.randint(0, side - cut + 1, (2,)).tolist()
    x = x.clone()
    x[:, :, top : top + cut, left : left + cut] = x[order, :, top : top + cut, left : left + cut]
    return x, 1 - cut * cut / side**2


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(4, width), nn.GroupNorm(4, width)])

    def forward(self, x):
        h = self.first(F.gelu(self.norms[0](x)))
        return x + self.second(F.gelu(self.norms[1](h)))


model = nn.Sequential(
    nn.Conv2d(3, 32, 3, 2, 1), Residual(32), nn.Conv2d(32, 64, 3, 2, 1), Residual(64),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.02)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5 * len(loader))
for epoch in range(5):
    total = 0.0
    for step, (x, y) in enumerate(loader):
        order = torch.randperm(len(x))
        x, share = (mixup if step % 2 else cutmix)(x, order)
        scores = model(x)
        loss = share * F.cross_entropy(scores, y, label_smoothing=0.1)
        loss = loss + (1 - share) * F.cross_entropy(scores, y[order], label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / len(loader):.4f} rate {schedule.get_last_lr()[0]:.2e}")
torch.save(model.state_dict(), "mixed.pt")
