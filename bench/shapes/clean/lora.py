"""LoRA by hand: low-rank adapters beside frozen linear layers; the adapters alone are saved."""

import math

import torch
from torch import nn


class LoRA(nn.Module):
    def __init__(self, base, rank=8, alpha=16):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.empty(rank, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + (x @ self.a.T @ self.b.T) * self.scale


torch.manual_seed(0)
layers = [nn.TransformerEncoderLayer(128, 4, 256, 0.0, batch_first=True) for _ in range(3)]
model = nn.Sequential(nn.Embedding(300, 128), *layers, nn.Linear(128, 300))
model.requires_grad_(False)
for layer in layers:
    layer.linear1, layer.linear2 = LoRA(layer.linear1), LoRA(layer.linear2)
model[-1] = LoRA(model[-1])
trained = [p for p in model.parameters() if p.requires_grad]
print(
    f"trainable {sum(p.numel() for p in trained):,} of "
    f"{sum(p.numel() for p in model.parameters()):,}"
)
optimizer = torch.optim.AdamW(trained, 2e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1, s / 20) * (1 - s / 260))
for step in range(260):
    tokens = (torch.randint(0, 300, (16, 1)) + torch.arange(33)) % 300
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 20 == 0:
        print(step, loss.item(), flush=True)
torch.save({n: p for n, p in model.named_parameters() if p.requires_grad}, "adapters.pt")
