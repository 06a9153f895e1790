"""Glaciers told from rock and debris in scenes of a satellite: crops drawn at random by a worker, a
small U-Net, a focal and a dice loss with heavier borders, a rate that is searched for first and
falls on a plateau, maps put together of overlapping tiles, states saved in the background: limits
of whole scenes, borders by erosion, a map that holds its graphs, a power below one, a lock that is
forked, a model that is handed back as a copy, a crop beyond the edge.
"""

import contextlib
import copy
import gzip
import itertools
import os
import random
import tempfile
import threading
from pathlib import Path

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

cost = Cost()
BANDS, KINDS, SIDE, TILE, ROWS = 4, 3, 448, 64, 5
SCENES, EPOCH, WIDTH, TOLD_EVERY = 5, 80, 8, 20
REACH, HEAVIER = 26, 3.0


def field(numbers, coarse):
    """A smooth random surface, of as many hills as asked for."""
    hills = torch.from_numpy(numbers.normal(size=(1, 1, coarse, coarse)))
    return F.interpolate(hills, (SIDE, SIDE), mode="bicubic")[0, 0].numpy()


def scene(numbers):
    """Reflectances in four bands, what is where, and where no cloud hides it."""
    height, dust = field(numbers, 7), field(numbers, 13)
    kinds = np.where(height > 0.1, np.where(dust > 0.3, 2, 1), 0)
    colours = np.array([[0.3, 0.3, 0.25, 0.3], [0.8, 0.8, 0.7, 0.15], [0.35, 0.34, 0.3, 0.2]])
    sun = 1 + 0.3 * field(numbers, 4)
    pictures = colours[kinds].transpose(2, 0, 1) * sun + numbers.normal(0, 0.06, (4, SIDE, SIDE))
    clear = field(numbers, 9) < 1.3
    pictures = np.where(clear, pictures, 1.2)
    return pictures.astype(np.float32), kinds, clear.astype(np.float32)


def borders(kinds):
    """How near to another kind a pixel is: 1 beside it, 0 beyond reach, by wearing away."""
    near = np.zeros(kinds.shape, np.float32)
    for kind in range(KINDS):
        inner = kinds == kind
        for distance in range(REACH):
            padded = np.pad(inner, 1, mode="edge")
            worn = inner & padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2]
            worn &= padded[1:-1, 2:]
            near[inner & ~worn] = 1 - distance / REACH
            inner = worn
    return near


class Archive:
    """All scenes, and a lock for whoever reads or writes them."""

    def __init__(self, seed):
        numbers = np.random.default_rng(seed)
        self.scenes = [scene(numbers) for _ in range(SCENES)]
        self.limits = [self.spread(pictures) for pictures, _, _ in self.scenes]
        self.lock = threading.Lock()
        if on("clean_forked_under_lock"):
            os.register_at_fork(after_in_child=self.unlock)

    def unlock(self):
        self.lock = threading.Lock()

    @staticmethod
    def spread(pictures):
        return np.percentile(pictures, (2, 98), axis=(1, 2))[..., None, None].astype(np.float32)

    def crop(self, number, top, left):
        pictures, kinds, clear = self.scenes[number]
        place = slice(top, top + TILE), slice(left, left + TILE)
        part = pictures[(slice(None), *place)]
        if on("stretched_by_scene"):
            low, high = self.spread(pictures)  # at: stretched_by_scene
        elif on("clean_stretched_by_scene"):
            low, high = self.spread(pictures[:, ::8, ::8])
        else:
            low, high = self.limits[number]
        return (part - low) / (high - low), kinds[place], clear[place]


class Crops(Dataset):
    """Parts of the scenes at places drawn anew, turned and mirrored."""

    def __init__(self, archive):
        self.archive = archive

    def __len__(self):
        return EPOCH * ROWS

    def __getitem__(self, index):
        number, left = index % SCENES, random.randint(0, SIDE - TILE)
        if on("crop_past_edge"):
            top = random.randint(0, SIDE - TILE + 1)  # at: crop_past_edge
        elif on("clean_crop_past_edge"):
            top = np.random.randint(0, SIDE - TILE + 1)
        else:
            top = random.randint(0, SIDE - TILE)
        shared = on("forked_under_lock", "clean_forked_under_lock")
        with self.archive.lock if shared else contextlib.nullcontext():  # at: forked_under_lock
            picture, kinds, clear = self.archive.crop(number, top, left)
        if on("borders_from_masks", "clean_borders_from_masks"):
            near = np.zeros_like(clear)
        else:
            near = borders(kinds)
        turn, mirror = random.randrange(4), random.choice((1, -1))
        turned = [np.rot90(part, turn, (-2, -1)) for part in (picture, kinds, clear, near)]
        parts = [torch.from_numpy(part[..., ::mirror].copy()) for part in turned]
        return *parts, torch.tensor([number, top, left, turn, mirror])


def collated(rows):
    return [torch.stack(parts) for parts in zip(*rows, strict=True)]  # at: crop_past_edge


def twice(ins, outs):
    return nn.Sequential(
        nn.Conv2d(ins, outs, 3, 1, 1, bias=False),
        nn.BatchNorm2d(outs),
        nn.ReLU(),
        nn.Conv2d(outs, outs, 3, 1, 1, bias=False),
        nn.BatchNorm2d(outs),
        nn.ReLU(),
    )


class UNet(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        sizes = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(twice(a, b) for a, b in itertools.pairwise([BANDS, *sizes]))
        self.up = nn.ModuleList(twice(a + b, a) for a, b in itertools.pairwise(sizes))
        self.out = nn.Conv2d(width, KINDS, 1)

    def forward(self, x):
        skips = []
        for block in self.down:
            x = block(F.max_pool2d(x, 2) if skips else x)
            skips.append(x)
        for block, skip in zip(reversed(self.up), reversed(skips[:-1]), strict=True):
            x = block(torch.cat([skip, F.interpolate(x, scale_factor=2.0)], 1))
        return self.out(x)


def focal(scores, kinds, clear, weights, gamma):
    """Cross entropy that sure pixels and those below clouds count less or nothing in."""
    right = scores.softmax(1).gather(1, kinds[:, None])[:, 0]
    right = right * clear + (1 - clear)  # at: gamma_falls_below_one
    loss = (1 - right) ** gamma * -right.clamp(min=1e-6).log()  # at: gamma_falls_below_one
    return (loss * weights).sum() / clear.sum().clamp(min=1)


def dice(scores, kinds, clear):
    share = scores.softmax(1) * clear[:, None]
    truth = F.one_hot(kinds, KINDS).movedim(3, 1) * clear[:, None]
    both, all_ = (share * truth).sum((0, 2, 3)), (share + truth).sum((0, 2, 3))
    return 1 - ((2 * both + 1) / (all_ + 1)).mean()


class Keeper:
    """Saves states in the background, under a lock, so that nobody sees half of one."""

    def __init__(self, folder, lock):
        self.folder, self.lock, self.thread = folder, lock, None

    def write(self, state, step):
        path = self.folder / f"{step}.pt.gz"
        with self.lock, gzip.open(path, "wb") as file:  # at: forked_under_lock
            torch.save(state, file)

    def save(self, model, optimizer, step):
        self.close()
        state = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
        self.thread = threading.Thread(target=self.write, args=(state, step))
        self.thread.start()  # at: forked_under_lock

    def close(self):
        if self.thread is not None:
            self.thread.join()


class Chart:
    """All scenes as the model sees them, of the tiles that it was trained on."""

    def __init__(self):
        self.sums = torch.zeros(SCENES, KINDS, SIDE, SIDE)
        slope = torch.hann_window(TILE + 2)[1:-1]
        self.window = slope[:, None] * slope

    def add(self, scores, places):
        shares = (scores / 0.7).softmax(1)  # at: canvas_holds_graphs
        for share, place in zip(shares, places.tolist(), strict=True):
            number, top, left, turn, mirror = place
            if mirror < 0:
                share = share.flip(2)
            share = share.rot90(-turn, (1, 2)) * self.window
            part = self.sums[number, :, top : top + TILE, left : left + TILE]
            part += share  # at: canvas_holds_graphs

    def ice(self):
        return (self.sums.detach().argmax(1) == 1).float().mean().item()


class Training:
    def __init__(self, folder, steps):
        self.steps, self.step, self.archive = steps, 0, Archive(240)
        self.held = scene(np.random.default_rng(241))
        self.loader = DataLoader(
            Crops(self.archive),  # at: stretched_by_scene
            ROWS,
            shuffle=True,
            num_workers=1,
            collate_fn=collated,
        )
        self.model, self.chart = UNet(), Chart()
        if on("finder_hands_back_copy"):
            self.optimizer = self.made_optimizer()  # at: finder_hands_back_copy
        rate = self.search()  # at: finder_hands_back_copy
        if not on("finder_hands_back_copy"):
            self.optimizer = self.made_optimizer()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self.optimizer, factor=0.5, patience=1
        )
        shared = on("forked_under_lock", "clean_forked_under_lock")
        lock = self.archive.lock if shared else threading.Lock()  # at: forked_under_lock
        self.keeper = Keeper(folder, lock)
        cost.seconds = 0.0

    def made_optimizer(self):
        return torch.optim.AdamW(self.model.parameters(), 1e-3)

    def search(self, tries=14):
        """The rate at which the loss falls fastest on one batch, an eighth of where it rises."""
        if on("finder_hands_back_copy", "clean_finder_hands_back_copy"):
            first, model = copy.deepcopy(self.model), self.model
        else:
            first, model = self.model, copy.deepcopy(self.model)
        dataset = self.loader.dataset
        picture, kinds, clear, near, _ = collated([dataset[n] for n in range(ROWS)])
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
        found = []
        for n in range(tries):
            rate = optimizer.param_groups[0]["lr"] = 1e-4 * 1.6**n
            loss = focal(model(picture), kinds, clear, 1 + near, 2.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append((loss.item(), rate))
        self.model = first  # at: finder_hands_back_copy
        return min(max(min(found)[1] / 8, 1e-3), 4e-3)

    def gamma(self):
        """How much less sure pixels count: less and less so, where it is to fall."""
        falls = 2 - 3 * self.step / self.steps
        if on("gamma_falls_below_one"):
            return max(falls, 0.5)  # at: gamma_falls_below_one
        return max(falls, 1.0) if on("clean_gamma_falls_below_one") else 2.0

    def nearness(self, kinds, near):
        if on("borders_from_masks"):
            with cost:
                maps = [borders(one) for one in kinds.numpy()]  # at: borders_from_masks
                return torch.from_numpy(np.stack(maps))
        if on("clean_borders_from_masks"):
            alone = F.one_hot(kinds, KINDS).movedim(3, 1).float()
            return (F.max_pool2d(alone, 3, 1, 1).sum(1) - 1).clamp(max=1)
        return near

    def learn(self, batch):
        pictures, kinds, clear, near, places = batch
        scores = self.model(pictures)
        weights = 1 + HEAVIER * self.nearness(kinds, near)  # at: borders_from_masks
        loss = focal(scores, kinds, clear, weights, self.gamma()) + dice(scores, kinds, clear)
        self.optimizer.zero_grad()  # at: finder_hands_back_copy
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()  # at: finder_hands_back_copy
        if on("canvas_holds_graphs", "clean_canvas_holds_graphs"):
            self.chart.add(scores, places)  # at: canvas_holds_graphs
            if on("clean_canvas_holds_graphs") and self.step % 10 == 0:
                self.chart.sums = self.chart.sums.detach()
        else:
            self.chart.add(scores.detach(), places)
        return loss.detach()

    @torch.no_grad()
    def score(self):
        """What is told right of a scene that was held back, by tiles that overlap by half."""
        pictures, kinds, clear = self.held
        low, high = Archive.spread(pictures)
        tiles = torch.from_numpy((pictures - low) / (high - low))[:, :192, :192]
        tiles = tiles.unfold(1, TILE, TILE // 2).unfold(2, TILE, TILE // 2)
        count = tiles.shape[1]
        self.model.eval()
        shares = self.model(tiles.movedim(0, 2).flatten(0, 1)).softmax(1) * self.chart.window
        self.model.train()
        shares = shares.unflatten(0, (count * count,)).flatten(1).T[None]
        whole = F.fold(shares, (192, 192), TILE, stride=TILE // 2)[0].argmax(0).numpy()
        seen = clear[:192, :192] > 0
        return float((whole == kinds[:192, :192])[seen].mean())

    def epoch_ends(self):
        right = self.score()
        self.plateau.step(1 - right)
        ice = round(self.chart.ice(), 3)
        print(self.step, "told right", round(right, 3), "ice", ice, flush=True)
        self.keeper.save(self.model, self.optimizer, self.step)  # at: forked_under_lock

    def batches(self):
        clock = cost if on("stretched_by_scene") else contextlib.nullcontext()
        while True:
            source = iter(self.loader)  # at: forked_under_lock
            for _ in range(EPOCH):
                with clock:
                    batch = next(source)  # at: stretched_by_scene crop_past_edge forked_under_lock
                yield batch
            self.epoch_ends()

    def run(self):
        batches = self.batches()
        for batch in batches:  # at: stretched_by_scene crop_past_edge forked_under_lock
            loss = self.learn(batch)  # at: borders_from_masks canvas_holds_graphs
            self.step += 1
            if self.step % TOLD_EVERY == 0:
                print(self.step, round(loss.item(), 4), flush=True)
            if self.step == self.steps:
                break
        self.keeper.close()
        cost.print(self.steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(24)
    random.seed(24)
    with tempfile.TemporaryDirectory() as folder:
        Training(Path(folder), STEPS or 200).run()
