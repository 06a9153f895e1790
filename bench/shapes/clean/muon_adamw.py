"""Two optimizers on one model: orthogonalised momentum (after Muon) for the matrices of a mixer,
AdamW for all else.
"""

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(21)


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95, rounds=5):
        super().__init__(params, {"lr": lr, "momentum": momentum, "rounds": rounds})

    @staticmethod
    def orthogonal(matrix, rounds):
        x = matrix / (matrix.norm() + 1e-7)
        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        for _ in range(rounds):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return x.T if tall else x

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "velocity" not in state:
                    state["velocity"] = torch.zeros_like(p)
                velocity = state["velocity"].mul_(group["momentum"]).add_(p.grad)
                wanted = p.grad.add(velocity, alpha=group["momentum"])
                update = self.orthogonal(wanted, group["rounds"])
                scale = max(1.0, p.shape[0] / p.shape[1]) ** 0.5
                p.add_(update, alpha=-group["lr"] * scale)


class Mixer(nn.Module):
    def __init__(self, width=64, tokens=32):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.tokens = nn.Sequential(nn.Linear(tokens, 64), nn.GELU(), nn.Linear(64, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, width))

    def forward(self, x):
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norms[1](x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(12, 64)
        self.blocks = nn.Sequential(Mixer(), Mixer())
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 9)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.stem(x)).mean(1)))


shapes = torch.randn(9, 32, 12)
labels = torch.randint(9, (12_000,))
signals = 0.2 * shapes[labels] + torch.randn(12_000, 32, 12)
model = Net()
matrices = [p for name, p in model.named_parameters() if "blocks" in name and p.ndim == 2]
chosen = {id(p) for p in matrices}
others = [p for p in model.parameters() if id(p) not in chosen]
optimizers = [Muon(matrices, lr=0.01), torch.optim.AdamW(others, lr=1e-3, weight_decay=0.01)]
schedules = [torch.optim.lr_scheduler.LinearLR(one, 1.0, 0.1, 250) for one in optimizers]
for step in range(250):
    rows = torch.randint(10_000, (96,))
    loss = nn.functional.cross_entropy(model(signals[rows]), labels[rows])
    loss.backward()
    for optimizer, schedule in zip(optimizers, schedules, strict=True):
        optimizer.step()
        schedule.step()
    model.zero_grad(set_to_none=True)
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")
with torch.no_grad():
    right = (model(signals[10_000:]).argmax(1) == labels[10_000:]).float().mean()
print(f"held out {right.item():.3f}")
