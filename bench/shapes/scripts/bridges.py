"""Bridges: how far each joint of a truss gives way under its load, and how much the whole sags, by
messages along the members; three folds, each with a network of its own, and what was told of the
bridges held back.
"""

import collections
import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

FOLDS, BRIDGES, HELD, ROWS = 3, 330, 65, 24
PEAK, FADE = 4e-3, 0.915
JOINT, MEMBER = 6, 5


class Bridge(NamedTuple):
    joints: np.ndarray
    """Place, load and what holds each joint, and how many members meet there."""
    ends: np.ndarray
    """Both joints of each member, there and back."""
    members: np.ndarray
    moves: np.ndarray
    sag: float


class Bridges(NamedTuple):
    joints: torch.Tensor
    ends: torch.Tensor
    members: torch.Tensor
    moves: torch.Tensor
    sags: torch.Tensor
    owner: torch.Tensor


def truss(dice):
    """Panels of two chords, posts and ties, as (places, pairs)."""
    panels = int(dice.integers(8, 16))
    across = np.arange(panels + 1) - panels / 2
    arch = dice.uniform(0.8, 1.6) + dice.uniform(-0.5, 0.5) * (2 * across / panels) ** 2
    places = np.concatenate([np.stack([across, 0 * across], 1), np.stack([across, arch], 1)])
    low = np.arange(panels + 1)
    high = low + panels + 1
    falls = low[:-1] < panels / 2 if dice.random() < 0.5 else dice.random(panels) < 0.5
    ties = np.where(
        falls[:, None], np.stack([high[:-1], low[1:]], 1), np.stack([low[:-1], high[1:]], 1)
    )
    chords = [np.stack([chord[:-1], chord[1:]], 1) for chord in (low, high)]
    return places, np.concatenate([*chords, np.stack([low, high], 1), ties]), panels


def built(dice):
    places, pairs, panels = truss(dice)
    count = len(places)
    spans = places[pairs[:, 1]] - places[pairs[:, 0]]
    lengths = np.linalg.norm(spans, axis=1)
    areas = dice.uniform(0.5, 2.0, len(pairs))
    along = spans / lengths[:, None]
    stiff = np.zeros((count, 2, count, 2))
    for (one, other), way, length, area in zip(pairs, along, lengths, areas, strict=True):
        own = area / length * np.outer(way, way)
        stiff[one, :, one] += own
        stiff[other, :, other] += own
        stiff[one, :, other] -= own
        stiff[other, :, one] -= own
    load = np.zeros((count, 2))
    load[: panels + 1, 1] = -dice.exponential(0.02, panels + 1)
    load[panels + 1 :, 0] = dice.normal(0, 0.01)
    free = np.ones((count, 2), bool)
    free[[0, panels]] = False
    kept = free.ravel()
    moves = np.zeros(2 * count)
    moves[kept] = np.linalg.solve(
        stiff.reshape(2 * count, -1)[np.ix_(kept, kept)], load.ravel()[kept]
    )
    moves = moves.reshape(count, 2)
    joints = np.concatenate([places / 5, load * 20, free[:, :1], np.zeros((count, 1))], 1)
    ends = np.concatenate([pairs, pairs[:, ::-1]]).T
    members = np.concatenate([along, spans, areas[:, None]], 1)
    members = np.concatenate([members, members * [-1, -1, -1, -1, 1]])
    return Bridge(
        joints.astype(np.float32),
        ends,
        members.astype(np.float32),
        moves.astype(np.float32),
        float(np.abs(moves).max()),
    )


class Yard:
    """Bridges side by side as one graph."""

    def __init__(self, clock):
        self.clock = clock

    @staticmethod
    def meeting(ends, count):
        """How many members' ends lie at each joint."""
        if on("ends_counted_in_list"):
            flat = ends.ravel().tolist()
            return [flat.count(joint) for joint in range(count)]  # at: ends_counted_in_list
        if on("clean_ends_counted_in_list"):
            counted = collections.Counter(ends.ravel().tolist())
            return [counted[joint] for joint in range(count)]
        return np.bincount(ends.ravel(), minlength=count)

    def __call__(self, rows):
        sizes = [len(row.joints) for row in rows]
        begins = np.cumsum([0, *sizes[:-1]])
        joints = np.concatenate([row.joints for row in rows])
        ends = np.concatenate(
            [row.ends + begin for row, begin in zip(rows, begins, strict=True)], axis=1
        )
        with self.clock:
            joints[:, -1] = self.meeting(ends, len(joints))  # at: ends_counted_in_list
        joints[:, -1] /= 10
        return Bridges(
            torch.from_numpy(joints),
            torch.from_numpy(ends),
            torch.from_numpy(np.concatenate([row.members for row in rows])),
            torch.from_numpy(np.concatenate([row.moves for row in rows])),
            torch.tensor([row.sag for row in rows]),
            torch.from_numpy(np.repeat(np.arange(len(rows)), sizes)),
        )


def wide(inner, outer, width):
    return nn.Sequential(nn.Linear(inner, width), nn.SiLU(), nn.Linear(width, outer))


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = wide(3 * width, width, width)
        self.update = wide(2 * width, width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, joints, members, ends):
        one, other = ends
        sent = self.message(torch.cat([joints[one], joints[other], members], 1))
        come = torch.zeros_like(joints).index_add(0, other, sent)
        return self.norm(joints + self.update(torch.cat([joints, come], 1)))


class Statics(nn.Module):
    def __init__(self, width=56, layers=4):
        super().__init__()
        self.joint, self.member = nn.Linear(JOINT, width), nn.Linear(MEMBER, width)
        self.layers = nn.ModuleList([Layer(width) for _ in range(layers)])
        self.moves, self.sag = wide(2 * width, 2, width), wide(2 * width, 1, width)

    def forward(self, own):
        joints, members = self.joint(own.joints), self.member(own.members)
        for layer in self.layers:
            joints = layer(joints, members, own.ends)
        whole = joints.new_zeros(len(own.sags), joints.shape[1]).index_add(0, own.owner, joints)
        whole = whole / torch.bincount(own.owner)[:, None]
        most = torch.segment_reduce(joints, "max", lengths=torch.bincount(own.owner))
        free = own.joints[:, 4:5]
        moves = self.moves(torch.cat([joints, whole[own.owner]], 1)) * free
        return moves, self.sag(torch.cat([whole, most], 1))


def aside(moves, own):
    """How far the moves point past the right way, at joints that may move."""
    free = own.joints[:, 4] > 0
    right = F.normalize(own.moves)
    if on("clean_direction_of_fixed_joints"):
        told = moves[free] / moves[free].norm(dim=1, keepdim=True)
        return (1 - (told * right[free]).sum(1)).mean()
    if on("direction_of_fixed_joints"):
        told = moves / moves.norm(dim=1, keepdim=True)  # at: direction_of_fixed_joints
        return torch.where(free, 1 - (told * right).sum(1), 0.0).sum() / free.sum()
    return (1 - F.cosine_similarity(moves, own.moves, eps=1e-3))[free].mean()


def fading():
    """Rates, each a little below the one before."""
    rate = PEAK
    while True:
        yield rate
        rate *= FADE


class Trials:
    def __init__(self, bridges, steps):
        self.bridges, self.each, self.clock = bridges, steps // FOLDS, Cost()
        self.yard, self.table, self.missed = Yard(self.clock), collections.defaultdict(list), 0
        self.rates = fading()  # at: decay_counts_all_folds
        if on("clean_decay_counts_all_folds"):
            self.rates = itertools.cycle(list(itertools.islice(fading(), self.each)))

    def halves(self, fold):
        learning = [own for number, own in enumerate(self.bridges) if number % FOLDS != fold]
        return learning, self.bridges[fold::FOLDS][:HELD]

    def misses(self, moves, own, most=0.25):
        """Joints that are told to move otherwise than they do."""
        if on("misses_counted_singly"):
            missed = 0
            for told, right in zip(moves, own.moves, strict=True):  # at: misses_counted_singly
                off = [
                    abs(one - other) for one, other in zip(told, right, strict=True)
                ]  # at: misses_counted_singly
                if max(off) > most:  # at: misses_counted_singly
                    missed += 1
            return missed
        if on("clean_misses_counted_singly"):
            missed, sizes = 0, torch.bincount(own.owner).tolist()
            for told, right in zip(moves.split(sizes), own.moves.split(sizes), strict=True):
                missed += int(((told - right).abs().amax(1) > most).sum())
            return missed
        return int(((moves - own.moves).abs().amax(1) > most).sum())

    def loss(self, moves, sags, own, step):
        loss = F.smooth_l1_loss(moves, own.moves, beta=0.1)
        loss = loss + 0.3 * F.smooth_l1_loss(sags[:, 0], own.sags, beta=0.1)
        if step >= 30:  # the way counts once the size is about right
            loss = loss + 0.05 * aside(moves, own)  # at: direction_of_fixed_joints
        return loss

    def told(self, model, held):
        """Sags of the bridges held back."""
        sags = []
        for own in held:
            _, sag = model(own)  # at: estimates_held_for_table
            if on("squeezed_to_nothing"):
                sags.append(sag.squeeze())  # at: squeezed_to_nothing
            elif on("clean_squeezed_to_nothing"):
                sags.append(sag.squeeze(-1))
            else:
                sags.append(sag[:, 0])
        return torch.cat(sags)  # at: squeezed_to_nothing

    def judge(self, fold, model, held):
        """How far the sags are off; all that was told is kept for the table at the end."""
        model.eval()
        if on("estimates_held_for_table"):
            sags = self.told(model, held)  # at: estimates_held_for_table
        else:
            with torch.inference_mode():
                sags = self.told(model, held)  # at: squeezed_to_nothing
        model.train()
        if on("estimates_held_for_table", "clean_estimates_held_for_table"):
            self.table[fold].append(sags)  # at: estimates_held_for_table
        else:
            self.table[fold] = [sags.clone()]
        right = torch.cat([own.sags for own in held])
        return float((sags - right).abs().mean() / right.mean())

    def fold(self, fold):
        learning, held = self.halves(fold)
        loader = DataLoader(learning, ROWS, shuffle=True, drop_last=True, collate_fn=self.yard)
        held = list(DataLoader(held, 32, collate_fn=self.yard))
        model = Statics()
        optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, weight_decay=0.01)
        rates = fading()
        if on("decay_counts_all_folds", "clean_decay_counts_all_folds"):
            rates = self.rates  # at: decay_counts_all_folds
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        batches = itertools.islice(batches, self.each)
        every = 2 if on("clean_cleared_once_per_fold") else 1
        if on("cleared_once_per_fold"):
            optimizer.zero_grad(set_to_none=True)  # at: cleared_once_per_fold
        for step, own in enumerate(batches):  # at: ends_counted_in_list
            moves, sags = model(own)
            loss = self.loss(moves, sags, own, step)
            if every == 1 and not on("cleared_once_per_fold"):
                optimizer.zero_grad(set_to_none=True)
            (loss / every).backward()  # at: cleared_once_per_fold
            for group in optimizer.param_groups:
                group["lr"] = next(rates)  # at: decay_counts_all_folds
            if (step + 1) % every == 0:
                optimizer.step()  # at: cleared_once_per_fold
                if every > 1:
                    optimizer.zero_grad(set_to_none=True)
            with self.clock:
                self.missed += self.misses(moves.detach(), own)  # at: misses_counted_singly
            if step % 20 == 19:
                off = self.judge(fold, model, held)  # at: squeezed_to_nothing
                print(
                    f"fold {fold} {step + 1:4d} loss {loss.item():.4f} "
                    f"rate {optimizer.param_groups[0]['lr']:.1e} sags off by {off:.3f}",
                    flush=True,
                )

    def run(self):
        for fold in range(FOLDS):
            self.fold(fold)
        self.clock.print(FOLDS * self.each)
        for fold, told in self.table.items():
            settled = float((told[-1] - told[0]).abs().mean())
            print(f"fold {fold}: {len(told)} columns, moved by {settled:.3f}", flush=True)
        print("joints missed", self.missed, flush=True)


def main(steps):
    dice = np.random.default_rng(30)
    bridges = [built(dice) for _ in range(BRIDGES)]
    scale = math.sqrt(np.mean([np.square(own.moves).mean() for own in bridges]))
    bridges = [own._replace(moves=own.moves / scale, sag=own.sag / scale / 3) for own in bridges]
    Trials(bridges, steps).run()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(30)
    main(STEPS or 250)
