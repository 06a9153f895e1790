"""A teacher trained first, then a student distilled from it with a temperature, in one script."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(6_400, 60)
y = (x[:, :20].pow(2) @ torch.randn(20, 10)).argmax(1)
loader = DataLoader(TensorDataset(x, y), 64, shuffle=True)
teacher = nn.Sequential(
    nn.Linear(60, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 10)
)
student = nn.Sequential(nn.Linear(60, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(teacher.parameters(), 1e-3)
for epoch in range(4):
    for features, labels in loader:
        loss = F.cross_entropy(teacher(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("teacher", epoch, loss.item(), flush=True)
teacher.eval()
optimizer = torch.optim.Adam(student.parameters(), 2e-3)
for epoch in range(6):
    for features, labels in loader:
        with torch.no_grad():
            wanted = F.softmax(teacher(features) / 4, 1)
        out = student(features)
        soft = F.kl_div(F.log_softmax(out / 4, 1), wanted, reduction="batchmean") * 16
        loss = 0.7 * soft + 0.3 * F.cross_entropy(out, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("student", epoch, loss.item(), flush=True)
