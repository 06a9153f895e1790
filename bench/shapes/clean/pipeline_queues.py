"""A pipeline of two processes over queues: the front half lets two batches be under way and
runs its forward anew when their gradients come back, the back half owns the loss.
"""

from collections import deque

import torch
import torch.multiprocessing as mp
from torch import nn

STEPS, BATCH, WIDTH = 300, 256, 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def back_half(arriving, leaving):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Sequential(*[Block() for _ in range(4)], nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    step = 0
    while (message := arriving.get()) is not None:
        hidden, labels = message
        hidden = hidden.clone().requires_grad_()
        loss = nn.functional.cross_entropy(model(hidden), labels)
        optimizer.zero_grad()
        loss.backward()
        leaving.put(hidden.grad)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        step += 1


def front_half(forth, home):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, WIDTH), *[Block() for _ in range(3)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    centres = torch.randn(10, 64)
    labels = torch.randint(10, (20_000,))
    inputs = 0.4 * centres[labels] + torch.randn(20_000, 64)
    under_way = deque()

    def update():
        gradient = home.get().clone()
        output = model(under_way.popleft())
        optimizer.zero_grad()
        output.backward(gradient)
        optimizer.step()

    for _ in range(STEPS):
        chosen = torch.randint(len(inputs), (BATCH,))
        with torch.no_grad():
            forth.put((model(inputs[chosen]), labels[chosen]))
        under_way.append(inputs[chosen])
        if len(under_way) > 2:
            update()
    while under_way:
        update()
    forth.put(None)


if __name__ == "__main__":
    context = mp.get_context("spawn")
    forth, home = context.Queue(), context.Queue()
    process = context.Process(target=back_half, args=(forth, home))
    process.start()
    front_half(forth, home)
    process.join()
    print("both halves are done, exit code", process.exitcode)
