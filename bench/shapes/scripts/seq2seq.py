"""An encoder and decoder of Transformer layers with padded batches; greedy generation
for the log.
"""

import random

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(9)
random.seed(9)
steps, cost = STEPS or 120, Cost()


class Texts(Dataset):
    def __init__(self):
        lengths = [min(64, 4 + int(random.expovariate(1 / 9))) for _ in range(1200)]
        if not on("padding"):
            lengths = [40 + k % 8 for k in range(1200)]
        self.texts = [[random.randrange(3, 200) for _ in range(size)] for size in lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index]


def collate(texts):
    size = 64 if on("padding") else max(map(len, texts))
    ids = torch.zeros(len(texts), size, dtype=torch.long)
    for k, text in enumerate(texts):
        ids[k, : len(text)] = torch.tensor(text)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids}


class Translator(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.Embedding(200, width)
        self.body = nn.Transformer(width, 4, 1, 1, 96, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, 200)

    def forward(self, source, target):
        return self.head(self.body(self.embed(source), self.embed(target)))

    def generate(self, source, length):
        words = source[:, :1]
        for _ in range(length):
            step = self(source, words)[:, -1].argmax(-1)  # at: generate
            words = torch.cat([words, step[:, None]], 1)  # at: generate
        return words  # at: generate


loader = DataLoader(Texts(), batch_size=12, shuffle=True, collate_fn=collate)
net = Translator()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
done = 0
while done < steps:
    for batch in loader:
        ids = batch["input_ids"]
        logits = net(ids, ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        if on("generate") or (on("clean_generate") and done == 60):
            net.eval()
            with torch.no_grad(), cost:
                net.generate(ids[:4], 8)  # at: generate
            net.train()
        if on("eval_graph") and done % 3 == 0:
            net.eval()
            for _ in range(2):
                out = net(ids, ids)  # at: eval_graph
            net.train()
        if done >= steps:
            break
cost.print(steps)
