"""A small training whose loader has two workers, with a dataset of Python objects whose pages each
of them copies (FAULT=objects), or of an array.

Memory costs no time here, so the last line only says how many steps there were.
"""

import json
import os

import eager  # noqa: F401
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FAULT = os.environ.get("FAULT", "none")
STEPS = int(os.environ.get("STEPS", "1600"))
BATCH, WIDTH = 64, 24

torch.set_num_threads(1)
torch.manual_seed(0)


class Readings(Dataset):
    """Rows of numbers as a file of text has them."""

    def __init__(self):
        numbers = np.random.default_rng(0).standard_normal((STEPS * BATCH, WIDTH), np.float32)
        self.rows = numbers
        if FAULT == "objects":
            self.rows = [[str(value) for value in row.tolist()] for row in numbers]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if FAULT == "objects":
            return torch.tensor([float(text) for text in self.rows[index]])
        return torch.from_numpy(self.rows[index])


def main():
    model = nn.Sequential(nn.Linear(WIDTH, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU())
    head = nn.Linear(1024, WIDTH)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=1e-3)
    for rows in DataLoader(Readings(), BATCH, num_workers=2):
        loss = nn.functional.mse_loss(head(model(rows)), rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(json.dumps({"truth_ms_per_step": 0.0, "steps": STEPS}))


if __name__ == "__main__":
    main()
