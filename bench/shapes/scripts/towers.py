"""Users and items in two towers, brought together by what was clicked: a sampler that weighs all
rows for each short epoch, centres found anew, a counter under a lock, a table that is written out.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from typing import NamedTuple

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, WeightedRandomSampler

torch.set_num_threads(1)


class Batch(NamedTuple):
    users: torch.Tensor
    items: torch.Tensor


@dataclasses.dataclass
class Plan:
    steps: int = STEPS or 1000
    epoch: int = 10
    rows: int = 128
    users: int = 6000
    items: int = 3000
    clicks: int = 1_500_000
    width: int = 192


@dataclasses.dataclass
class State:
    plan: Plan
    towers: nn.ModuleDict
    scale: nn.Parameter
    optimizer: torch.optim.Optimizer
    cost: Cost = dataclasses.field(default_factory=Cost)
    seen: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    done: threading.Event = dataclasses.field(default_factory=threading.Event)
    table: np.memmap | None = None


class Clicks(Dataset):
    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __len__(self) -> int:
        return self.plan.clicks

    def __getitem__(self, index: int) -> tuple[int, int]:
        user = index * 7919 % self.plan.users
        return user, (user * 31 + index % 5) % self.plan.items


def tower(count: int, width: int) -> nn.Module:
    return nn.Sequential(
        nn.Embedding(count, 64),
        nn.Linear(64, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 64),
    )


def state_of(plan: Plan) -> State:
    towers = nn.ModuleDict(
        {"user": tower(plan.users, plan.width), "item": tower(plan.items, plan.width)}
    )
    scale = nn.Parameter(torch.tensor(2.0))
    groups = [
        {"params": towers.parameters(), "lr": 1e-3},
        {"params": [scale], "lr": 1e-2},
    ]
    return State(plan, towers, scale, torch.optim.Adam(groups))


def loader_of(plan: Plan) -> DataLoader:
    clicks, share = Clicks(plan), plan.rows * plan.epoch
    if on("sampler_weighs"):
        weights = torch.rand(plan.clicks) + 0.1
        sampler = WeightedRandomSampler(weights, share, replacement=False)  # at: sampler_weighs
    else:
        sampler = RandomSampler(clicks, replacement=True, num_samples=share)
    return DataLoader(clicks, plan.rows, sampler=sampler)  # at: sampler_weighs


def matched(state: State, batch: Batch) -> torch.Tensor:
    users = nn.functional.normalize(state.towers["user"](batch.users), dim=1)
    items = nn.functional.normalize(state.towers["item"](batch.items), dim=1)
    logits = users @ items.T * state.scale.clamp(max=3.0).exp()
    return nn.functional.cross_entropy(logits, torch.arange(len(users)))


def vectors(state: State) -> np.ndarray:
    with torch.no_grad():
        return state.towers["item"][0].weight.numpy()


def far(row: list[float], centre: list[float]) -> float:
    return sum((a - b) ** 2 for a, b in zip(row[:3], centre, strict=False))  # at: centres_anew


def centres(points: np.ndarray, count: int = 24) -> list[list[float]]:
    """Centres of the points, by a few rounds."""
    rows = points[:, :8].tolist()
    found = rows[:count]
    for _ in range(2):
        groups = [[] for _ in found]
        for row in rows:  # at: centres_anew
            gaps = [far(row, centre) for centre in found]  # at: centres_anew
            groups[gaps.index(min(gaps))].append(row)  # at: centres_anew
        found = [
            [sum(column) / len(group) for column in zip(*group, strict=True)] if group else old
            for group, old in zip(groups, found, strict=True)
        ]
    return found


def rank_popular(state: State, pause: float) -> None:
    """Keeps a list of what is clicked most, in the background."""
    while not state.done.wait(pause):
        if on("counter_locked"):
            with state.lock:
                pairs = sorted(state.seen.items(), key=lambda one: -one[1])  # at: counter_locked
                state.popular = [f"{n}:{item}" for n, (item, _) in enumerate(pairs)]
        else:
            with state.lock:
                pairs = list(state.seen.items())
            state.popular = sorted(pairs, key=lambda one: -one[1])[:100]


def count(state: State, batch: Batch) -> None:
    with state.cost:
        state.lock.acquire()  # at: counter_locked
    state.seen.update(batch.users.tolist())
    state.lock.release()


def write_out(state: State) -> None:
    """All vectors of users and items, for those who serve them."""
    if state.table is None:
        shape = (state.plan.users + state.plan.items, 256)
        state.table = np.memmap("vectors.bin", np.float32, "w+", shape=shape)
    with state.cost, torch.no_grad():
        tables = [state.towers[name][0].weight for name in ("user", "item")]
        state.table[:] = torch.cat(tables).repeat(1, 4).numpy()  # at: vectors_written
        state.table.flush()  # at: vectors_written


def extras(state: State, batch: Batch, step: int) -> None:
    often = 10 if on("centres_anew") else 160 if on("clean_centres_anew") else 0
    if often and step % often == often - 1:
        with state.cost:
            centres(vectors(state))  # at: centres_anew
    if on("counter_locked", "clean_counter_locked"):
        count(state, batch)  # at: counter_locked
    if on("vectors_written") or (on("clean_vectors_written") and step % 100 == 99):
        write_out(state)  # at: vectors_written


def learn(state: State, batch: Batch) -> float:
    loss = matched(state, batch)
    state.optimizer.zero_grad()
    loss.backward()
    state.optimizer.step()
    return loss.item()


def main() -> None:
    torch.manual_seed(167)
    plan = Plan()
    state, loader, step = state_of(plan), loader_of(plan), 0
    if on("counter_locked", "clean_counter_locked"):
        state.seen.update(range(60_000))
        pause = 0.02 if on("counter_locked") else 1.0
        threading.Thread(target=rank_popular, args=(state, pause), daemon=True).start()
    while step < plan.steps:
        for users, items in loader:  # at: sampler_weighs
            batch = Batch(users, items)
            loss = learn(state, batch)
            extras(state, batch, step)  # at: centres_anew counter_locked vectors_written
            if step % 40 == 0:
                print(step, loss, state.scale.item(), time.strftime("%X"), flush=True)
            step += 1
    state.done.set()
    state.cost.print(plan.steps)


if __name__ == "__main__":
    main()
