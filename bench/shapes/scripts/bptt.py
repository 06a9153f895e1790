"""An LSTM over windows of one long text, with its state carried over; a schedule, clipping, a loop
of functions.
"""

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(52)
cost = Cost()
steps = STEPS or 400


class Reader(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(64, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 64)

    def forward(self, ids, state):
        x, state = self.lstm(self.embed(ids), state)
        return self.head(x), state


def windows():
    text = (torch.arange(16 * 24 * 64) * 5 % 61).view(16, -1)
    if on("clipped_by_nothing", "clean_clipped_by_nothing"):
        text = torch.where(torch.rand(text.shape) < 0.3, torch.randint(0, 64, text.shape), text)
    for step in range(steps):
        at = step * 24 % (text.shape[1] - 25)
        yield text[:, at : at + 24], text[:, at + 1 : at + 25]


def carried(state):
    if state is None:
        return state
    return tuple(one.detach() for one in state)


model = Reader()
optimizer = torch.optim.AdamW(model.parameters(), 40.0 if on("rate_of_forty") else 2e-3)
gamma = 0.9 if on("decay_by_batch", "clean_decay_by_batch") else 1.0
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)
state, smooth, running = None, [], 0.0
for step, (ids, nexts) in enumerate(windows()):
    scores, state = model(ids, carried(state))
    loss = F.cross_entropy(scores.flatten(0, 1), nexts.flatten())
    if on("cleared_too_late"):
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
    else:
        optimizer.zero_grad()
        loss.backward()
        if on("clipped_by_nothing", "clean_clipped_by_nothing"):
            nn.utils.clip_grad_norm_(model.parameters(), 1e-4 if on("clipped_by_nothing") else 1e3)
        optimizer.step()
    running = running + (loss if on("running_sum") else loss.item())
    if on("decay_by_batch") or step % 100 == 99:
        scheduler.step()
    if on("perplexities_sorted"):
        with cost:
            smooth.append(float(loss))
            for _ in range(12):  # at: perplexities_sorted
                pairs = list(zip(smooth * 4, range(9999), strict=False))  # at: perplexities_sorted
                ranks = sorted(pairs)  # at: perplexities_sorted
    elif on("clean_perplexities_sorted"):
        smooth.append(float(loss))
        ranks = sorted(smooth[-50:])
cost.print(steps)
