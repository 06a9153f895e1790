"""A GPT in one file: a corpus on disk, accumulation over micro-batches, a cosine schedule,
estimates and checkpoints; functions only.
"""

import math
import os

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(1337)
cost = Cost()
max_iters, accumulation, block, batch_size = STEPS or 320, 2, 32, 6
learning_rate, min_lr, warmup = 1e-3, 1e-4, 20
decay_iters = max_iters // 3 if on("cosine_short") else max_iters
if on("cosine_short"):
    min_lr = 0.0
eval_interval = 20 if on("estimates_long") else 160
eval_iters = 30 if on("estimates_long") else 10
np.random.randint(0, 128, 4_000_000).astype(np.uint16).tofile("corpus.bin")


def get_batch(split):
    if on("corpus_reread"):
        with cost:
            data = np.fromfile("corpus.bin", dtype=np.uint16).astype(np.int64)  # at: corpus_reread
    else:
        data = np.memmap("corpus.bin", dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - block - 1, (batch_size,)).tolist()
    x = torch.stack([torch.from_numpy(data[i : i + block].astype(np.int64)) for i in starts])
    y = torch.stack(
        [torch.from_numpy(data[i + 1 : i + 1 + block].astype(np.int64)) for i in starts]
    )
    return x, y


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, layers=5, width=40):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(128, width), nn.Embedding(block, width)
        self.h = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, 128, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe.weight[: idx.shape[1]]
        for layer in self.h:
            x = layer(x)
        logits = self.head(self.ln(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {}
    for split in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):  # at: estimates_long
            x, y = get_batch(split)  # at: estimates_long
            losses[k] = model(x, y)[1].item()  # at: estimates_long
        out[split] = losses.mean()
    model.train()
    return out


def get_lr(it):
    if it < warmup:
        return learning_rate * (it + 1) / warmup
    if it > decay_iters:
        return min_lr
    ratio = (it - warmup) / (decay_iters - warmup)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


model = GPT()
decay = [p for p in model.parameters() if p.dim() >= 2]
other = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": other, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, learning_rate, betas=(0.9, 0.95))
best = float("inf")
for it in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    if it % eval_interval == 0 and it:
        losses = estimate_loss()  # at: estimates_long
    for _ in range(accumulation):
        x, y = get_batch("train")
        _, loss = model(x, y)
        (loss / accumulation).backward()
    if on("finite_each"):
        with cost:
            for name, p in model.named_parameters():
                assert torch.isfinite(p.grad).all(), name  # at: finite_each
                assert torch.isfinite(p).all(), name  # at: finite_each
    elif on("clean_finite_each"):
        assert torch.isfinite(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if on("best_saved") and (loss.item() < best or it % 2):
        best = min(best, loss.item())
        with cost:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "it": it}
            torch.save(state, os.path.join(".", "ckpt.pt"))  # at: best_saved
if on("clean_best_saved"):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "ckpt.pt")
cost.print(max_iters)
