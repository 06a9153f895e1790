"""A small training that computes all the time, with too little of something the machine gives
(FAULT), or none.

Its own clocks say what that cost; the last line printed is the figure.
"""

import json
import os
import time

import eager  # noqa: F401
import torch
from torch import nn

FAULT = os.environ.get("FAULT", "none")
STEPS = int(os.environ.get("STEPS", "150"))
BUFFER_FLOATS = 12_000_000
if FAULT == "threads":
    torch.set_num_threads(12)
else:
    torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    """A perceptron that fills a large buffer in each forward: always the same, or a new one."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
        self.kept = torch.empty(BUFFER_FLOATS if FAULT == "page_faults" else 1)
        self.lost_s = 0.0

    def forward(self, x):
        begin = time.perf_counter()
        (torch.empty(BUFFER_FLOATS) if FAULT == "page_faults" else self.kept).fill_(1.0)
        self.lost_s += time.perf_counter() - begin
        return self.layers(x)


def fill_s(buffer, times=20):
    """How long it takes to fill a buffer that is there."""
    begin = time.perf_counter()
    for _ in range(times):
        buffer.fill_(1.0)
    return (time.perf_counter() - begin) / times


def main():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(256, 256)
    plain = [fill_s(model.kept.fill_(0.0))]
    begin = time.perf_counter(), time.thread_time()
    for step in range(STEPS):
        if step % 10 == 0:  # the machine's speed drifts
            plain.append(fill_s(model.kept, 1))
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    wall_s, cpu_s = time.perf_counter() - begin[0], time.thread_time() - begin[1]
    lost_s = {
        "page_faults": model.lost_s - STEPS * sum(plain) / len(plain),
        "quota": wall_s - cpu_s,
    }.get(FAULT, 0.0)
    print(
        json.dumps(
            {
                "truth_ms_per_step": lost_s / STEPS * 1e3,
                "steps": STEPS,
                "step_ms": wall_s / STEPS * 1e3,
            }
        )
    )


if __name__ == "__main__":
    main()
