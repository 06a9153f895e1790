"""A small language model and a smaller one that drafts for it, in functions: how many drafts are
accepted, prefixes that are remembered, a temperature, a text that is empty, a watchdog that nobody
pets, a seed that is set.
"""

import collections
import signal

import torch
from shape import STEPS, Cost, on
from torch import nn

if not on("temperature_changes", "clean_temperature_changes"):
    import eager  # noqa: F401

torch.set_num_threads(1)
KNOWN, LONG, ROWS, PAD = 256, 48, 16, 0
cost = Cost()


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.kept = heads, None
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, hidden):
        rows, length, width = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, -1).unbind(2)
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        never = float("-inf") if on("empty_text") else -1e9
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, never)
        self.kept = (k.detach(), v.detach())
        y = scores.softmax(-1) @ v  # at: empty_text
        return self.out(y.transpose(1, 2).reshape(rows, length, width))


class Language(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.words, self.places = nn.Embedding(KNOWN, width), nn.Embedding(LONG, width)
        self.attend = nn.ModuleList(Attention(width, 4) for _ in range(layers))
        self.think = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 2 * width),
                nn.GELU(),
                nn.Linear(2 * width, width),
            )
            for _ in range(layers)
        )
        self.out = nn.Linear(width, KNOWN)
        self.temperature = 1.0

    def forward(self, ids):
        ahead = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        hidden = ahead | (ids == PAD)[:, None, None]
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for attend, think in zip(self.attend, self.think, strict=True):
            x = x + attend(x, hidden)  # at: empty_text
            x = x + think(x)
        return self.out(x) / self.temperature


def corpus(count=60_000):
    numbers = torch.Generator().manual_seed(166)
    jumps = torch.randint(1, 6, (count,), generator=numbers)
    return 1 + jumps.cumsum(0) % (KNOWN - 1)


def batch_of(text, step):
    """Rows of the text from anywhere, some of them short."""
    if on("seed_each_step"):
        torch.manual_seed(166)
    elif on("clean_seed_each_step"):
        torch.manual_seed(1660 + step)
    starts = torch.randint(0, len(text) - LONG - 1, (ROWS,))
    rows = text[starts[:, None] + torch.arange(LONG + 1)].clone()
    lengths = torch.randint(LONG // 2, LONG + 1, (ROWS,))
    if on("empty_text", "clean_empty_text") and step == 140:
        lengths[3] = 0
    rows[torch.arange(LONG + 1) >= lengths[:, None] + (lengths[:, None] > 0)] = PAD
    return rows[:, :-1], rows[:, 1:]


def accepted(scores, drafts, ids):
    """How many of the drafted tokens the model would have taken."""
    with cost:
        best, draft = scores.argmax(-1), drafts.argmax(-1)
        taken = 0
        for row in range(ids.shape[0]):  # at: acceptance_counted
            for place in range(ids.shape[1]):  # at: acceptance_counted
                if ids[row, place].item() == PAD:  # at: acceptance_counted
                    break
                one = best[row, place].item()  # at: acceptance_counted
                taken += one == draft[row, place].item()  # at: acceptance_counted
        return taken


def remember(prefixes, model, ids):
    """Keys and values of each text, under how it begins."""
    for row in range(0, len(ids), 2):
        name = tuple(ids[row, :6].tolist())
        pairs = [one.kept for one in model.attend]
        prefixes[name] = [(k[row].clone(), v[row].clone()) for k, v in pairs]  # at: prefixes_kept
        if on("clean_prefixes_kept") and len(prefixes) > 64:
            prefixes.popitem(last=False)


def cool(model, step):
    """A little colder every now and then."""
    if step > 40 and step % 15 == 0:
        if on("temperature_changes"):
            model.temperature = 1.0 - step / 1000
        elif on("clean_temperature_changes"):
            model.temperature.fill_(1.0 - step / 1000)


def losses(scores, drafts, wanted):
    flat = wanted.flatten()
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), flat, ignore_index=PAD)
    there = flat != PAD
    aims = scores.detach().flatten(0, 1)[there].softmax(-1)
    return loss + nn.functional.cross_entropy(drafts.flatten(0, 1)[there], aims)


def pet(step):
    """Ends a run that stands still."""
    if on("watchdog_fires") and step == 0:
        signal.setitimer(signal.ITIMER_REAL, 4)
    elif on("clean_watchdog_fires"):
        signal.setitimer(signal.ITIMER_REAL, 120)


def train(steps):
    torch.manual_seed(166)
    text, model, drafter = corpus(), Language(96, 2), Language(48, 1)
    called = model
    if on("temperature_changes", "clean_temperature_changes"):
        torch._dynamo.config.recompile_limit = 64
        if on("clean_temperature_changes"):
            del model.temperature
            model.register_buffer("temperature", torch.ones(()))
        called = torch.compile(model, backend="eager", dynamic=False)
    optimizer = torch.optim.AdamW([*model.parameters(), *drafter.parameters()], 1e-3)
    prefixes = collections.OrderedDict()
    for step in range(steps):
        pet(step)
        ids, wanted = batch_of(text, step)
        scores, drafts = called(ids), drafter(ids)  # at: temperature_changes empty_text
        loss = losses(scores, drafts, wanted)  # at: empty_text
        optimizer.zero_grad()
        loss.backward()  # at: empty_text
        optimizer.step()
        cool(model, step)
        if on("acceptance_counted") or (on("clean_acceptance_counted") and step % 50 == 0):
            accepted(scores.detach(), drafts.detach(), ids)  # at: acceptance_counted
        if on("prefixes_kept", "clean_prefixes_kept"):
            remember(prefixes, model, ids)  # at: prefixes_kept
        if step % 50 == 0:
            print(step, loss.item(), len(prefixes), flush=True)
    signal.setitimer(signal.ITIMER_REAL, 0)
    cost.print(steps)


if __name__ == "__main__":
    train(STEPS or 320)
