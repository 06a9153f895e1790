"""A small GPT on a byte-pair-like Python tokenizer, trained by a Trainer class of another file."""

import os

if not any(word in os.environ.get("FAULT", "") for word in ("ompile", "profiler")):
    import eager  # noqa: F401
import contextlib
import random

import torch
from shape import STEPS, on
from torch import nn
from trainer import Trainer

torch.set_num_threads(1)
torch.manual_seed(3)
random.seed(3)
WORDS = [
    "".join(random.choice("abcdefghij") for _ in range(random.randint(2, 9))) for _ in range(400)
]


class Tokenizer:
    """Greedy longest match in Python."""

    def __init__(self):
        pieces = {word[:k] for word in WORDS for k in range(1, 4)} | set("abcdefghij ")
        self.ids = {piece: k for k, piece in enumerate(sorted(pieces)[:500])}
        for letter in "abcdefghij ":
            self.ids.setdefault(letter, len(self.ids))

    def encode(self, text):
        tokens, k = [], 0
        while k < len(text):  # at: tokenize
            for size in (3, 2, 1):  # at: tokenize
                piece = text[k : k + size]  # at: tokenize
                if piece in self.ids:  # at: tokenize
                    tokens.append(self.ids[piece])  # at: tokenize
                    break  # at: tokenize
            k += size  # at: tokenize
        return tokens  # at: tokenize

    def batch(self, rows, length):
        text = [" ".join(random.choices(WORDS, k=400)) for _ in range(rows)]  # at: tokenize
        return torch.tensor([self.encode(one)[: length + 1] for one in text])  # at: tokenize


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = (
            nn.LayerNorm(width),
            nn.MultiheadAttention(width, 4, batch_first=True),
        )
        hidden = 4 * width
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)
        )

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


class GPT(nn.Module):
    def __init__(self, vocabulary=520, width=64):
        super().__init__()
        self.embed, self.position = nn.Embedding(vocabulary, width), nn.Embedding(128, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head, self.scale = nn.Linear(width, vocabulary), nn.Parameter(torch.ones(1))

    def forward(self, tokens):
        x = self.embed(tokens) + self.position.weight[: tokens.shape[1]]
        with torch.no_grad() if on("no_grad_body") else contextlib.nullcontext():
            x = self.blocks(x)
        return self.head(x) * self.scale


tokenizer, model = Tokenizer(), GPT()
batches = [tokenizer.batch(8, 48) for _ in range(30)]
if on("recompile", "clean_recompile"):
    torch._dynamo.config.recompile_limit = 64
    model = torch.compile(model, backend="eager", dynamic=False)
    if on("recompile"):
        batches = [one[:, : 10 + k % 38] for k, one in enumerate(batches * 8)]
        batches = [one for k in range(38) for one in [batches[k]] * 5]
    else:
        batches = [one[:, : 24 + 8 * (k % 3)] for k, one in enumerate(batches)]
wanted = list(model.parameters())
if on("clean_no_grad_body"):
    model.blocks.requires_grad_(False)
    wanted = [one for one in wanted if one.requires_grad]
if on("half_optimizer"):
    wanted = list(model.head.parameters())
if on("float64"):
    model = model.double()
    wanted = list(model.parameters())
optimizer = torch.optim.AdamW(wanted, 1e-3)
steps = STEPS or 320
trainer = Trainer(model, optimizer, batches, tokenizer=tokenizer, valid=batches[:6])
if on("anomaly"):
    torch.autograd.set_detect_anomaly(True)  # at: anomaly
if on("profiler", "clean_profiler"):
    from torch.profiler import profile

    with profile():  # at: profiler
        trainer.fit(steps if on("profiler") else 4)
    if on("clean_profiler"):
        trainer.fit(steps)
elif on("clean_anomaly"):
    with torch.autograd.detect_anomaly():
        trainer.fit(6)
    trainer.fit(steps)
else:
    trainer.fit(steps)
trainer.cost.print(steps)
