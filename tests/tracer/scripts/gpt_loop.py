"""In the manner of nanoGPT: tied embeddings, fused AdamW in groups, bf16 autocast, mapped data,
torch.compile.
"""

import contextlib
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

seq, batch, width, heads, vocab = 64, 4, 64, 4, 512
checkpointing = "--checkpointing" in sys.argv
np.random.randint(0, vocab, 10_000).astype(np.uint16).tofile("train.bin")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.register_buffer("bias", torch.tril(torch.ones(seq, seq)).view(1, 1, seq, seq))

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = (
            part.view(b, t, heads, c // heads).transpose(1, 2)
            for part in self.qkv(self.ln_1(x)).split(c, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(seq, width)
        self.h = nn.ModuleList(Block() for _ in range(2))
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.wte.weight = self.lm_head.weight
        self.apply(self._init)

    def _init(self, module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids, targets=None):
        x = self.wte(ids) + self.wpe(torch.arange(ids.size(1), device=ids.device))
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=False) if checkpointing else block(x)
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, vocab), targets.view(-1), ignore_index=-1)


def get_batch():
    data = np.memmap("train.bin", dtype=np.uint16, mode="r")
    at = torch.randint(len(data) - seq, (batch,))
    x = torch.stack([torch.from_numpy(data[i : i + seq].astype(np.int64)) for i in at])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + seq].astype(np.int64)) for i in at])
    return x.pin_memory().to("cuda", non_blocking=True), y.pin_memory().to(
        "cuda", non_blocking=True
    )


device_type = "cuda"
ctx = (
    contextlib.nullcontext()
    if device_type == "cpu"
    else torch.amp.autocast(device_type=device_type, dtype=torch.bfloat16)
)
torch.backends.cuda.matmul.allow_tf32 = True
model = GPT().to("cuda")
decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], fused=True
)
model = torch.compile(model)
X, Y = get_batch()
for step in range(4):
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * (step + 1)
    for micro in range(2):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / 2
        X, Y = get_batch()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    torch.save(
        {"model": model.state_dict(), "step": step}, os.path.join(".", "ckpt.pt")
    ) if step > 3 else None
    print(f"iter {step}: loss {loss.item() * 2:.4f}")
