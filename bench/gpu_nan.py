"""A training in fp16 on one GPU whose fourth layer overflows at a step that is known."""

from __future__ import annotations

FAULT_STEP, STEPS, WIDTH = 40, 90, 512


def main() -> None:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.scale = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(self.scale * self.up(x).tanh() * self.scale)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(*(Block() for _ in range(6)))
            self.head = nn.Linear(WIDTH, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x))

    torch.manual_seed(0)
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    rows = torch.utils.data.TensorDataset(torch.randn(STEPS * 64, WIDTH))
    for step, (x,) in enumerate(torch.utils.data.DataLoader(rows, 64)):
        model.body[3].scale = 1e4 if step >= FAULT_STEP else 1.0
        with torch.autocast("cuda", torch.float16):
            out = model(x.cuda())
        loss = out.float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(step, loss.item(), flush=True)


if __name__ == "__main__":
    main()
