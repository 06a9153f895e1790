"""Stochastic weight averaging: SWALR after two thirds of the epochs, batch norm at the end."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(4_000, 1, 20, 20)
y = (x[:, 0, :10].mean((1, 2)) > x[:, 0, 10:].mean((1, 2))).long()
loader = DataLoader(TensorDataset(x, y), 50, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 49, 2),
)  # fmt: skip
averaged = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)
constant = SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)
for epoch in range(9):
    for pictures, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
    if epoch >= 6:
        averaged.update_parameters(model)
        constant.step()
    else:
        scheduler.step()
    print(epoch, loss.item(), optimizer.param_groups[0]["lr"], flush=True)
update_bn(loader, averaged)
averaged.eval()
with torch.no_grad():
    print((averaged(x[:1000]).argmax(1) == y[:1000]).float().mean().item())
