"""A VAE whose KL term is warmed up cyclically, evaluated and sampled at the end of each epoch."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 40))
        self.decoder = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 784))

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.decoder(z), mu, logvar


def loss_of(out, x, mu, logvar, beta):
    fit = F.binary_cross_entropy_with_logits(out, x, reduction="sum")
    return (fit - beta * 0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum()) / len(x)


model = VAE()
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
codes = torch.randn(12_000, 10)
x = torch.sigmoid(codes @ torch.randn(10, 784)).round()
train = DataLoader(TensorDataset(x[:11_000]), 128, shuffle=True)
test = DataLoader(TensorDataset(x[11_000:]), 500)
step, cycle = 0, 300
for epoch in range(9):
    model.train()
    for (batch,) in train:
        beta = min(1.0, (step % cycle) / (cycle / 2))
        loss = loss_of(*[(out := model(batch))[0], batch, out[1], out[2]], beta)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    model.eval()
    with torch.no_grad():
        total = sum(loss_of((o := model(b))[0], b, o[1], o[2], 1.0).item() for (b,) in test)
        torch.save(model.decoder(torch.randn(64, 20)).sigmoid(), f"samples_{epoch}.pt")
    print(f"epoch {epoch} beta {beta:.2f} train {loss.item():.2f} test {total / len(test):.2f}")
