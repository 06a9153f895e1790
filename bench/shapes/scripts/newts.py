"""Crested newts told apart by the spots on their bellies: an encoder that learns against a slowly
following copy of itself and a queue of its answers, triplets with the hardest stranger of the
batch, a temperature that is learnt by an optimizer of its own, and the length of the animal guessed
beside it. Judged by whether the nearest photograph of a gallery is of the same newt.
"""

import copy
import math
import sys
import time
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset

UPDATES = STEPS or 320
NEWTS, SIZE, ROWS, WIDTH, QUEUE = 484, 32, 24, 64, 936
GALLERY = 96
RATES = {"body": 1e-3, "heads": 2e-3, "scale": 5e-3}
MARGIN, FOLLOWS, TOLD_EVERY, JUDGED_EVERY = 0.1, 0.98, 25, 10
SCANNED = "partner_sought_by_scan", "clean_partner_sought_by_scan"
MINED = "hardest_by_item_loop", "clean_hardest_by_item_loop"
cost = Cost()


class Photo(NamedTuple):
    newt: int
    pond: str
    year: int


def bellies(dice):
    """One picture of spots for each newt."""
    axis = np.linspace(-1, 1, SIZE)
    spots = dice.integers(6, 13, NEWTS)
    pictures = np.zeros((NEWTS, SIZE, SIZE), np.float32)
    for picture, count in zip(pictures, spots, strict=True):
        for x, y, wide in dice.uniform((-0.8, -0.8, 0.05), (0.8, 0.8, 0.2), (count, 3)):
            row, column = np.exp(-(((axis - y) / wide) ** 2)), np.exp(-(((axis - x) / wide) ** 2))
            picture += np.outer(row, column)
    return pictures.clip(0, 1)


class Album(Dataset):
    """Photographs of some years; an item is one of them with another of the same newt."""

    def __init__(self, pictures, dice):
        lengths = dice.normal(14, 1.5, NEWTS)
        self.photos, images = [], []
        for newt, picture in enumerate(pictures):
            for year in range(2002, 2002 + dice.integers(10, 21)):
                self.photos.append(Photo(newt, f"pond {newt % 7}", year))
                seen = np.roll(picture, dice.integers(-2, 3, 2), (0, 1)) * dice.uniform(0.7, 1.1)
                images.append(seen + dice.normal(0, 0.05, picture.shape))
        self.images = torch.from_numpy(np.stack(images)).float()[:, None]
        self.lengths = torch.from_numpy((lengths - 14) / 1.5).float()
        self.of_newt = [[] for _ in range(NEWTS)]
        for index, photo in enumerate(self.photos):
            self.of_newt[photo.newt].append(index)

    def __len__(self):
        return len(self.photos)

    def others(self, index):
        """Photographs of the same newt from other years."""
        if on("partner_sought_by_scan"):
            newt, pond, year = self.photos[index]
            return [
                other
                for other, photo in enumerate(self.photos)
                if photo.pond == pond and photo.newt == newt and photo.year != year
            ]  # at: partner_sought_by_scan
        newt, _, year = self.photos[index]
        return [other for other in self.of_newt[newt] if self.photos[other].year != year]

    def view(self, index):
        image = self.images[index]
        shift = torch.randint(-2, 3, (2,)).tolist()
        image = torch.roll(image, shift, (1, 2))
        return image + 0.1 * torch.randn_like(image)

    def __getitem__(self, index):
        with cost if on(*SCANNED) else nullcontext():
            others = self.others(index)  # at: partner_sought_by_scan
        partner = others[torch.randint(len(others), ()).item()]
        newt = self.photos[index].newt
        return self.view(index), self.view(partner), newt, self.lengths[newt]


class Rounds:
    """Batches of photographs, one of each newt before any newt has its next."""

    def __init__(self, album, dice):
        self.album, self.dice = album, dice

    def endless(self):
        while True:
            for newt in self.dice.permutation(NEWTS):
                yield int(self.dice.choice(self.album.of_newt[newt]))

    def __iter__(self):
        stream = self.endless()
        for _ in range(UPDATES):
            yield [next(stream) for _ in range(ROWS)]

    def __len__(self):
        return UPDATES


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layers, inside = [], 1
        for outside, stride in ((8, 1), (32, 2), (64, 2), (96, 2)):
            layers += [
                nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
                nn.BatchNorm2d(outside),
                nn.ReLU(),
            ]
            inside = outside
        self.body = nn.Sequential(*layers, nn.Flatten())
        flat = 96 * (SIZE // 8) ** 2
        self.heads = nn.ModuleDict(
            {"mark": nn.Linear(flat, WIDTH), "length": nn.Sequential(nn.Linear(flat, 1))}
        )

    def forward(self, images):
        x = self.body(images)
        return F.normalize(self.heads["mark"](x), dim=1), self.heads["length"](x)


class Learner:
    def __init__(self, album):
        self.album = album
        self.encoder = Encoder()
        self.follower = copy.deepcopy(self.encoder)
        if not on("prototypes_of_live_keys"):
            self.follower.requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(math.log(10.0)))
        self.optimizer = torch.optim.AdamW(
            [
                {"params": self.encoder.body.parameters(), "lr": RATES["body"]},
                {"params": self.encoder.heads.parameters(), "lr": RATES["heads"]},
            ],
            weight_decay=1e-4,
        )
        self.tuner = torch.optim.SGD([self.scale], RATES["scale"], momentum=0.9)
        self.schedule = self.made_schedule()
        self.queue = F.normalize(torch.randn(QUEUE, WIDTH), dim=1)
        self.queued = torch.full((QUEUE,), -1)
        self.place = 0
        self.prototypes = torch.zeros(NEWTS, WIDTH)

    def made_schedule(self):
        if on("plateau_of_rising_recall"):
            return ReduceLROnPlateau(
                self.optimizer, factor=0.1, patience=1
            )  # at: plateau_of_rising_recall
        if on("clean_plateau_of_rising_recall"):
            lowest = [RATES["body"] / 50, RATES["heads"] / 50]
            return ReduceLROnPlateau(
                self.optimizer, mode="max", factor=0.5, patience=4, min_lr=lowest
            )
        return CosineAnnealingLR(self.optimizer, UPDATES, eta_min=RATES["body"] / 20)

    def keys(self, images):
        if on("prototypes_of_live_keys"):
            return self.follower(images)[0]  # at: prototypes_of_live_keys
        with torch.no_grad():
            return self.follower(images)[0]

    def remember(self, keys, newts):
        """The oldest of the queue make place."""
        index = (torch.arange(len(keys)) + self.place) % QUEUE
        self.queue[index], self.queued[index] = keys, newts
        self.place = (self.place + len(keys)) % QUEUE

    def full(self):
        return bool((self.queued >= 0).all())

    def gather(self, keys, newts):
        """What each newt looks like on the whole, for the wardens' list."""
        mixed = self.prototypes[newts].lerp(keys, 0.2)  # at: prototypes_of_live_keys
        self.prototypes = self.prototypes.index_copy(0, newts, mixed)  # at: prototypes_of_live_keys

    def contrast(self, queries, keys, newts):
        right = (queries * keys).sum(1, keepdim=True)
        wrong = queries @ self.queue.T
        wrong = wrong.masked_fill(newts[:, None] == self.queued, -1e4)
        scores = torch.cat([right, wrong], 1) * self.scale.exp().clamp(max=100)
        return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))

    def kin(self, queries, newts):
        """Earlier photographs of the same newt shall be alike as well."""
        same = (newts[:, None] == self.queued).float()
        scores = queries @ self.queue.T * self.scale.exp().clamp(max=100)
        found = (scores.log_softmax(1) * same).sum(1)
        if on("clean_newt_missing_from_queue"):
            return -(found / same.sum(1).clamp(min=1)).mean()
        return -(found / same.sum(1)).mean()  # at: newt_missing_from_queue

    def hardest(self, likeness, newts):
        """For each row the stranger that is most alike."""
        if on("hardest_by_item_loop"):
            found = []
            for row in range(len(newts)):
                best = -1
                for other in range(len(newts)):
                    if newts[row].item() == newts[other].item():  # at: hardest_by_item_loop
                        continue
                    if best < 0 or (
                        likeness[row, other].item()  # at: hardest_by_item_loop
                        > likeness[row, best].item()  # at: hardest_by_item_loop
                    ):
                        best = other
                found.append(best)
            return torch.tensor(found)
        if on("clean_hardest_by_item_loop"):
            names, found = newts.tolist(), []
            for own, row in zip(names, likeness.tolist(), strict=True):
                strangers = [place for place, name in enumerate(names) if name != own]
                found.append(max(strangers, key=row.__getitem__))
            return torch.tensor(found)
        return likeness.masked_fill(newts[:, None] == newts, -2.0).argmax(1)

    def triplets(self, queries, keys, newts):
        likeness = queries @ keys.T
        near = 1 - likeness.diagonal()
        if on("negatives_in_even_rows", "clean_negatives_in_even_rows"):
            same = newts[:, None] == newts
            if on("negatives_in_even_rows"):
                strangers = likeness[~same].view(
                    len(newts), len(newts) - 1
                )  # at: negatives_in_even_rows
            else:
                strangers = likeness[~torch.eye(len(newts), dtype=torch.bool)]
                strangers = strangers.view(len(newts), len(newts) - 1)
            few = strangers.topk(3, 1).values.mean(1)
            return F.relu(few - likeness.diagonal() + MARGIN).mean()
        with cost if on(*MINED) else nullcontext():
            along = self.hardest(likeness.detach(), newts)  # at: hardest_by_item_loop
            across = self.hardest(likeness.detach().T, newts)  # at: hardest_by_item_loop
        rows = torch.arange(len(newts))
        far = 1 - torch.maximum(likeness[rows, along], likeness[across, rows])
        return F.relu(near - far + MARGIN).mean()

    def sized(self, guessed, lengths):
        if on("lengths_spread_over_rows"):
            return (guessed - lengths).abs().mean()  # at: lengths_spread_over_rows
        guessed = guessed.squeeze(1)
        if on("clean_lengths_spread_over_rows"):
            longer = guessed[:, None] - guessed
            return (longer - (lengths[:, None] - lengths)).abs().mean()
        return (guessed - lengths).abs().mean()

    def learn(self, batch):
        images, partners, newts, lengths = batch
        queries, guessed = self.encoder(images)
        live = self.keys(partners)
        keys = live.detach()
        if self.place % (4 * ROWS) == 0 and on(
            "prototypes_of_live_keys", "clean_prototypes_of_live_keys"
        ):
            self.gather(live, newts)  # at: prototypes_of_live_keys
        contrast = self.contrast(queries, keys, newts)
        apart = self.triplets(queries, keys, newts)
        sized = self.sized(guessed, lengths)  # at: lengths_spread_over_rows
        loss = contrast + apart + 0.2 * sized
        if on("newt_missing_from_queue", "clean_newt_missing_from_queue") and self.full():
            loss = loss + 0.3 * self.kin(queries, newts)  # at: newt_missing_from_queue
        self.optimizer.zero_grad()
        self.tuner.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.encoder.parameters(), 10.0)
        self.optimizer.step()
        self.tuner.step()
        self.follow()
        self.remember(keys, newts)
        return loss.detach()

    @torch.no_grad()
    def follow(self):
        own = zip(self.follower.parameters(), self.encoder.parameters(), strict=True)
        for theirs, ours in own:
            theirs.lerp_(ours, 1 - FOLLOWS)

    @torch.no_grad()
    def recalls(self):
        """How many newts are found first, and among the first five."""
        asked = [photos[0] for photos in self.album.of_newt[:GALLERY]]
        known = [photos[-1] for photos in self.album.of_newt[:GALLERY]]
        self.encoder.eval()
        marks, _ = self.encoder(self.album.images[asked + known])
        self.encoder.train()
        nearest = (marks[:GALLERY] @ marks[GALLERY:].T).topk(5, 1).indices
        found = nearest == torch.arange(GALLERY)[:, None]
        return found[:, 0].float().mean().item(), found.any(1).float().mean().item()

    def after(self, update):
        if not isinstance(self.schedule, ReduceLROnPlateau):
            self.schedule.step()
        if update % JUDGED_EVERY == 0:
            first, five = self.recalls()
            if isinstance(self.schedule, ReduceLROnPlateau):
                self.schedule.step(first)  # at: plateau_of_rising_recall
            if update % (2 * TOLD_EVERY) == 0:
                rate = self.optimizer.param_groups[0]["lr"]
                print(f"recall@1 {first:.2f} recall@5 {five:.2f} rate {rate:.2g}", flush=True)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(34)
    dice = np.random.default_rng(34)
    album = Album(bellies(dice), dice)
    learner = Learner(album)
    loader = DataLoader(album, batch_sampler=Rounds(album, dice))
    cost.seconds, begun = 0.0, time.perf_counter()
    for update, batch in enumerate(loader, 1):  # at: partner_sought_by_scan
        loss = learner.learn(batch)
        learner.after(update)
        if update % TOLD_EVERY == 0:
            print(f"{update} loss {loss:.4f} sharpness {learner.scale.exp():.1f}", flush=True)
    took = (time.perf_counter() - begun) * 1000 / UPDATES
    print(f"{len(album)} photographs, {took:.1f} ms an update", flush=True)
    cost.print(UPDATES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
