"""A ViT fine-tuned with its lower layers frozen, layer-wise learning rates, warm-up, mixup and an
exponential average of the trained part.
"""

import copy

import torch
from torch import nn

torch.manual_seed(3)
width, depth = 128, 5


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.position = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 256, 0.1, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 6)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[:, 0]))


pretrained = ViT().state_dict()
model = ViT()
model.load_state_dict(pretrained)
model.head = nn.Linear(width, 4)
for part in (model.patch, model.layers[0], model.layers[1], model.layers[2]):
    part.requires_grad_(False)
model.position.requires_grad_(False)
model.token.requires_grad_(False)
groups = [
    {"params": model.layers[3].parameters(), "lr": 1e-4},
    {"params": model.layers[4].parameters(), "lr": 3e-4},
    {"params": [*model.norm.parameters(), *model.head.parameters()], "lr": 1e-3},
]
optimizer = torch.optim.AdamW(groups, weight_decay=0.05)
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=30)
decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 370)
scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, decay], [30])
average = copy.deepcopy(model).eval().requires_grad_(False)
for step in range(400):
    x = torch.randn(32, 3, 32, 32)
    y = (x.mean((2, 3)).argmax(1) + (x[:, 0, 0, 0] > 1)) % 4
    lam = torch.distributions.Beta(0.4, 0.4).sample()
    other = torch.randperm(32)
    model.train()
    out = model(lam * x + (1 - lam) * x[other])
    loss = lam * nn.functional.cross_entropy(out, y) + (1 - lam) * nn.functional.cross_entropy(
        out, y[other]
    )
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    optimizer.step()
    scheduler.step()
    with torch.no_grad():
        for old, new in zip(average.parameters(), model.parameters(), strict=False):
            if new.requires_grad:
                old.lerp_(new, 0.01)
    if step % 100 == 99:
        with torch.no_grad():
            model.eval()
            x = torch.randn(128, 3, 32, 32)
            print(step, loss.item(), average(x).std().item())
