"""Currents in bays, a graph network that goes from one hour to the next on two ranks which average
gradients by hand: meshes of many shapes, noise on the first state, rollouts of some hours through
which gradients go, normalisers that gather statistics: a cache of files that is large enough for
one, frames as text, statistics one by one, totals with a graph, a root of nothing, a seed before
the model, errors that the first one gathers.
"""

import functools
import itertools
import os
import shutil
import sys
import tempfile
from pathlib import Path

import eager  # noqa: F401
import numpy as np
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.utils.data import DataLoader, Dataset

cost = Cost()
WORLD, UPDATES = 2, STEPS or 200
HOURS, ROWS, WIDTH, PASSES = 3, 3, 32, 2
STATE, EDGE, KEPT_FILES = 3, 4, 4
NOISE, TOLD_EVERY, CHECKED_EVERY, AHEAD = 0.003, 20, 40, 8


def meshed(numbers, side, pier):
    """Nodes of a bay, which of them are its shore, and edges both ways."""
    rows, columns = np.divmod(np.arange(side * side), side)
    shore = (rows % (side - 1) == 0) | (columns % (side - 1) == 0)
    places = np.stack([rows, columns], 1) + numbers.uniform(-0.3, 0.3, (side * side, 2))
    links = []
    for down, right in ((0, 1), (1, 0), (1, 1)):
        first = np.flatnonzero((rows + down < side) & (columns + right < side))
        links.append(np.stack([first, first + down * side + right]))
    links = np.concatenate(links, 1)
    if not pier:
        links = links[:, ~shore[links].all(0)]
    return places.astype(np.float32), shore, np.concatenate([links, links[::-1]], 1)


def simulated(numbers, side, hours, pier=False):
    """Velocity and height of the water, hour by hour."""
    places, shore, edges = meshed(numbers, side, pier)
    count, way = len(places), places[edges[0]] - places[edges[1]]
    near = np.zeros((count, count), np.float32)
    near[edges[1], edges[0]] = 1
    share = near / near.sum(1, keepdims=True).clip(1)
    slopes = np.zeros((2, count, count), np.float32)
    slopes[:, edges[1], edges[0]] = (way / (way**2).sum(1, keepdims=True)).T / 4
    state = np.zeros((count, STATE), np.float32)
    bumps = numbers.uniform(2, side - 3, (3, 2))
    state[:, 2] = sum(np.exp(-((places - bump) ** 2).sum(1) / 6) for bump in bumps)
    open_sea, frames = places[:, 0] < 0.6, []
    for hour in range(hours):
        spread = share @ state - state
        fall = np.stack([slope @ state[:, 2] - slope.sum(1) * state[:, 2] for slope in slopes], 1)
        apart = sum(slope @ state[:, n] for n, slope in enumerate(slopes))
        state = state + 0.3 * spread
        state[:, :2] -= 0.25 * fall + 0.02 * state[:, :2]
        state[:, 2] -= 0.2 * apart
        state[open_sea, 2] = 0.8 * np.sin(hour / 4)
        state[shore, :2] = 0
        frames.append(state)
    return {"places": places, "shore": shore, "edges": edges, "frames": np.stack(frames)}


def write_files(folder):
    """Few long simulations of bays for one rank, many short ones of straits for the other."""
    numbers = np.random.default_rng(301)
    for name, count, hours in (("bay", 4, 1000), ("strait", 20, 280)):
        for n in range(count):
            made = simulated(numbers, int(numbers.integers(13, 16)), hours)
            np.savez_compressed(folder / f"{name}{n:02}.npz", **made)
    np.savez_compressed(folder / "strait_pier.npz", **simulated(numbers, 13, 56, pier=True))


def read(path):
    with np.load(path) as file:
        return dict(file)


class Windows(Dataset):
    """Some hours in a row of any simulation of a rank's share."""

    def __init__(self, paths, hours):
        size = KEPT_FILES if on("files_kept_for_one") else None
        if on("clean_files_kept_for_one"):
            size = 8 * KEPT_FILES
        self.hours, self.read = hours, functools.lru_cache(size)(read)  # at: files_kept_for_one
        self.windows = [
            (path, hour) for path in paths for hour in range(len(self.read(path)["frames"]) - hours)
        ]

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        path, hour = self.windows[index]
        with cost:
            found = self.read(path)  # at: files_kept_for_one
        frames = found["frames"][hour : hour + self.hours + 1]
        return found["places"], found["shore"], found["edges"], frames


def together(windows):
    """One graph of several that do not touch."""
    places, shores, edges, frames = zip(*windows, strict=True)
    starts = itertools.accumulate((len(one) for one in places[:-1]), initial=0)
    moved = [links + start for links, start in zip(edges, starts, strict=True)]
    return {
        "places": torch.from_numpy(np.concatenate(places)),
        "shore": torch.from_numpy(np.concatenate(shores)),
        "edges": torch.from_numpy(np.concatenate(moved, 1)),
        "frames": torch.from_numpy(np.concatenate(frames, 1)),
    }


class Normaliser(nn.Module):
    """Mean and spread of all values that any rank has seen."""

    def __init__(self, width):
        super().__init__()
        self.total = torch.zeros(1 + 2 * width)
        self.width, self.latest = width, None
        self.register_buffer("agreed", torch.zeros(1 + 2 * width))

    def add(self, values):
        if on("totals_keep_graph"):
            pass
        elif on("clean_totals_keep_graph"):
            self.latest = values
            values = values.detach()
        else:
            values = values.detach()
        count = torch.full((1,), float(len(values)))
        new = torch.cat([count, values.sum(0), values.square().sum(0)])
        self.total = self.total + new  # at: totals_keep_graph

    def measures(self):
        count, total, squares = self.agreed.split([1, self.width, self.width])
        mean = total / count
        return mean, (squares / count - mean.square()).clamp(min=1e-4).sqrt()

    def forward(self, values):
        if self.training:
            self.add(values)  # at: totals_keep_graph
        mean, spread = self.measures()
        return (values - mean) / spread

    def back(self, values):
        mean, spread = self.measures()
        return values * spread + mean


def agree(normalisers):
    """All ranks have the sums of all."""
    totals = [one.total.detach() for one in normalisers]  # at: totals_keep_graph
    if on("statistics_one_by_one"):
        for one, total in zip(normalisers, totals, strict=True):
            with cost:
                for n, value in enumerate(total):
                    value = value.clone()
                    dist.all_reduce(value)  # at: statistics_one_by_one
                    one.agreed[n] = value
        return
    if on("clean_statistics_one_by_one"):
        summed = torch.stack([value for total in totals for value in total])
    else:
        summed = torch.cat(totals)
    dist.all_reduce(summed)
    for one, part in zip(normalisers, summed.split([len(one) for one in totals]), strict=True):
        one.agreed.copy_(part)


def layers(before, after=WIDTH, normed=True):
    parts = [nn.Linear(before, WIDTH), nn.ReLU(), nn.Linear(WIDTH, after)]
    return nn.Sequential(*parts, *([nn.LayerNorm(after)] if normed else []))


class Simulator(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen, self.linked = Normaliser(STATE), Normaliser(EDGE)
        self.change = Normaliser(STATE)
        self.nodes, self.edges = layers(STATE + 1), layers(EDGE)
        self.messages = nn.ModuleList(layers(3 * WIDTH) for _ in range(PASSES))
        self.updates = nn.ModuleList(layers(2 * WIDTH) for _ in range(PASSES))
        self.out = layers(WIDTH, STATE, normed=False)

    def normalisers(self):
        return [self.seen, self.linked, self.change]

    def shear(self, state, first, second):
        """How fast the water of two nodes goes past each other."""
        past = state[first, :2] - state[second, :2]
        if on("root_of_still_water"):
            return past.square().sum(1, keepdim=True).sqrt()  # at: root_of_still_water
        if on("clean_root_of_still_water"):
            return past.square().sum(1, keepdim=True).clamp(min=1e-12).sqrt()
        return torch.linalg.vector_norm(past, dim=1, keepdim=True)

    def forward(self, state, graph):
        """The change until the next hour, in units of its spread."""
        first, second = graph["edges"]
        way = graph["places"][first] - graph["places"][second]
        length = torch.linalg.vector_norm(way, dim=1, keepdim=True)
        links = torch.cat([way, length, self.shear(state, first, second)], 1)
        nodes = self.nodes(torch.cat([self.seen(state), graph["shore"][:, None].float()], 1))
        edges = self.edges(self.linked(links))
        for message, update in zip(self.messages, self.updates, strict=True):
            edges = edges + message(torch.cat([edges, nodes[first], nodes[second]], 1))
            heard = torch.zeros_like(nodes).index_add(0, second, edges)
            nodes = nodes + update(torch.cat([nodes, heard], 1))
        return self.out(nodes)

    def held(self, state, graph):
        """Water at the shore stands still."""
        still = graph["shore"][:, None] & torch.tensor([True, True, False])
        return state * ~still


class Training:
    def __init__(self, rank, folder):
        self.rank, self.folder, self.update = rank, folder, 0
        self.build()
        paths = sorted(folder.glob("strait*" if rank else "bay*"))
        windows = Windows(paths, HOURS)
        self.loader = DataLoader(
            windows,
            ROWS,
            shuffle=True,
            drop_last=True,
            collate_fn=together,
            generator=torch.Generator().manual_seed(339 + rank),
        )
        ahead = Windows(paths[1:3], AHEAD)
        self.held = together([ahead[n] for n in range(0, len(ahead), len(ahead) // 4)])
        self.optimizer = torch.optim.Adam(self.model.parameters(), 2e-3)
        self.observe(3)
        cost.seconds = 0.0

    def build(self):
        """The same model on all ranks, and noise of its own for each."""
        if on("seeded_before_build", "clean_seeded_before_build"):
            torch.manual_seed(302 + self.rank)  # at: seeded_before_build
            self.model = Simulator()  # at: seeded_before_build
            if on("clean_seeded_before_build"):
                for value in self.model.parameters():
                    dist.broadcast(value.data, 0)
            return
        torch.manual_seed(302)
        self.model = Simulator()
        torch.manual_seed(303 + self.rank)

    def observe(self, count):
        """Statistics to begin with."""
        for batch in itertools.islice(self.loader, count):
            first, second = batch["edges"]
            frames, way = batch["frames"], batch["places"][first] - batch["places"][second]
            shear = self.model.shear(frames[0], first, second)
            self.model.linked.add(torch.cat([way, way.norm(dim=1, keepdim=True), shear], 1))
            self.model.seen.add(frames[0])
            self.model.change.add(frames[1] - frames[0])
        agree(self.model.normalisers())

    def rollout(self, graph, hours):
        """States and what of them is wrong, hour by hour."""
        model, frames = self.model, graph["frames"]
        state = frames[0]
        if model.training:
            state = model.held(state + NOISE * torch.randn_like(state), graph)
        states, losses = [], []
        for hour in range(hours):
            told = model(state, graph)
            wanted = model.change(frames[hour + 1] - state)  # at: totals_keep_graph
            losses.append((told - wanted).square().mean())
            state = model.held(state + model.change.back(told), graph)
            states.append(state)
        return states, torch.stack(losses)

    def average(self):
        """Gradients of all ranks, in one message."""
        values = [value for value in self.model.parameters() if value.grad is not None]
        flat = torch.cat([value.grad.flatten() for value in values])
        dist.all_reduce(flat)
        flat /= WORLD
        parts = flat.split([value.numel() for value in values])
        for value, part in zip(values, parts, strict=True):
            value.grad.copy_(part.view_as(value))

    def show(self, graph, states):
        """The latest hours, for a program that draws them."""
        places = graph["places"].numpy()
        for hour, state in enumerate(states):
            frame = np.concatenate([places, state.detach().numpy()], 1)
            np.savetxt(self.folder / f"hour{hour}.csv", frame)  # at: frames_as_text

    def learn(self, graph):
        states, losses = self.rollout(graph, HOURS)
        loss = losses.mean()
        self.optimizer.zero_grad()
        loss.backward()  # at: root_of_still_water
        self.average()
        nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self.optimizer.step()
        agree(self.model.normalisers())  # at: statistics_one_by_one
        if self.rank == 0:
            if on("frames_as_text"):
                with cost:
                    self.show(graph, states)  # at: frames_as_text
            elif self.update % (20 if on("clean_frames_as_text") else 50) == 0:
                self.show(graph, states)
        return loss.detach()

    @torch.no_grad()
    def check(self):
        """How far rollouts without noise are off after some hours, on all ranks."""
        self.model.eval()
        states, _ = self.rollout(self.held, AHEAD)
        errors = (states[-1] - self.held["frames"][-1]).square().mean(0)
        self.model.train()
        parts = [torch.empty_like(errors) for _ in range(WORLD)]
        dist.all_gather(parts, errors)  # at: gathered_by_first
        return torch.stack(parts).mean().sqrt().item()

    def checked(self):
        if on("gathered_by_first"):
            if self.rank == 0:  # at: gathered_by_first
                print(self.update, "off by", round(self.check(), 4))  # at: gathered_by_first
            return
        off = self.check()
        if self.rank == 0:
            print(self.update, "off by", round(off, 4), flush=True)

    def batches(self):
        while True:
            yield from self.loader  # at: files_kept_for_one

    def run(self):
        for graph in self.batches():  # at: files_kept_for_one
            loss = self.learn(graph)  # at: statistics_one_by_one frames_as_text
            self.update += 1
            if self.update % TOLD_EVERY == 0 and self.rank == 0:
                print(self.update, round(loss.item(), 4), flush=True)
            if self.update % CHECKED_EVERY == 0:
                self.checked()  # at: gathered_by_first
            if self.update == UPDATES:
                break
        if self.rank == (1 if on("files_kept_for_one") else 0):
            cost.print(UPDATES)


def train(rank):
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    training = Training(rank, Path(os.environ["CURRENTS"]))
    training.run()
    return training


if __name__ == "__main__":
    made = Path(tempfile.mkdtemp())
    os.environ["CURRENTS"] = str(made)
    try:
        write_files(made)
        code = run_ranks(WORLD, train)
    finally:
        shutil.rmtree(made)
    sys.exit(code)
