"""What to show next in a bazaar: two towers over shards of clicks, a bag of the goods seen before
that is weighed by attention, drawn and mined negatives, recall of held out clicks now and then.
"""

import collections
import gc
import math
import tempfile
from pathlib import Path

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

torch.set_num_threads(1)
torch.manual_seed(181)
cost = Cost()
GOODS, VISITORS, TASTES, SEEN, ROWS = 1200, 2000, 30, 20, 128
SHARDS, PER_SHARD, PAST, DRAWN = 44, 300, 500_000, 768
FIELDS = ("visitor", "seen", "dwell", "bought")


def write_shards(folder):
    """A visitor lingers at what suits him, and passes by more of something else."""
    numbers = np.random.default_rng(181)
    tastes = numbers.permutation(GOODS).reshape(TASTES, -1)
    for n in range(SHARDS):
        mine, other = numbers.integers(TASTES, size=(2, PER_SHARD))
        lingers = numbers.random((PER_SHARD, SEEN)) < 0.4
        places = numbers.integers(tastes.shape[1], size=(PER_SHARD, SEEN + 1))
        seen = tastes[np.where(lingers, mine[:, None], other[:, None]), places[:, :-1]]
        short = np.arange(SEEN) >= numbers.integers(8, SEEN + 1, PER_SHARD)[:, None]
        dwell = np.where(lingers, 1.0, -1.0) + numbers.normal(0, 0.3, lingers.shape)
        table = {
            "visitor": numbers.integers(VISITORS, size=PER_SHARD),
            "seen": np.where(short, -1, seen),
            "dwell": dwell.astype(np.float32),
            "bought": tastes[mine, places[:, -1]],
        }
        for field in FIELDS:
            np.save(folder / f"{field}-{n:03}.npy", table[field])


class Past:
    """Who has bought what in earlier years."""

    def __init__(self):
        numbers = np.random.default_rng(182)
        self.visitors = numbers.integers(VISITORS, size=PAST)
        self.goods = numbers.integers(GOODS, size=PAST, dtype=np.int32)
        order = np.argsort(self.visitors, kind="stable")
        self.sorted = self.goods[order]
        self.starts = np.searchsorted(self.visitors[order], np.arange(VISITORS + 1))

    def of(self, visitor):
        if on("scanned_for_visitor"):
            return self.goods[self.visitors == visitor]  # at: scanned_for_visitor
        return self.sorted[self.starts[visitor] : self.starts[visitor + 1]]


class Clicks(Dataset):
    def __init__(self, folder):
        self.folder, self.past, self.opened = folder, Past(), {}
        self.paths = sorted(folder.glob("bought-*.npy"))
        self.length = sum(len(np.load(path, mmap_mode="r")) for path in self.paths)

    def __len__(self):
        if on("length_from_shards"):
            with cost:
                found = (np.load(path, mmap_mode="r") for path in self.paths)
                return sum(len(one) for one in found)  # at: length_from_shards
        return self.length

    def shard(self, n):
        if n not in self.opened:
            paths = [self.folder / f"{field}-{n:03}.npy" for field in FIELDS]
            self.opened[n] = [np.load(path, mmap_mode="r") for path in paths]
        return self.opened[n]

    def __getitem__(self, index):
        n, row = divmod(index, PER_SHARD)
        visitor, seen, dwell, bought = (field[row] for field in self.shard(n))
        usual = math.log1p(len(self.past.of(visitor)))  # at: scanned_for_visitor
        return int(visitor), np.array(seen), np.array(dwell), int(bought), usual


def collated(rows):
    visitors, seen, dwell, bought, usual = zip(*rows, strict=True)
    return {
        "seen": torch.from_numpy(np.stack(seen)),
        "dwell": torch.from_numpy(np.stack(dwell)),
        "visitor": torch.tensor(visitors),
        "bought": torch.tensor(bought),
        "usual": torch.tensor(usual, dtype=torch.float32),
    }


def tower(before, width=320, after=64):
    return nn.Sequential(nn.Linear(before, width), nn.GELU(), nn.Linear(width, after))


class Towers(nn.Module):
    def __init__(self, size=32):
        super().__init__()
        self.bag = nn.EmbeddingBag(GOODS, size, mode="sum")
        self.goods, self.visitors = nn.Embedding(GOODS, size), nn.Embedding(VISITORS, 16)
        self.attend = nn.Sequential(
            nn.Linear(size + 1, 192), nn.Tanh(), nn.Linear(192, 1, bias=False)
        )
        self.left, self.right = tower(size + 17), tower(size)
        for table in (self.bag, self.goods, self.visitors):
            nn.init.normal_(table.weight, std=0.3)

    def weights(self, seen, dwell, there):
        known = F.embedding(seen.clamp(min=0), self.bag.weight)
        scores = self.attend(torch.cat([known, dwell[..., None]], 2))
        scores = scores.masked_fill(~there[..., None], -1e4)
        if on("softmax_over_one"):
            return scores.softmax(-1)[..., 0]  # at: softmax_over_one
        if on("clean_softmax_over_one"):
            return scores[..., 0].softmax(-1)
        return scores.softmax(1)[..., 0]

    def visitor(self, batch):
        seen, there = batch["seen"], batch["seen"] >= 0
        weights = self.weights(seen, batch["dwell"], there)  # at: softmax_over_one
        starts = there.sum(1).cumsum(0) - there.sum(1)
        bag = self.bag(seen[there], starts, per_sample_weights=weights[there])
        rest = [self.visitors(batch["visitor"]), batch["usual"][:, None] / 10]
        return F.normalize(self.left(torch.cat([bag, *rest], 1)), dim=1)

    def good(self, ids):
        return F.normalize(self.right(self.goods(ids)), dim=1)

    def forward(self, batch, negatives):
        """Scores of what was bought (the diagonal), of what others bought, and of the negatives."""
        ids = torch.cat([batch["bought"], negatives])
        scores = self.visitor(batch) @ self.good(ids).T / 0.1
        same = ids[None] == batch["bought"][:, None]
        same[:, : len(same)].fill_diagonal_(False)
        return scores.masked_fill(same, -1e4)


class Mined:
    """Goods that were scored too high, the latest first."""

    def __init__(self, before, goods):
        self.before, self.goods = before, goods

    def __len__(self):
        before = 0 if self.before is None else len(self.before)  # at: mined_of_mined
        return len(self.goods) + before


class Negatives:
    def __init__(self):
        deck = torch.arange(GOODS).repeat(150).numpy()
        self.loader = DataLoader(deck, DRAWN, shuffle=True, drop_last=True)
        self.rows, self.mined, self.recent = None, None, collections.deque(maxlen=32)

    def drawn(self):
        if on("deck_shuffled_anew"):
            with cost:
                return next(iter(self.loader))  # at: deck_shuffled_anew
        if on("clean_deck_shuffled_anew"):
            drawn = None if self.rows is None else next(self.rows, None)
            if drawn is None:
                self.rows = iter(self.loader)
                drawn = next(self.rows)
            return drawn
        return torch.randint(GOODS, (DRAWN,))

    def mine(self, scores, negatives):
        """Remember what came out on top, a quarter of the batch at a time."""
        top = negatives[scores[:, ROWS:].argmax(1)]
        for goods in top.chunk(4):
            if on("mined_of_mined"):
                self.mined = Mined(self.mined, goods)  # at: mined_of_mined
            else:
                self.recent.append(goods)
                self.mined = Mined(None, torch.cat(list(self.recent)))

    def __call__(self):
        drawn = self.drawn()  # at: deck_shuffled_anew
        if self.mined is not None and len(self.mined) > ROWS:  # at: mined_of_mined
            drawn[:16] = self.mined.goods[-16:]
        return drawn


class Step:
    """One step, and what is to be told of it when someone asks."""

    def __init__(self, scores):
        self.loss = F.cross_entropy(scores, torch.arange(len(scores)))
        self.scores = scores.detach()
        if on("rings_uncollected", "clean_rings_uncollected"):
            self.told = lambda: float(self.scores.diagonal().mean())  # at: rings_uncollected


class Bazaar:
    def __init__(self, folder, steps):
        self.steps, self.step = steps, 0
        self.clicks = Clicks(folder)
        held = range(len(self.clicks) - 512, len(self.clicks))
        self.held_out = collated([self.clicks[n] for n in held])
        self.learned = torch.utils.data.Subset(self.clicks, range(held[0]))
        sampler = RandomSampler(self.learned, replacement=True, num_samples=steps * ROWS)
        self.loader = DataLoader(
            self.learned, ROWS, sampler=sampler, num_workers=2, collate_fn=collated
        )
        self.model, self.negatives = Towers(), Negatives()
        self.optimizer = torch.optim.Adam(self.model.parameters(), 6e-3)
        self.warm = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=10)
        self.plateau, self.every = None, 50
        if on("plateau_upside_down"):
            self.plateau, self.every = self.dropping("min", 1), 15
        elif on("clean_plateau_upside_down"):
            self.plateau, self.every = self.dropping("max", 4), 15

    def dropping(self, mode, patience):
        made = torch.optim.lr_scheduler.ReduceLROnPlateau
        return made(self.optimizer, mode, 0.1, patience)  # at: plateau_upside_down

    @torch.no_grad()
    def recall(self, k=40):
        self.model.eval()
        scores = self.model.visitor(self.held_out) @ self.model.good(torch.arange(GOODS)).T
        best = scores.topk(k, 1).indices
        self.model.train()
        return float((best == self.held_out["bought"][:, None]).any(1).float().mean())

    def learn(self, batch):
        negatives = self.negatives()  # at: deck_shuffled_anew mined_of_mined
        scores = self.model(batch, negatives)  # at: softmax_over_one
        step = Step(scores)  # at: rings_uncollected
        self.optimizer.zero_grad()
        step.loss.backward()
        self.optimizer.step()
        if on("mined_of_mined", "clean_mined_of_mined"):
            self.negatives.mine(step.scores, negatives)  # at: mined_of_mined
        return step

    def rounds(self):
        """How often the clicks have been gone through."""
        if on("clean_length_from_shards"):
            return self.step * ROWS / self.clicks.length
        return self.step * ROWS / len(self.clicks)  # at: length_from_shards

    def after(self, step):
        self.step += 1
        if self.plateau is None or self.step <= 10:
            self.warm.step()
        if on("clean_rings_uncollected") and self.step % 10 == 0:
            gc.collect()
        if self.step % self.every == 0:
            recall = self.recall()
            if self.plateau:
                self.plateau.step(recall)  # at: plateau_upside_down
            print(self.step, round(step.loss.item(), 3), round(recall, 3), flush=True)

    def run(self):
        if on("rings_uncollected", "clean_rings_uncollected"):
            gc.freeze()
            gc.disable()  # at: rings_uncollected
        for batch in self.loader:  # at: scanned_for_visitor
            step = self.learn(batch)  # at: rings_uncollected mined_of_mined deck_shuffled_anew
            self.after(step)
            if self.rounds() >= 4:  # at: length_from_shards
                break
        cost.print(self.steps)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_shards(Path(folder))
        Bazaar(Path(folder), STEPS or 360).run()
