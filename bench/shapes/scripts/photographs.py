"""Old photographs made new by a small U-Net: crops of scanned plates, fading and scratches that
are put on, a loss of several terms, an average of the weights, checkpoints of which some are kept:
plates that are converted, norms counted anew, layers that thaw, a list that is cut, a crop of
black, a lock that is taken, weights of a validation.
"""

import contextlib
import fcntl
import itertools
import operator
import tempfile
from pathlib import Path

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, Dataset

cost = Cost()
PLATES, WIDE, SIDE, ROWS, CROPS, HELD = 14, 768, 32, 12, 42, 24
THAW, KEPT, SHOWN = 24, 3, 16
TOLD_EVERY, CHECKED_EVERY, SAVED_EVERY, WEIGHED_FROM = 25, 60, 50, 180


def scanned(folder, numbers):
    """Plates as they lie on a disk: hills of colour with some edges, in a black frame."""
    paths = []
    for plate in range(PLATES):
        picture = np.zeros((WIDE, WIDE, 3), np.float32)
        for size in (6, 24, 96):
            hills = numbers.uniform(0, 1, (size, size, 3))
            picture += np.kron(hills, np.ones((WIDE // size, WIDE // size, 1))) * (3 / size) ** 0.3
        for _ in range(12):
            left, top = numbers.integers(0, WIDE - 90, 2)
            wide, high = numbers.integers(20, 90, 2)
            picture[top : top + high, left : left + wide] *= numbers.uniform(0.2, 1.6, 3)
        picture = (picture / picture.max() * 1.6).clip(0.08, 1)
        inside = np.zeros((WIDE, WIDE, 1), np.float32)
        frame = 33 if plate == 9 else 12
        inside[frame:-frame, frame:-frame] = 1
        paths.append(folder / f"plate{plate}.npy")
        np.save(paths[-1], (picture * inside * 255).astype(np.uint8))
    return paths


class Crops(Dataset):
    """Pieces of plates, anywhere in them, turned at random."""

    def __init__(self, paths, count, seed):
        self.plates, self.count = [np.load(path) for path in paths], count
        self.numbers = np.random.default_rng(seed)

    def __len__(self):
        return len(self.plates) * self.count

    def piece(self, plate, top, left):
        if on("plate_converted"):
            with cost:
                picture = (plate / 255).astype(np.float32)  # at: plate_converted
            return picture[top : top + SIDE, left : left + SIDE]
        if on("clean_plate_converted"):
            wide = plate[top : top + 2 * SIDE, left : left + 2 * SIDE] / 255
            return wide[:SIDE, :SIDE].astype(np.float32)
        return plate[top : top + SIDE, left : left + SIDE].astype(np.float32) / 255

    def __getitem__(self, index):
        top, left = self.numbers.integers(0, WIDE - SIDE, 2)
        plate = self.plates[index % len(self.plates)]
        picture = self.piece(plate, top, left)  # at: plate_converted
        if self.numbers.random() < 0.5:
            picture = picture[:, ::-1]
        picture = np.rot90(picture, self.numbers.integers(4))
        return torch.from_numpy(picture.copy()).permute(2, 0, 1)


def aged(pictures):
    """The same as time leaves it: pale, yellow, grainy and scratched."""
    rows = len(pictures)
    pale = torch.empty(rows, 1, 1, 1).uniform_(0.4, 0.8)
    tone = torch.tensor([0.35, 0.28, 0.15])[:, None, None] * torch.rand(rows, 1, 1, 1)
    worn = pictures * pale + tone + 0.05 * torch.randn_like(pictures)
    scratched = torch.rand(rows, 1, 1, SIDE) < 0.03
    return worn.masked_fill(scratched, 0.9).clamp(0, 1)


def twice(before, after):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
        nn.Conv2d(after, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
    )


class Restorer(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down = nn.ModuleList([twice(3, width), twice(width, 2 * width)])
        self.middle = twice(2 * width, 4 * width)
        self.up = nn.ModuleList([twice(6 * width, 2 * width), twice(3 * width, width)])
        self.out = nn.Conv2d(width, 3, 1)
        nn.init.zeros_(self.out.bias)

    def forward(self, worn):
        x, kept = worn, []
        for layer in self.down:
            kept.append(layer(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.middle(x)
        for layer in self.up:
            wide = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = layer(torch.cat([wide, kept.pop()], 1))
        return worn + self.out(x)


def correlation(found, wanted):
    """How alike the patterns of two pictures are, whatever their brightness and contrast."""
    found = found - found.mean((2, 3), keepdim=True)
    wanted = wanted - wanted.mean((2, 3), keepdim=True)
    both = (found * wanted).mean((2, 3))
    spreads = found.square().mean((2, 3)).sqrt() * wanted.square().mean((2, 3)).sqrt()
    if on("correlation_of_black"):
        return both / spreads  # at: correlation_of_black
    if on("clean_correlation_of_black"):
        return both / (spreads + 1e-4)
    return both / spreads.clamp(min=1e-3)


class Loss:
    """Colours, edges and patterns; each channel counts by its weight."""

    def __init__(self):
        self.weights = torch.ones(3)

    def __call__(self, found, wanted):
        apart = ((found - wanted).square() + 1e-4).sqrt().mean((0, 2, 3))
        colours = (apart * self.weights).sum() / 3  # at: weights_from_validation
        edges = sum((found.diff(dim=n) - wanted.diff(dim=n)).abs().mean() for n in (2, 3))
        alike = correlation(found, wanted).mean()  # at: correlation_of_black
        return colours + 0.5 * edges + 0.05 * (1 - alike)


class Worst:
    """Crops that were restored worst so far, to be looked at."""

    def __init__(self):
        self.rows = []

    def push(self, worn, found, wanted):
        errors = (found - wanted).abs().mean((1, 2, 3)).tolist()
        pictures = torch.stack([worn, found, wanted], 1)
        self.rows += zip(errors, map(torch.clone, pictures), strict=True)  # at: worst_not_cut
        self.rows.sort(key=operator.itemgetter(0), reverse=True)
        if on("worst_not_cut"):
            self.rows[SHOWN:].clear()  # at: worst_not_cut
        elif on("clean_worst_not_cut"):
            self.rows[SHOWN:] = []
        else:
            del self.rows[SHOWN:]


@contextlib.contextmanager
def locked(path):
    """One at a time: others may read what is written here."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # at: pruned_under_lock
        yield


class Shelf:
    """Checkpoints, of which the last ones are kept."""

    def __init__(self, folder):
        self.folder, self.lock = folder, folder / ".lock"

    def prune(self):
        lock = self.folder / ".pruned" if on("clean_pruned_under_lock") else self.lock
        old = sorted(self.folder.glob("step*.pt"))[:-KEPT]
        if old:
            with locked(lock):  # at: pruned_under_lock
                for path in old:
                    path.unlink()

    def put(self, step, state):
        with locked(self.lock):  # at: pruned_under_lock
            torch.save(state, self.folder / f"step{step:05}.pt")
            if on("pruned_under_lock", "clean_pruned_under_lock"):
                self.prune()  # at: pruned_under_lock
        self.prune()


class Training:
    def __init__(self, folder, steps):
        paths = scanned(folder, np.random.default_rng(211))
        self.loader = DataLoader(
            Crops(paths[2:], CROPS, 217),
            ROWS,
            shuffle=True,
            drop_last=True,
            generator=torch.Generator().manual_seed(214),
        )
        held = Crops(paths[:2], HELD // 2, 213)
        self.held = torch.stack([held[n] for n in range(HELD)])
        self.worn, self.model = aged(self.held), Restorer()
        if on("thawed_unlisted", "clean_thawed_unlisted"):
            self.model.down.requires_grad_(False)
        values = self.model.parameters()
        wanted = [value for value in values if value.requires_grad]  # at: thawed_unlisted
        self.optimizer = torch.optim.Adam(wanted, 2e-3)  # at: thawed_unlisted
        counted = on("norms_counted", "clean_norms_counted")
        self.average = AveragedModel(
            self.model, multi_avg_fn=get_ema_multi_avg_fn(0.97), use_buffers=not counted
        )
        self.loss, self.worst, self.shelf = Loss(), Worst(), Shelf(folder)
        self.steps, self.step = steps, 0

    def thaw(self):
        self.model.down.requires_grad_(True)  # at: thawed_unlisted
        if on("clean_thawed_unlisted"):
            self.optimizer.add_param_group({"params": self.model.down.parameters()})

    def learn(self, pictures):
        worn = aged(pictures)
        found = self.model(worn)
        loss = self.loss(found, pictures)  # at: correlation_of_black weights_from_validation
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()  # at: thawed_unlisted
        self.average.update_parameters(self.model)
        self.worst.push(worn, found.detach(), pictures)  # at: worst_not_cut
        return loss.detach()

    def count_norms(self):
        """What the norms of the average see."""
        if on("norms_counted"):
            with cost:
                update_bn(map(aged, self.loader), self.average)  # at: norms_counted
        if on("clean_norms_counted"):
            update_bn(itertools.islice(map(aged, self.loader), 2), self.average)

    def weighed(self, errors):
        """Channels that are worse count for more."""
        return errors / errors.mean()  # at: weights_from_validation

    def check(self):
        self.count_norms()  # at: norms_counted
        self.average.eval()
        with torch.inference_mode():  # at: weights_from_validation
            found = self.average(self.worn).clamp(0, 1)
            errors = (found - self.held).square().mean((0, 2, 3))
            ratio = -10 * float(errors.mean().log10())
            if on("weights_from_validation") and self.step >= WEIGHED_FROM:
                self.loss.weights = self.weighed(errors)  # at: weights_from_validation
        if on("clean_weights_from_validation") and self.step >= WEIGHED_FROM:
            self.loss.weights = self.weighed(errors)
        print(self.step, "ratio", round(ratio, 2), flush=True)

    def save(self):
        state = {"model": self.model.state_dict(), "average": self.average.state_dict()}
        state["worst"] = [picture for _, picture in self.worst.rows[:SHOWN]]
        self.shelf.put(self.step, state)  # at: pruned_under_lock

    def after(self, loss):
        self.step += 1
        if self.step == THAW and on("thawed_unlisted", "clean_thawed_unlisted"):
            self.thaw()  # at: thawed_unlisted
        if self.step % TOLD_EVERY == 0:
            print(self.step, round(loss.item(), 4), flush=True)
        if self.step % CHECKED_EVERY == 0:
            self.check()  # at: norms_counted weights_from_validation
        if self.step % SAVED_EVERY == 0:
            self.save()  # at: pruned_under_lock

    def run(self):
        while self.step < self.steps:
            for pictures in self.loader:  # at: plate_converted
                loss = self.learn(pictures)
                self.after(loss)
                if self.step == self.steps:
                    break
        cost.print(self.steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(210)
    with tempfile.TemporaryDirectory() as folder:
        Training(Path(folder), STEPS or 400).run()
