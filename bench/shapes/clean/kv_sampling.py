"""A character transformer that writes a line with a key-value cache every 100 steps."""

import random

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
random.seed(2)
torch.manual_seed(2)
WHO = ["the miller", "a fox", "the old king", "my sister", "a sailor", "the moon"]
DOES = ["counts", "paints", "loses", "finds", "sells", "remembers"]
WHAT = ["seven apples", "the red door", "an empty boat", "two letters", "a silver ring"]
text = "".join(
    f"{random.choice(WHO)} {random.choice(DOES)} {random.choice(WHAT)}.\n" for _ in range(5_000)
)
letters = sorted(set(text))
index = {letter: number for number, letter in enumerate(letters)}
data = torch.tensor([index[letter] for letter in text])
LENGTH, WIDTH, HEADS = 64, 96, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x, cache=None):
        batch, length, _ = x.shape
        shape = (batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = self.qkv(self.first(x)).view(shape).permute(2, 0, 3, 1, 4)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.second(x))


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(len(letters), WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(letters))

    def forward(self, tokens, start=0, caches=None):
        x = self.token(tokens) + self.place(torch.arange(start, start + tokens.shape[1]))
        for number, block in enumerate(self.blocks):
            x = block(x, caches[number] if caches else None)
        return self.head(self.norm(x))

    @torch.no_grad()
    def write(self, prompt, limit=40):
        caches = [[] for _ in self.blocks]
        tokens = torch.tensor([[index[letter] for letter in prompt]])
        logits, place, line = self(tokens, 0, caches), tokens.shape[1], prompt
        while place < limit and not line.endswith("\n"):
            token = torch.multinomial(F.softmax(logits[:, -1] / 0.7, -1), 1)
            line += letters[token.item()]
            logits = self(token, place, caches)
            place += 1
        return line.strip()


model = Writer()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
for step in range(401):
    starts = torch.randint(len(data) - LENGTH - 1, (8,))
    window = data[starts[:, None] + torch.arange(LENGTH + 1)]
    loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        model.eval()
        print(f"step {step} loss {loss.item():.3f}: {model.write('the ')!r}")
        model.train()
