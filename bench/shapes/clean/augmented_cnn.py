"""A CNN on pictures in memory with cheap augmentation of whole batches on the main thread, Nesterov
SGD under OneCycleLR, label smoothing.
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
images = torch.randint(0, 256, (3_000, 3, 32, 32), dtype=torch.uint8)
labels = images.float().mean((2, 3)).argmax(1) * 3 + (images[:, 0, 0, 0] > 127).long()


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.pool = conv(3, 24), nn.MaxPool2d(2)
        self.body = nn.Sequential(conv(24, 48), nn.MaxPool2d(2), conv(48, 64), nn.MaxPool2d(2))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.body(self.pool(self.stem(x))).mean((2, 3)))


def augment(x):
    if torch.rand(()) < 0.5:
        x = x.flip(3)
    dx, dy = torch.randint(-2, 3, (2,)).tolist()
    return torch.roll(x, (dx, dy), (2, 3))


net = Net()
epochs, size = 8, 64
optimizer = torch.optim.SGD(
    net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4
)
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, 0.2, total_steps=epochs * (len(images) // size)
)
for epoch in range(epochs):
    order = torch.randperm(len(images))
    hits = 0
    for start in range(0, len(images) - size + 1, size):
        index = order[start : start + size]
        x = augment(images[index].float() / 255 - 0.5)
        logits = net(x)
        loss = F.cross_entropy(logits, labels[index], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        hits += (logits.argmax(1) == labels[index]).sum()
    print(f"epoch {epoch} accuracy {hits.item() / len(images):.3f} lr {scheduler.get_last_lr()[0]}")
