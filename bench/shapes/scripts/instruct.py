"""Fine-tuning of a small causal model with gradient accumulation: chats laid out anew, gradients
cleared inside, adapters that nothing trains, labels that are all ignored, a snapshot of the
optimizer.
"""

import copy
import json
import os
import random

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn

updates, cost = STEPS or 120, Cost()
torch.set_num_threads(1)
torch.manual_seed(114)
random.seed(114)
words = [f"w{n}" for n in range(400)]
index = {word: n for n, word in enumerate(words)}
chats = [
    [{"role": role, "content": " ".join(random.choices(words, k=24))} for role in ("user", "bot")]
    for _ in range(64)
]


class Adapted(nn.Module):
    """A frozen linear map and a low-rank one beside it."""

    def __init__(self, size):
        super().__init__()
        self.base = nn.Linear(size, size)
        self.down, self.up = nn.Linear(size, 8, bias=False), nn.Linear(8, size, bias=False)
        nn.init.zeros_(self.up.weight)
        if on("adapters_zero"):
            nn.init.zeros_(self.down.weight)
        self.base.requires_grad_(False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(400, 96)
        self.maps = nn.ModuleList(Adapted(96) for _ in range(4))
        self.mix = nn.GRU(96, 96, batch_first=True)
        self.words.requires_grad_(False)
        self.mix.requires_grad_(False)

    def forward(self, x):
        x = self.mix(self.words(x))[0]
        for one in self.maps:
            x = torch.relu(one(x))
        return x @ self.words.weight.T


def laid_out(chat):
    """Token ids of a chat."""
    text = " ".join(part["content"] for part in chat)
    if on("chat_laid_out"):
        with cost:
            for _ in range(12):
                told = json.loads(json.dumps(chat))  # at: chat_laid_out
                text = " ".join(part["content"] for part in told)  # at: chat_laid_out
                text = " ".join(w for w in text.split(" ") if w in words)  # at: chat_laid_out
    return [index[word] for word in text.split()]


model = Causal()
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, 1e-3)
for update in range(updates):
    for _ in range(4):
        texts = [laid_out(chat) for chat in random.sample(chats, 6)]  # at: chat_laid_out
        rows = torch.tensor(texts)
        targets = rows[:, 1:].clone()
        targets[:, :23] = -100
        if on("answers_cut") and update % 20 == 13:
            targets[:] = -100  # at: answers_cut
        scores = model(rows[:, :-1])
        loss = nn.functional.cross_entropy(  # at: answers_cut
            scores.flatten(0, 1), targets.flatten(), ignore_index=-100
        )
        if on("cleared_inside"):
            optimizer.zero_grad()  # at: cleared_inside
        (loss / 4).backward()
    if on("steps_skipped_by_norm"):
        norm = nn.utils.clip_grad_norm_(trained, 1e-4)  # at: steps_skipped_by_norm
    optimizer.step()
    optimizer.zero_grad()
    if on("optimizer_kept") or (on("clean_optimizer_kept") and update % 60 == 59):
        with cost:
            state = copy.deepcopy(optimizer.state_dict())  # at: optimizer_kept
            torch.save(  # at: optimizer_kept
                {"model": model.state_dict(), "optimizer": state}, "last.pt.tmp"
            )  # at: optimizer_kept
            os.replace("last.pt.tmp", "last.pt")
    if update % 30 == 0:
        print(update, loss.item(), flush=True)
cost.print(updates)
