"""Five-fold cross-validation in one process: a new model, optimizer and schedule for each fold."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(4_000, 30)
y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).long()
folds = torch.randperm(len(x)).chunk(5)
scores = []
for number, valid in enumerate(folds):
    train = torch.cat([fold for other, fold in enumerate(folds) if other != number])
    model = nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 2))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
    for _ in range(12):
        model.train()
        for index in train[torch.randperm(len(train))].split(64):
            loss = nn.functional.cross_entropy(model(x[index]), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        scores.append((model(x[valid]).argmax(1) == y[valid]).float().mean().item())
    print(f"fold {number}: {scores[-1]:.4f}", flush=True)
print(f"mean {sum(scores) / 5:.4f}")
