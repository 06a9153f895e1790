"""torch.compile with the backend "eager" over a residual MLP, a validation with a larger batch."""

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.net = nn.Sequential(
            nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        return x + self.net(self.norm(x))


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 192), *(Residual(192) for _ in range(4)), nn.Linear(192, 4))
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(400):
    model.train()
    x = torch.randn(64, 32)
    loss = nn.functional.mse_loss(compiled(x), x[:, :4] * x[:, 4:8])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 49:
        model.eval()
        with torch.no_grad():
            x = torch.randn(256, 32)
            valid = nn.functional.mse_loss(compiled(x), x[:, :4] * x[:, 4:8])
        print(f"step {step} train {loss.item():.4f} valid {valid.item():.4f}", flush=True)
