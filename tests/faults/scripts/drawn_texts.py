"""A small language model that is trained on texts it draws itself, by their reward; each token is
drawn from the whole text so far (FAULT=whole), or from the last one and what the layers kept.

The last line printed is what that cost: {"truth_ms_per_step": ..., "steps": ...}, by as many texts
drawn either way at the end.
"""

import json
import os
import statistics
import time

import eager  # noqa: F401
import torch
import torch.nn.functional as F
from torch import nn

FAULT = os.environ.get("FAULT", "none")
STEPS = int(os.environ.get("STEPS", "80"))
BATCH, PROMPT, TOKENS, KINDS, WIDTH, HEADS, TIMED = 16, 16, 48, 97, 128, 4, 12
torch.set_num_threads(1)
torch.manual_seed(0)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.project, self.back = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x, kept):
        rows, length, _ = x.shape
        parts = self.project(self.norms[0](x)).view(rows, length, 3, HEADS, -1).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in parts)
        if kept:
            key, value = torch.cat([kept[0], key], 2), torch.cat([kept[1], value], 2)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=not kept)
        x = x + self.back(attended.transpose(1, 2).reshape(rows, length, -1))
        return x + self.mlp(self.norms[1](x)), (key, value)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(KINDS, WIDTH)
        self.places = nn.Embedding(PROMPT + TOKENS, WIDTH)
        self.layers = nn.ModuleList([Layer(), Layer(), Layer()])
        self.head = nn.Linear(WIDTH, KINDS)

    def forward(self, tokens, begin=0, kept=None):
        x = self.tokens(tokens) + self.places(torch.arange(begin, begin + tokens.shape[1]))
        keep = []
        for number, layer in enumerate(self.layers):
            x, kept_now = layer(x, kept[number] if kept else None)
            keep.append(kept_now)
        return self.head(x), keep


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), 3e-4)


@torch.no_grad()
def draw(whole):
    text = torch.randint(KINDS, (BATCH, PROMPT))
    scores, kept = model(text)
    for _ in range(TOKENS - 1):
        token = torch.multinomial(scores[:, -1].softmax(-1), 1)
        text = torch.cat([text, token], 1)
        if whole:
            scores, _ = model(text)
        else:
            scores, kept = model(token, text.shape[1] - 1, kept)
    return text


def draw_ms(whole):
    begin = time.perf_counter()
    draw(whole)
    return (time.perf_counter() - begin) * 1e3


for step in range(STEPS):
    text = draw(whole=FAULT == "whole")
    reward = (text[:, PROMPT:] % 2 == 0).float().mean(1)
    gain = (reward - reward.mean()) / (reward.std() + 1e-4)
    scores, _ = model(text[:, :-1])
    chosen = -F.cross_entropy(scores.transpose(1, 2), text[:, 1:], reduction="none")
    loss = -(gain[:, None] * chosen)[:, PROMPT - 1 :].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step} reward {reward.mean():.3f}", flush=True)

if FAULT == "whole":
    pairs = [(draw_ms(whole=True), draw_ms(whole=False)) for _ in range(TIMED)]
    truth = statistics.median(again - once for again, once in pairs)
    print(json.dumps({"truth_ms_per_step": truth, "steps": STEPS}))
