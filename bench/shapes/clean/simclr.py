"""SimCLR: two augmented views of each picture, NT-Xent over the batch, a linear probe last."""

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(5)
KINDS = 24

coarse = torch.randn(KINDS, 3, 6, 6)
kinds = torch.randint(KINDS, (5_000,))
pictures = F.interpolate(coarse, size=24, mode="bilinear")[kinds] + 0.5 * torch.randn(
    5_000, 3, 24, 24
)


def view(batch):
    if torch.rand(()) < 0.5:
        batch = batch.flip(-1)
    down, right = torch.randint(0, 9, (2,)).tolist()
    cropped = batch[:, :, down : down + 16, right : right + 16]
    brightness = 1 + 0.4 * (torch.rand(len(batch), 1, 1, 1) - 0.5)
    return cropped * brightness


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layers, before = [], 3
        for width, stride in ((32, 1), (48, 2), (64, 2)):
            layers += [nn.Conv2d(before, width, 3, stride, 1, bias=False)]
            layers += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            before = width
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x):
        return F.normalize(self.head(self.body(x)), dim=1)


def nt_xent(first, second, temperature=0.2):
    both = torch.cat([first, second])
    similar = both @ both.T / temperature
    similar.fill_diagonal_(-1e9)
    count = len(first)
    target = torch.cat([torch.arange(count) + count, torch.arange(count)])
    return F.cross_entropy(similar, target)


model = Encoder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.06, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.06, total_steps=220)
for step in range(220):
    batch = pictures[torch.randint(len(pictures), (48,))]
    views = model(torch.cat([view(batch), view(batch)]))
    loss = nt_xent(*views.chunk(2))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 30 == 0:
        print(f"{step:4d} contrastive loss {loss.item():.4f}")

model.eval()
with torch.no_grad():
    codes = model.body(pictures[:1_500, :, 4:20, 4:20])
probe = nn.Linear(64, KINDS)
optimizer = torch.optim.Adam(probe.parameters(), 1e-2)
for _ in range(100):
    loss = F.cross_entropy(probe(codes[:1_000]), kinds[:1_000])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
right = (probe(codes[1_000:]).argmax(1) == kinds[1_000:1_500]).float().mean()
print(f"linear probe: {right.item():.3f}")
