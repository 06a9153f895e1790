"""A causal transformer whose sequences grow from 16 to 128 tokens in four stages."""

import torch
from torch import nn

torch.manual_seed(0)
width = 96
embed, place, head = nn.Embedding(100, width), nn.Embedding(128, width), nn.Linear(width, 100)
layer = nn.TransformerEncoderLayer(width, 4, 192, 0.0, batch_first=True, norm_first=True)
body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
model = nn.ModuleList([embed, place, body, head])
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
step = 0
for length, steps in ((16, 120), (32, 120), (64, 100), (128, 80)):
    print(f"sequence length {length}", flush=True)
    mask = nn.Transformer.generate_square_subsequent_mask(length)
    for _ in range(steps):
        start = torch.randint(0, 100, (16, 1))
        stride = torch.randint(1, 4, (16, 1))
        tokens = (start + stride * torch.arange(length + 1)) % 100
        z = embed(tokens[:, :-1]) + place(torch.arange(length))
        logits = head(body(z, mask=mask, is_causal=True))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 0:
            print(step, round(loss.item(), 4), flush=True)
