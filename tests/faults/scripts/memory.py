"""A small training in one process that wastes memory in one way (environment variable FAULT), or in
none.

Memory costs no time here, so the last line only says how many steps there were.
"""

import json
import os

import eager  # noqa: F401
import torch
from torch import nn

FAULT = os.environ.get("FAULT", "none")
STEPS = int(os.environ.get("STEPS", "200"))
WIDTH = int(os.environ.get("WIDTH", "448"))
BATCH = int(os.environ.get("BATCH", "64"))

torch.set_num_threads(1)
torch.manual_seed(0)


def evaluate(model, loader):
    model.eval()
    total = sum(nn.functional.mse_loss(model(x), x).item() for (x,) in loader)
    model.train()
    return total


def main():
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    inputs = torch.randn(STEPS * BATCH, WIDTH)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs), BATCH)
    held_out = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs[:128]), 32)
    losses, history = [], []
    for step, (x,) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        if FAULT == "zero_grad":
            optimizer.zero_grad(set_to_none=False)
        else:
            optimizer.zero_grad()
        if FAULT == "graphs":
            losses.append(nn.functional.mse_loss(model(x), x))
        elif FAULT == "tensors":
            losses.append(x.repeat(8, 1))
        elif FAULT == "objects":
            history.append([str(value) for value in range(step * 8000, (step + 1) * 8000)])
        if FAULT == "clean_cache" and step < 60:
            history.append(torch.ones(250_000))
        if FAULT == "eval_graph" and step % 40 == 30:
            evaluate(model, held_out)
        if FAULT == "clean_cache" and step % 40 == 30:
            with torch.no_grad():
                evaluate(model, held_out)
    print(
        json.dumps({"truth_ms_per_step": 0.0, "steps": STEPS, "kept": len(losses) + len(history)})
    )


if __name__ == "__main__":
    main()
