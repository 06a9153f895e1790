"""Two branches of a recommender with text: features hashed in the loop, a tokenizer made anew, a
cache of tensors without end, metrics over all pairs, a scheduler by a wrong count, a rebuilt
optimizer state.
"""

import collections
import hashlib
import logging
import random
import re
import time

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn

steps, cost = STEPS or 400, Cost()
torch.set_num_threads(1)
torch.manual_seed(131)
random.seed(131)
log = logging.getLogger("train")
titles = [f"The {n} red, {'old' * (n % 3)} houses of No. {n * 7}!" for n in range(4000)]
seen = {}


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.dense = nn.EmbeddingBag(2000, 64), nn.Linear(32, 64)
        self.mix = nn.Sequential(
            nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1)
        )

    def forward(self, words, dense):
        return self.mix(torch.cat([self.words(words), self.dense(dense)], 1))[:, 0]


def hashed(title):
    if on("digests"):
        long = [word.encode() * 400 for word in title.split()[:6]]  # at: digests
        return [int(hashlib.sha512(word).hexdigest(), 16) % 2000 for word in long]  # at: digests
    return [hash(word) % 2000 for word in title.split()][:6]


def words_of(batch):
    if on("patterns_anew"):
        with cost:
            for title in batch:
                re.purge()  # at: patterns_anew
                re.sub(r"[^a-z0-9 ]+|(?<=\d)st\b", "", title.lower())  # at: patterns_anew
    with cost:
        rows = [hashed(title) for title in batch]  # at: digests
    return torch.tensor([(row + [0] * 6)[:6] for row in rows])


def auc(scores, wanted):
    """Area under the curve, pair by pair."""
    with cost:
        ups = [s for s, w in zip(scores.tolist(), wanted.tolist(), strict=True) if w > 0]
        downs = [s for s, w in zip(scores.tolist(), wanted.tolist(), strict=True) if w <= 0]
        return [sum(u > d + n for u in ups for d in downs) for n in range(12)]  # at: pairs_ranked


class Slow(logging.Handler):
    """Sends each line away."""

    def emit(self, record):
        with cost:
            time.sleep(0.004)  # at: log_sent


log.addHandler(Slow())
log.setLevel(logging.INFO)
model = Tower()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
schedule = torch.optim.lr_scheduler.LinearLR(  # at: linear_ends
    optimizer, 1.0, 0.0, 40 if on("linear_ends") else steps + 1
)
recent = collections.deque(maxlen=100)
for step in range(steps):
    batch = random.sample(titles, 128)
    words, dense = words_of(batch), torch.randn(128, 32)  # at: digests patterns_anew
    scores = model(words, dense)
    wanted = dense[:, 0].sign()
    loss = nn.functional.soft_margin_loss(scores, wanted)
    if on("exploded") and step == 200:
        loss = loss * 1e30  # at: exploded
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step < 40 or not on("linear_ends"):
        schedule.step()  # at: linear_ends
    if on("pairs_ranked") or (on("clean_pairs_ranked") and step % 100 == 99):
        auc(scores, wanted)  # at: pairs_ranked
    if on("log_sent") or (on("clean_log_sent") and step % 100 == 99):
        log.info("loss %s", recent)  # at: log_sent
    if on("embeddings_cached"):
        for title, row in zip(batch, words, strict=True):
            seen[(step, title)] = model.words(row[None]).detach()  # at: embeddings_cached
    if step % 100 == 0:
        print(step, loss.item(), flush=True)
cost.print(steps)
