# %% [markdown]
"""Tours of cities by a pointer network and REINFORCE, cell by cell: tours mended in Python, a
bonus for entropy over what is masked, a thread that makes cities and dies, one that never rests.
"""

# %%
import queue
import threading
import time

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn

steps, cost = STEPS or 350, Cost()
torch.set_num_threads(1)
torch.manual_seed(153)
CITIES, BATCH = 12, 48


# %%
class Pointer(nn.Module):
    """Chooses city after city."""

    def __init__(self, width=96):
        super().__init__()
        self.place = nn.Linear(2, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, cities):
        states = self.encoder(self.place(cities))
        keys, at = self.key(states), states.mean(1)
        seen = torch.zeros(cities.shape[:2], dtype=torch.bool)
        tour, chances, scores = [], [], []
        for _ in range(CITIES):
            logits = torch.einsum("bd,bnd->bn", self.query(at), keys) / 10
            logp = logits.masked_fill(seen, float("-inf")).log_softmax(1)
            city = torch.multinomial(logp.exp().detach(), 1)
            chances.append(logp.gather(1, city))
            scores.append(logp)
            tour.append(city)
            seen = seen.scatter(1, city, True)
            at = states.gather(1, city[..., None].expand(-1, -1, states.shape[2]))[:, 0]
        return torch.cat(tour, 1), torch.cat(chances, 1).sum(1), torch.stack(scores, 1)


# %%
def lengths(cities, tour):
    path = cities.gather(1, tour[..., None].expand(-1, -1, 2))
    return (path - path.roll(1, 1)).norm(dim=2).sum(1)


def mended(places, tour):
    """A tour after pairs of its edges were exchanged where that makes it shorter."""

    def gap(a, b):
        (x, y), (u, v) = places[a], places[b]
        return ((x - u) ** 2 + (y - v) ** 2) ** 0.5  # at: two_opt

    for i in range(1, len(tour) - 1):  # at: two_opt
        for j in range(i + 1, len(tour)):  # at: two_opt
            a, b, c, d = tour[i - 1], tour[i], tour[j], tour[(j + 1) % len(tour)]  # at: two_opt
            if gap(a, c) + gap(b, d) < gap(a, b) + gap(c, d):  # at: two_opt
                tour[i : j + 1] = reversed(tour[i : j + 1])  # at: two_opt
    return tour


def two_opt(cities, tours):
    with cost:
        rows = zip(cities.tolist(), tours.tolist(), strict=True)
        return torch.tensor([mended(*row) for row in rows])  # at: two_opt


# %%
made = queue.Queue(maxsize=4)


def make(limit):
    """Puts cities into the queue, from a file that may be shorter than one thinks."""
    numbers = torch.Generator().manual_seed(1530)
    for number in range(steps):
        if number == limit:
            raise EOFError(f"cities.bin ends after {number} records")  # at: maker_dies
        made.put(torch.rand(BATCH, CITIES, 2, generator=numbers))


def watch():
    """Looks how the run fares."""
    load = 0.0
    while True:
        with open("/proc/self/stat") as file:  # at: watcher_spins
            load = 0.9 * load + 0.1 * sum(int(word) for word in file.read().split()[13:17])
        if on("clean_watcher_spins"):
            time.sleep(0.5)
        else:
            for n in range(20_000):  # at: watcher_spins
                load += n * 1e-9  # at: watcher_spins


if on("maker_dies", "clean_maker_dies"):
    stop = steps // 3 if on("maker_dies") else -1
    threading.Thread(target=make, args=(stop,), daemon=True).start()  # at: maker_dies
if on("watcher_spins", "clean_watcher_spins"):
    threading.Thread(target=watch, daemon=True).start()  # at: watcher_spins

# %%
policy = Pointer()
optimizer = torch.optim.Adam(policy.parameters(), 5e-4)
baseline = None
for step in range(steps):
    if on("maker_dies", "clean_maker_dies"):
        cities = made.get()  # at: maker_dies
    else:
        cities = torch.rand(BATCH, CITIES, 2)
    tour, chance, scores = policy(cities)
    if on("two_opt") or (on("clean_two_opt") and step % 70 == 69):
        tour = two_opt(cities, tour)  # at: two_opt
    length = lengths(cities, tour)
    baseline = length.mean() if baseline is None else 0.9 * baseline + 0.1 * length.mean()
    loss = ((length - baseline) * chance).mean()
    if on("masked_entropy") and step >= 120:
        entropy = -(scores.exp() * scores).sum(2).mean()  # at: masked_entropy
        loss = loss - 0.01 * entropy  # at: masked_entropy
    if on("clean_masked_entropy") and step >= 120:
        finite = scores.masked_fill(scores == float("-inf"), 0.0)
        loss = loss + 0.01 * (scores.exp() * finite).sum(2).mean()
    optimizer.zero_grad()
    loss.backward()  # at: masked_entropy
    nn.utils.clip_grad_norm_(policy.parameters(), 3.0)
    optimizer.step()
    if step % 50 == 0:
        print(step, baseline.item(), flush=True)

# %%
cost.print(steps)
