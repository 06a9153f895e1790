"""A default device, a spawned worker, new_* factories, an LSTM with packed lengths, RMSprop."""

import torch
import torch.multiprocessing as mp
from torch import nn


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(32, 64, batch_first=True)
        self.head = nn.Linear(64, 1)

    def forward(self, x):
        h = x.new_zeros(1, x.size(0), 64)
        out, _ = self.lstm(x, (h, torch.zeros_like(h)))
        return self.head(out[:, -1])


def worker(rank, world):
    torch.cuda.set_device(rank)
    torch.set_default_device("cuda")
    model = Recurrent()
    assert next(model.parameters()).is_cuda
    with torch.device("cuda"):
        target = torch.zeros(8, 1)
    optimizer = torch.optim.RMSprop(model.parameters())
    for step in range(4):
        x = torch.randn(8, 20, 32)
        loss = nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.cpu().numpy(), loss.tolist())


if __name__ == "__main__":
    mp.spawn(worker, args=(1,), nprocs=1)
