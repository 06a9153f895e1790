"""A Lion optimizer by hand, with a warm-up from a rate of 0 and cosine restarts after it."""

import math

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(12)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                momentum = state["momentum"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.lerp(p.grad, momentum, first).sign_(), alpha=-group["lr"])
                momentum.lerp_(p.grad, 1 - second)
        return loss


def factor(step, warm=40, period=160):
    if step < warm:
        return step / warm
    place = (step - warm) % period / period
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * place))


def signals(count, length=128):
    kinds = torch.randint(6, (count,))
    time = torch.arange(length) / length
    pitch = (4 + 2 * kinds + torch.rand(count))[:, None]
    wave = torch.sin(2 * math.pi * (pitch * time + torch.rand(count, 1)))
    return (wave + 0.9 * torch.randn(count, length))[:, None], kinds


model = nn.Sequential(
    nn.Conv1d(1, 32, 9, 2, 4), nn.GroupNorm(4, 32), nn.SiLU(),
    nn.Conv1d(32, 64, 9, 2, 4), nn.GroupNorm(4, 64), nn.SiLU(),
    nn.Conv1d(64, 64, 9, 2, 4), nn.GroupNorm(4, 64), nn.SiLU(),
    nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(128, 6),
)  # fmt: skip
x, y = signals(8_000)
optimizer = Lion(model.parameters(), lr=4e-4, weight_decay=0.1)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
criterion = nn.CrossEntropyLoss()
for step in range(520):
    rows = torch.randint(len(x), (64,))
    optimizer.zero_grad()
    loss = criterion(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 40 == 0:
        print(f"step {step} rate {optimizer.param_groups[0]['lr']:.1e} loss {loss.item():.4f}")
