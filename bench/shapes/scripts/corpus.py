"""Sentences from a file for a small masked model, streamed: the file is opened anew for each, a
buffer is sorted for each, words are looked up in a list, rows are filled up to the longest there
may be.
"""

import random

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

steps, cost = STEPS or 220, Cost()
torch.set_num_threads(1)
torch.manual_seed(121)
random.seed(121)
vocabulary = [f"word{n}" for n in range(6000)]
index = {word: n for n, word in enumerate(vocabulary)}
with open("corpus.txt", "w") as file:
    for _ in range(6000):
        file.write(" ".join(random.choices(vocabulary, k=random.randint(6, 16))) + "\n")


class Sentences(IterableDataset):
    def __iter__(self):
        buffer, number = [], 0
        lines = open("corpus.txt").read().splitlines()  # noqa: SIM115
        while True:
            if on("opened_anew"):
                with cost, open("corpus.txt") as file:
                    text = file.read().splitlines()[number % 6000]  # at: opened_anew
            else:
                text = lines[number % 6000]
            number += 1
            buffer.append((random.random(), text))
            if on("buffer_sorted"):
                with cost:
                    buffer.sort(key=lambda pair: (len(pair[1]), pair[0]))  # at: buffer_sorted
                    if len(buffer) > 4000:
                        buffer.pop(0)
            text = buffer[-1][1]
            if not on("buffer_sorted"):
                buffer.clear()
            if on("looked_up_in_list"):
                with cost:
                    row = [vocabulary.index(word) for word in text.split()]  # at: looked_up_in_list
                yield row
            else:
                yield [index[word] for word in text.split()]


def collate(rows):
    longest = 96 if on("filled_up") else max(len(row) for row in rows)  # at: filled_up
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = torch.tensor(row)
    mask = torch.zeros_like(ids)
    for at, row in enumerate(rows):
        mask[at, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(1500, 48), nn.Linear(48, 500)
        layer = nn.TransformerEncoderLayer(48, 2, 96, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, input_ids, attention_mask):
        x = self.layers(self.words(input_ids % 1500), src_key_padding_mask=attention_mask == 0)
        return self.out(x)


model = Masked()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
loader = DataLoader(  # at: opened_anew buffer_sorted looked_up_in_list filled_up
    Sentences(), batch_size=12, collate_fn=collate
)
for step, batch in enumerate(loader):  # at: opened_anew buffer_sorted looked_up_in_list
    scores = model(**batch)
    keep = batch["attention_mask"] == 1
    if on("everything_masked") and step == 150:
        keep[:] = False
    loss = nn.functional.cross_entropy(  # at: everything_masked
        scores[keep], batch["input_ids"][keep] % 500
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(step, loss.item(), flush=True)
    if step == steps:
        break
cost.print(steps)
