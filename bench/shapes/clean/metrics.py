"""A classifier with metrics as objects (accuracy, confusion matrix, running mean), reset each
epoch; validation at each epoch.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Confusion:
    def __init__(self, classes):
        self.classes = classes
        self.reset()

    def reset(self):
        self.table = torch.zeros(self.classes, self.classes, dtype=torch.long)

    def update(self, predicted, target):
        index = target * self.classes + predicted
        self.table += torch.bincount(index, minlength=self.classes**2).view_as(self.table)

    def compute(self):
        recall = self.table.diag() / self.table.sum(1).clamp(min=1)
        precision = self.table.diag() / self.table.sum(0).clamp(min=1)
        f1 = 2 * recall * precision / (recall + precision).clamp(min=1e-9)
        return {
            "accuracy": (self.table.diag().sum() / self.table.sum()).item(),
            "f1": f1.mean().item(),
        }


class Mean:
    def __init__(self):
        self.total, self.count = torch.zeros(()), 0

    def update(self, value):
        self.total += value.detach()
        self.count += 1

    def compute(self):
        return (self.total / self.count).item()


torch.manual_seed(2)
x = torch.randn(12_000, 40)
y = (x @ torch.randn(40, 8)).argmax(1)
train = DataLoader(TensorDataset(x[:10_000], y[:10_000]), 100, shuffle=True)
valid = DataLoader(TensorDataset(x[10_000:], y[10_000:]), 200)
model = nn.Sequential(
    nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)
)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
matrix = Confusion(8)
for epoch in range(10):
    model.train()
    matrix.reset()
    mean = Mean()
    for features, labels in train:
        logits = model(features)
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        matrix.update(logits.argmax(1), labels)
        mean.update(loss)
    trained = matrix.compute()
    model.eval()
    matrix.reset()
    with torch.inference_mode():
        for features, labels in valid:
            matrix.update(model(features).argmax(1), labels)
    print(epoch, mean.compute(), trained, matrix.compute(), flush=True)
