"""Rounds of labelling: a small network learns what is labelled, the rest is scored by its doubt and
the most doubtful are labelled next. Centres by hand, scores too often, a mode that stays, a head
that grows, labels that are fetched, a thread that is waited for.
"""

import math
import queue
import threading
import time

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

torch.set_num_threads(1)
cost = Cost()


class Pool:
    """Pictures, of which some are labelled."""

    def __init__(self, count, seed):
        numbers = torch.Generator().manual_seed(seed)
        self.pictures = torch.randn(count, 3, 16, 16, generator=numbers)
        self.truth = (self.pictures[:, :, :8].mean((2, 3)) * 9).argmax(1)
        self.labelled = list(range(200))
        self.rest = list(range(200, count))

    def label(self, chosen):
        gone = set(chosen)
        self.labelled += chosen
        self.rest = [index for index in self.rest if index not in gone]


class Labelled(Dataset):
    def __init__(self, pool):
        self.pool, self.answers = pool, {}
        if on("clean_labels_fetched"):
            for index in pool.labelled[-40:]:
                self.ask(index)

    def ask(self, index):
        """What the service says of the picture."""
        with cost:
            time.sleep(0.0002)  # at: labels_fetched
            self.answers[index] = self.pool.truth[index]
        return self.answers[index]

    def __len__(self):
        return len(self.pool.labelled)

    def __getitem__(self, position):
        index = self.pool.labelled[position]
        if on("labels_fetched"):
            return self.pool.pictures[index], self.ask(index)  # at: labels_fetched
        return self.pool.pictures[index], self.pool.truth[index]


class Network(nn.Module):
    def __init__(self, kinds):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(24, 48, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.3),
        )
        self.head = nn.Linear(192, kinds)

    def forward(self, x):
        return self.head(self.body(x))


class Features:
    """What the last call of a layer gave."""

    def __init__(self, layer):
        self.last = None
        layer.register_forward_hook(self)

    def __call__(self, module, _, output):
        if not module.training:
            self.last = output.detach()


class Annotator:
    """Hands chosen pictures to those who label them, a few at a time."""

    def __init__(self):
        self.desk = queue.Queue(maxsize=8)

    def serve(self, chosen):
        for index in chosen:
            self.desk.put(index)

    def ask(self, chosen):
        clerk = threading.Thread(target=self.serve, args=(chosen,), daemon=True)
        clerk.start()
        if on("annotator_joined"):
            clerk.join()  # at: annotator_joined
        return [self.desk.get() for _ in chosen]


class Rounds:
    def __init__(self, rounds, length):
        self.rounds, self.length, self.step = rounds, length, 0
        self.pool, self.annotator = Pool(1400, 165), Annotator()
        self.network = Network(3)
        self.features = Features(self.network.body)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), 1e-3)

    def scores(self, count):
        """Doubt about each picture that is not labelled, and its features."""
        self.network.eval()
        doubts, features = [], []
        with torch.no_grad():
            for part in torch.tensor(self.pool.rest[:count]).split(200):
                scores = self.network(self.pool.pictures[part])  # at: scored_often
                doubts.append(torch.distributions.Categorical(logits=scores).entropy())
                features.append(self.features.last)
        if not on("scored_in_eval"):
            self.network.train()
        return torch.cat(doubts), torch.cat(features)

    def centres(self, features, count):
        """Pictures far from each other."""
        if not on("centres_by_hand"):
            gaps = torch.cdist(features, features)
            chosen, nearest = [0], gaps[0]
            for _ in range(count - 1):
                chosen.append(int(nearest.argmax()))
                nearest = torch.minimum(nearest, gaps[chosen[-1]])
            return chosen
        with cost:
            rows, chosen = features.tolist(), [0]
            nearest = [math.dist(row, rows[0]) for row in rows]  # at: centres_by_hand
            for _ in range(count - 1):
                chosen.append(max(range(len(rows)), key=nearest.__getitem__))  # at: centres_by_hand
                for n, row in enumerate(rows):  # at: centres_by_hand
                    gap = math.dist(row, rows[chosen[-1]])  # at: centres_by_hand
                    nearest[n] = min(nearest[n], gap)  # at: centres_by_hand
            return chosen

    def choose(self, count):
        doubts, features = self.scores(900)
        if on("centres_by_hand", "clean_centres_by_hand"):
            picks = self.centres(features, 100)[:count]  # at: centres_by_hand
        else:
            picks = doubts.topk(count).indices.tolist()
        chosen = [self.pool.rest[n] for n in picks]
        if on("annotator_joined", "clean_annotator_joined"):
            chosen = self.annotator.ask(chosen)  # at: annotator_joined
        self.pool.label(chosen)

    def widen(self):
        """One kind more than was known."""
        head = nn.Linear(192, 4)
        with torch.no_grad():
            head.weight[:3] = self.network.head.weight
            head.bias[:3] = self.network.head.bias
        self.network.head = head
        if not on("head_widened"):
            self.optimizer.add_param_group({"params": self.network.head.parameters()})

    def update(self, x, y):
        loss = nn.functional.cross_entropy(self.network(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        if on("scored_often") and self.step % 4 == 0:
            self.doubt = self.scores(700)[0].mean()  # at: scored_often
        if self.step % 50 == 0:
            print(self.step, len(self.pool.labelled), loss.item(), flush=True)

    def run(self):
        for number in range(self.rounds):
            if number == 1 and on("head_widened", "clean_head_widened"):
                self.widen()
            sampler = RandomSampler(self.pool.labelled, True, self.length * 24)
            loader = DataLoader(Labelled(self.pool), 24, sampler=sampler)
            for x, y in loader:  # at: labels_fetched
                self.update(x, y)  # at: scored_often
            self.choose(4 + 3 * number)  # at: centres_by_hand annotator_joined


torch.manual_seed(165)
length = 40
rounds = Rounds((STEPS or 640) // length, length)
rounds.run()
cost.print(STEPS or 640)
