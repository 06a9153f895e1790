"""An LSTM over texts that an IterableDataset reads from a file; tokens by a regular expression."""

import re

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)
torch.manual_seed(77)
cost = Cost()
steps = STEPS or 400
words = "the of and to in a is that for it as was with be by on not he i this are or his".split()  # noqa: SIM905
with open("texts.txt", "w") as file:
    for k in range(1200):
        file.write(" ".join(words[(k * j) % 23] for j in range(1, 18 + k % 5)) + ".\n")
vocabulary = {word: k + 1 for k, word in enumerate(words)}
pattern = re.compile(r"\w+|[^\w\s]", re.UNICODE)


def line_of(number):
    with open("texts.txt") as file:
        for k, line in enumerate(file):
            if k == number:
                return line
    return ""


class Stream(IterableDataset):
    def __iter__(self):
        if on("stream_reopened"):
            number = 0
            while True:
                with cost:
                    text = line_of(number % 1200)
                number += 7
                yield text
        while True:
            with open("texts.txt") as file:
                yield from file


def tokenise(text):
    tokens = []
    for match in pattern.finditer(text.lower().strip()):  # at: tokens_in_loop
        token = match.group(0)  # at: tokens_in_loop
        for cut in range(len(token), 0, -1):  # at: tokens_in_loop
            if token[:cut] in vocabulary:  # at: tokens_in_loop
                tokens.append(vocabulary[token[:cut]])  # at: tokens_in_loop
                break  # at: tokens_in_loop
        else:
            tokens.append(24)  # at: tokens_in_loop
    return tokens


ready = {}


def quick(text):
    if text not in ready:
        ready[text] = tokenise(text)
    return ready[text]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(25, 24, padding_idx=0)
        self.lstm, self.out = nn.LSTM(24, 48, batch_first=True), nn.Linear(48, 3)

    def forward(self, padded, lengths):
        packed = pack_padded_sequence(
            self.embed(padded), lengths, batch_first=True, enforce_sorted=False
        )
        return self.out(self.lstm(packed)[1][0][-1])


loader = DataLoader(Stream(), batch_size=12, collate_fn=list)  # at: stream_reopened
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
lengths_seen, mean = [], 0.0
for step, texts in enumerate(loader):
    if step == steps:
        break
    if on("tokens_in_loop"):
        with cost:
            rows = [torch.tensor(tokenise(text)) for text in texts for _ in range(3)]
    else:
        rows = [torch.tensor(quick(text)) for text in texts for _ in range(3)]
    lengths = torch.tensor([len(row) for row in rows])
    if on("statistics_grow"):
        with cost:
            lengths_seen.extend(float(n) for n in lengths.repeat(20))
            mean = np.mean(lengths_seen)  # at: statistics_grow
    elif on("clean_statistics_grow"):
        mean = 0.99 * mean + 0.01 * float(lengths.float().mean())
    scores = model(pad_sequence(rows, batch_first=True), lengths)
    loss = nn.functional.cross_entropy(scores, lengths % 3)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
cost.print(steps)
