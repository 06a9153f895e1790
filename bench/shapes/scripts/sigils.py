"""Sigils told apart after a few examples: weights and their rates are learned so that two steps of
descent suffice (MAML with a rate for each weight), by functional calls and gradients of gradients,
rare sigils later: labels scanned, totals sent back, weights kept that were adapted, rates that
nobody trains, a blank scan, a sigil with few scans, a trial on the weights themselves.
"""

import collections
import copy
import itertools
import random

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

cost = Cost()
KINDS, COMMON, SIZE = 200, 160, 12
WAYS, SHOTS, QUERIES, TASKS = 5, 5, 5, 4
INNER, TRIAL_STEPS = 2, 20
TOLD_EVERY, TRIED_EVERY = 20, 150


def drawn(dice):
    """A sigil: strokes between some points of a grid."""
    field = np.zeros((SIZE, SIZE), np.float32)
    points = [(dice.randint(2, SIZE - 3), dice.randint(2, SIZE - 3)) for _ in range(4)]
    for (a, b), (c, d) in itertools.pairwise(points):
        for share in np.linspace(0, 1, 2 * SIZE):
            field[round(a + (c - a) * share), round(b + (d - b) * share)] = 1
    return field


def scanned(sigil, count, source):
    """Scans of a sigil: moved a little, paler or darker, with dust."""
    moves = source.integers(-1, 2, (count, 2))
    rows = np.stack([np.roll(sigil, move, (0, 1)) for move in moves])
    rows *= source.uniform(0.6, 1.2, (count, 1, 1)).astype(np.float32)
    return rows + 0.15 * source.standard_normal(rows.shape, dtype=np.float32)


def collection(seed, kinds, common):
    """Scans and labels; the last kinds are rare, and some scans came out blank."""
    dice, source = random.Random(seed), np.random.default_rng(seed)
    scans, labels = [], []
    for kind in range(kinds):
        rows = scanned(drawn(dice), 100 if kind < common else 8, source)
        if common - 26 <= kind < common - 16:
            rows[0] = 0
        scans.append(rows)
        labels += [kind] * len(rows)
    return torch.from_numpy(np.concatenate(scans))[:, None], labels


class Episodes(Dataset):
    """Tasks: some kinds, a few scans of each to learn from and a few to be asked about."""

    def __init__(self, scans, labels, count, begin=KINDS):
        self.scans, self.labels, self.count, self.begin = scans, labels, count, begin
        self.array = np.array(labels)
        self.places = collections.defaultdict(list)
        for place, label in enumerate(labels):
            self.places[label].append(place)
        self.dice = random.Random(31)

    def __len__(self):
        return self.count

    def of_kind(self, kind):
        if on("labels_scanned"):
            with cost:
                return [n for n, own in enumerate(self.labels) if own == kind]  # at: labels_scanned
        if on("clean_labels_scanned"):
            with cost:
                return np.flatnonzero(self.array == kind).tolist()
        return self.places[kind]

    def chosen(self, kind):
        places, size = self.of_kind(kind), SHOTS + QUERIES  # at: labels_scanned
        if on("kind_too_rare"):
            return self.dice.sample(places, size)  # at: kind_too_rare
        if len(places) < size:
            return self.dice.choices(places, k=size)
        return self.dice.sample(places, size)

    def opened(self, index):
        """Kinds that are known by now, the most common first."""
        known = range(min(len(self.places), self.begin + index // (2 * TASKS)))
        if on("kind_too_rare", "clean_kind_too_rare"):
            return known  # at: kind_too_rare
        return [kind for kind in known if len(self.places[kind]) >= SHOTS + QUERIES]

    def __getitem__(self, index):
        kinds = self.dice.sample(self.opened(index), WAYS)
        places = [self.chosen(kind) for kind in kinds]  # at: labels_scanned kind_too_rare
        known = [place for row in places for place in row[:SHOTS]]
        asked = [place for row in places for place in row[SHOTS:]]
        answers = torch.arange(WAYS)
        return {
            "known": self.scans[known],
            "known_kinds": answers.repeat_interleave(SHOTS),
            "asked": self.scans[asked],
            "asked_kinds": answers.repeat_interleave(QUERIES),
        }


def unit(rows):
    if on("blank_scan"):
        return rows / rows.norm(dim=-1, keepdim=True)  # at: blank_scan
    if on("clean_blank_scan"):
        return rows / rows.square().sum(-1, keepdim=True).add(1e-8).sqrt()
    return rows * rows.square().sum(-1, keepdim=True).add(1e-6).rsqrt()


class Learner(nn.Module):
    """Convolutions, and a head by the angle to a direction for each answer."""

    def __init__(self, width=16):
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False)
        self.third = nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1, bias=False)
        self.head = nn.Parameter(torch.randn(WAYS, 18 * width) / 20)
        self.scale = nn.Parameter(torch.tensor(8.0))

    def forward(self, scans):
        x = F.relu(self.second(F.relu(self.first(scans))))
        features = unit(F.relu(self.third(x)).flatten(1))  # at: blank_scan
        return self.scale * features @ unit(self.head).T


class Meta(nn.Module):
    """What is learned over tasks: a learner to begin with, and how fast each weight adapts."""

    def __init__(self):
        super().__init__()
        self.learner = Learner()
        named = self.learner.named_parameters()
        rates = {name.replace(".", "_"): torch.full_like(value, 0.05) for name, value in named}
        if on("rates_in_dict"):
            self.rates = {
                name: nn.Parameter(rate) for name, rate in rates.items()
            }  # at: rates_in_dict
        elif on("clean_rates_in_dict"):
            self.rates = rates
        else:
            self.rates = nn.ParameterDict(rates)

    def adapt(self, scans, kinds):
        """The learner's weights after some steps of descent, as a function of those before."""
        fast = dict(self.learner.named_parameters())
        for _ in range(INNER):
            loss = F.cross_entropy(functional_call(self.learner, fast, (scans,)), kinds)
            slopes = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {
                name: value - self.rates[name.replace(".", "_")] * slope
                for (name, value), slope in zip(fast.items(), slopes, strict=True)
            }
        return fast

    def forward(self, task):
        fast = self.adapt(task["known"], task["known_kinds"])
        scores = functional_call(self.learner, fast, (task["asked"],))
        return F.cross_entropy(scores, task["asked_kinds"]), fast


class Training:
    def __init__(self, steps):
        self.steps, self.step = steps, 0
        scans, labels = collection(21, KINDS, COMMON)
        self.loader = DataLoader(
            Episodes(scans, labels, steps * TASKS, begin=COMMON // 2 - 10), batch_size=TASKS
        )
        self.held = Episodes(*collection(22, 30, 60), 10**6)
        self.meta = Meta()
        values = self.meta.parameters()  # at: rates_in_dict
        self.optimizer = torch.optim.Adam(values, 2e-3)  # at: rates_in_dict
        self.adapted = collections.deque(maxlen=8) if on("clean_adapted_kept") else []
        cost.seconds = 0.0

    def told(self, loss):
        shown = [round(float(loss), 4)]
        if self.adapted:
            before = self.meta.learner.third.weight
            moved = [
                float((fast["third.weight"] - before).norm()) for fast in list(self.adapted)[-8:]
            ]
            shown.append(round(sum(moved) / len(moved), 4))
        print(self.step, *shown, flush=True)

    def learn(self, batch):
        """Gradients of a batch of tasks."""
        total, losses = 0.0, []
        for n in range(TASKS):
            loss, fast = self.meta({key: value[n] for key, value in batch.items()})
            if on("adapted_kept", "clean_adapted_kept"):
                self.adapted.append(fast)  # at: adapted_kept
            losses.append(loss.detach())
            total = total + loss / TASKS
            if on("totals_sent_back") and n < TASKS - 1:
                with cost:
                    total.backward(retain_graph=True)  # at: totals_sent_back
            elif on("clean_totals_sent_back"):
                (loss / TASKS).backward(retain_graph=True)
        if not on("clean_totals_sent_back"):
            total.backward()  # at: totals_sent_back
        return torch.stack(losses).mean()

    def tried(self):
        """How well new sigils are told after a longer fit to a few of them."""
        learner = self.meta.learner  # at: tried_in_place
        before = copy.deepcopy(learner.state_dict())
        if not on("tried_in_place", "clean_tried_in_place"):
            learner = copy.deepcopy(learner)
        right = 0.0
        for n in range(3):
            task = self.held[n]
            descent = torch.optim.SGD(learner.parameters(), 0.5)  # at: tried_in_place
            for _ in range(TRIAL_STEPS):
                loss = F.cross_entropy(learner(task["known"]), task["known_kinds"])
                descent.zero_grad()
                loss.backward()
                descent.step()  # at: tried_in_place
            with torch.no_grad():
                guesses = learner(task["asked"]).argmax(1)
            right += (guesses == task["asked_kinds"]).float().mean().item() / 3
        if on("clean_tried_in_place"):
            learner.load_state_dict(before)
        print(self.step, "tried", round(right, 3), flush=True)

    def run(self):
        for batch in self.loader:  # at: labels_scanned kind_too_rare
            self.optimizer.zero_grad()
            loss = self.learn(batch)  # at: totals_sent_back adapted_kept
            nn.utils.clip_grad_norm_(self.meta.parameters(), 10.0)
            self.optimizer.step()  # at: rates_in_dict
            self.step += 1
            if self.step % TOLD_EVERY == 0:
                self.told(loss)
            if self.step % TRIED_EVERY == 0:
                self.tried()  # at: tried_in_place
        cost.print(self.steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(22)
    Training(STEPS or 320).run()
