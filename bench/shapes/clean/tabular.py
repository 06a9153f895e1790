"""A table of customers read from CSV with missing values, an MLP with batch norm and dropout, early
stopping on validation AUC.
"""

import csv
import math
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(1)
torch.manual_seed(1)
with open("customers.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["age", "income", "tenure", "calls", "city", "churned"])
    for _ in range(20_000):
        age, calls = random.randint(18, 80), random.randint(0, 9)
        income = "" if random.random() < 0.05 else round(random.gauss(40_000, 9_000), 2)
        churned = int(random.random() < 1 / (1 + math.exp(4 - calls * 0.8)))
        writer.writerow([age, income, random.random() * 10, calls, random.choice("ABCD"), churned])
with open("customers.csv") as file:
    rows = list(csv.DictReader(file))
mean = sum(float(row["income"]) for row in rows if row["income"]) / len(rows)
columns = [
    [float(row["age"]), float(row["income"] or mean), float(row["tenure"]), float(row["calls"])]
    + [float(row["city"] == city) for city in "ABCD"]
    for row in rows
]
x = torch.tensor(columns)
x = (x - x.mean(0)) / x.std(0)
y = torch.tensor([float(row["churned"]) for row in rows])
train, valid = TensorDataset(x[:16_000], y[:16_000]), (x[16_000:], y[16_000:])
model = nn.Sequential(
    nn.Linear(8, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.3),
    nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 1),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=2)
best, waited = 0.0, 0
for epoch in range(30):
    model.train()
    for features, labels in DataLoader(train, batch_size=128, shuffle=True):
        loss = nn.functional.binary_cross_entropy_with_logits(model(features)[:, 0], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        scores = model(valid[0])[:, 0]
    ranks = scores.argsort().argsort().float() + 1
    positive = valid[1].sum()
    auc = (ranks[valid[1] == 1].sum() - positive * (positive + 1) / 2) / (
        positive * (len(scores) - positive)
    )
    scheduler.step(auc)
    print(f"epoch {epoch}: loss {loss.item():.4f} auc {auc:.4f}")
    if auc > best + 1e-4:
        best, waited = auc, 0
        torch.save(model.state_dict(), "best.pt")
    else:
        waited += 1
    if waited == 5:
        print("early stopping")
        break
