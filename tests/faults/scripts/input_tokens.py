"""A small model over padded sequences, whose lengths differ a lot (FAULT=padding) or hardly."""

import json
import os

import eager  # noqa: F401
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FAULT = os.environ.get("FAULT", "none")
STEPS = int(os.environ.get("STEPS", "200"))
BATCH, LONGEST = 8, 128
torch.set_num_threads(1)
torch.manual_seed(0)


class Texts(Dataset):
    """Token ids: one text in eight is long, the others are short."""

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        short = FAULT == "padding" and index % BATCH
        return torch.randint(1, 500, (LONGEST // 8 if short else LONGEST - index % 5,))


def pad(texts):
    ids = nn.utils.rnn.pad_sequence(texts, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(500, 96)
        self.layers = nn.Sequential(
            nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 96), nn.GELU(), nn.Linear(96, 500)
        )

    def forward(self, input_ids, attention_mask):
        losses = nn.functional.cross_entropy(
            self.layers(self.words(input_ids)).transpose(1, 2), input_ids, reduction="none"
        )
        return (losses * attention_mask).sum() / attention_mask.sum()


def main():
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in DataLoader(Texts(), BATCH, shuffle=False, collate_fn=pad):
        model(**batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(json.dumps({"truth_ms_per_step": 0.0, "steps": STEPS}))


if __name__ == "__main__":
    main()
