"""A character GPT with gradient accumulation, cosine restarts, clipping and an evaluation of both
splits every 50 updates.
"""

import math
import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1337)
batch, block, width, heads, layers, accumulation = 12, 64, 96, 4, 3, 4
text = " ".join(f"{i} times {i} is {i * i}." for i in range(9_000))
chars = sorted(set(text))
data = torch.tensor([chars.index(c) for c in text])
train, valid = data[: int(0.9 * len(data))], data[int(0.9 * len(data)) :]


def get_batch(split):
    source = train if split == "train" else valid
    at = torch.randint(len(source) - block, (batch,))
    x = torch.stack([source[i : i + block] for i in at])
    y = torch.stack([source[i + 1 : i + 1 + block] for i in at])
    return x, y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(width, 2)
        q, k, v = (z.view(b, t, heads, c // heads).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(len(chars), width), nn.Embedding(block, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, len(chars), bias=False)
        self.head.weight = self.wte.weight

    def forward(self, x, y):
        z = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for part in self.blocks:
            z = part(z)
        logits = self.head(self.ln(z))
        return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())


model = GPT()
decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
    lr=1e-3, betas=(0.9, 0.95),
)  # fmt: skip


@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {}
    for split in ("train", "valid"):
        out[split] = sum(model(*get_batch(split))[1].item() for _ in range(6)) / 6
    model.train()
    return out


def get_lr(it):
    if it < 20:
        return 1e-3 * (it + 1) / 20
    return 1e-4 + 0.5 * 9e-4 * (1 + math.cos(math.pi * ((it - 20) % 60) / 60))


t0 = time.time()
x, y = get_batch("train")
for it in range(200):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    if it % 50 == 0:
        print(it, estimate_loss())
    for _ in range(accumulation):
        _, loss = model(x, y)
        loss = loss / accumulation
        x, y = get_batch("train")
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if it % 10 == 0:
        print(f"iter {it}: loss {loss.item() * accumulation:.4f}, {time.time() - t0:.1f} s")
