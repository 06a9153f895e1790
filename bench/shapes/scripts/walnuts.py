"""Walnuts in a CT scanner, parted into air, shell, kernel and the tunnels of grubs: crops of
volumes over two workers, turned at access, a small 3D U-Net, an average of weights, a curriculum
that turns away from the tunnels, windows slid over a whole walnut: margins by each pair, crops
cached by corner, a weight of absent tissue, a power of a spent budget, a shadow still in training,
islands filled each step, windows that step by four.
"""

import copy
import itertools
from dataclasses import dataclass

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

AIR, SHELL, KERNEL, TUNNEL = range(4)
KEPT, THINNED = 24, 4
TISSUES = ("air", "shell", "kernel", "tunnel")
AROUND = ((-1, 0, 0), (1, 0, 0), (0, -1, 0), (0, 1, 0), (0, 0, -1), (0, 0, 1))


@dataclass(frozen=True)
class Settings:
    steps: int = STEPS or 250
    walnuts: int = 10
    side: int = 56
    held_side: int = 48
    crop: int = 24
    margin: int = 8
    batch: int = 2
    crops_per_epoch: int = 120
    workers: int = 2
    rate: float = 3e-3
    lowest: float = 1e-6
    clip: float = 3.0
    decay: float = 0.97
    told_every: int = 25
    judged_every: int = 50
    seed: int = 53

    @property
    def epoch(self):
        return self.crops_per_epoch // self.batch


class Walnut:
    """A scan and what each voxel of it is."""

    def __init__(self, side, dice, grub):
        grid = np.stack(np.mgrid[:side, :side, :side], -1) - (side - 1) / 2
        axes = side * dice.uniform(0.38, 0.46, 3)
        far = np.sqrt(((grid / axes) ** 2).sum(-1))
        wrinkled = far + 0.04 * np.sin(np.arctan2(grid[..., 1], grid[..., 0]) * 9)
        self.labels = np.full((side,) * 3, AIR, np.int64)
        self.labels[(far > 0.87) & (far < 1)] = SHELL
        self.labels[(wrinkled < 0.72) & (np.abs(grid[..., 2]) > 1)] = KERNEL
        self.tunnel = None
        if grub:
            middle = dice.uniform(-0.2, 0.2, 3) * side
            self.tunnel = np.clip(middle + (side - 1) / 2, 0, side - 1)
            beside = np.linalg.norm(grid - middle, axis=-1)
            self.labels[(beside < 3.5) & (self.labels == KERNEL)] = TUNNEL
        dense = np.array([0.0, 1.0, 0.6, 0.15])[self.labels]
        noisy = dense + dice.normal(0, 0.15, dense.shape) + 0.05 * grid[..., 0] / side
        self.scan = noisy.astype(np.float32)


class Curriculum:
    """How often a crop is laid round a tunnel: always at first, seldom later; seen by workers."""

    def __init__(self, settings):
        self.settings = settings
        self.share = torch.ones(()).share_memory_()

    def step(self, done):
        gone = done / self.settings.steps
        self.share.fill_(min(1.0, max(0.3, 1.4 - 2 * gone)))


class Crops(Dataset):
    def __init__(self, settings, curriculum):
        dice = np.random.default_rng(settings.seed)
        self.settings, self.curriculum = settings, curriculum
        self.walnuts = [
            Walnut(settings.side, dice, number % 5 < 2) for number in range(settings.walnuts)
        ]
        self.bitten = [walnut for walnut in self.walnuts if walnut.tunnel is not None]
        self.ready, self.crops = {}, {}

    def __len__(self):
        return self.settings.crops_per_epoch

    def place(self):
        """Which walnut, and where in it the wide crop begins."""
        wide = self.settings.crop + self.settings.margin
        room = self.settings.side - wide
        if torch.rand(()) < self.curriculum.share:
            walnut = self.bitten[int(torch.randint(len(self.bitten), ()))]
            corner = walnut.tunnel - wide / 2 + torch.randint(-3, 4, (3,)).numpy()
            corner = np.clip(corner.round().astype(int), 0, room)
        else:
            walnut = self.walnuts[int(torch.randint(len(self.walnuts), ()))]
            corner = torch.randint(room + 1, (3,)).numpy()
        return walnut, tuple(corner.tolist())

    def scaled(self, walnut):
        low, high = np.percentile(walnut.scan, (1, 99))
        return (walnut.scan - low) / (high - low) - 0.5

    def wide(self, walnut, corner):
        """A crop with a margin to turn it in."""
        size = self.settings.crop + self.settings.margin
        cut = tuple(slice(begin, begin + size) for begin in corner)
        number = self.walnuts.index(walnut)
        if on("crops_cached_by_corner", "clean_crops_cached_by_corner"):
            if (number, corner) not in self.crops:
                crop = self.scaled_once(number)[cut].copy(), walnut.labels[cut].copy()
                self.crops[number, corner] = crop  # at: crops_cached_by_corner
                if on("clean_crops_cached_by_corner") and len(self.crops) > KEPT:
                    self.crops.pop(next(iter(self.crops)))
            return self.crops[number, corner]
        return self.scaled_once(number)[cut], walnut.labels[cut]

    def scaled_once(self, number):
        if number not in self.ready:
            self.ready[number] = self.scaled(self.walnuts[number])
        return self.ready[number]

    def turned(self, scan, labels):
        """Quarter turns and mirrors, then the crop itself from somewhere in the wide one."""
        size, margin = self.settings.crop, self.settings.margin
        axes = tuple(torch.randperm(3)[:2].tolist())
        turns = int(torch.randint(4, ()))
        mirrored = tuple((torch.rand(3) < 0.5).nonzero()[:, 0].tolist())
        begin = torch.randint(margin + 1, (3,)).tolist()
        cut = tuple(slice(first, first + size) for first in begin)
        scan, labels = (
            np.ascontiguousarray(np.flip(np.rot90(own, turns, axes), mirrored)[cut])
            for own in (scan, labels)
        )
        return scan, labels

    def __getitem__(self, _):
        scan, labels = self.turned(*self.wide(*self.place()))
        scan = scan * float(0.9 + 0.2 * torch.rand(())) + float(0.1 * torch.randn(()))
        return torch.from_numpy(scan).float()[None], torch.from_numpy(labels)


def margin_by_pairs(labels):
    """How far each voxel is from the next border between tissues."""
    border = torch.zeros_like(labels, dtype=torch.bool)
    for axis in range(3):
        size = labels.shape[axis] - 1
        differ = labels.narrow(axis, 1, size) != labels.narrow(axis, 0, size)
        border.narrow(axis, 0, size).logical_or_(differ)
    places = torch.ones_like(border).nonzero().float()
    border = border.nonzero()[::THINNED].float()
    far = [
        torch.cdist(part, border).amin(1)  # at: margins_by_each_pair
        for part in places.split(512)
    ]
    return torch.cat(far).view(labels.shape)


def margin_by_pooling(labels):
    """The same in whole voxels, up to two."""
    own = labels[None].float()
    far = torch.full(labels.shape, 2.0)
    for reach in (2, 1):
        size = 2 * reach + 1
        highest, lowest = F.max_pool3d(own, size, 1, reach), -F.max_pool3d(-own, size, 1, reach)
        far[(highest != lowest)[0]] = reach - 1
    return far


class Collate:
    """Stacks crops, and weighs voxels near borders more."""

    def __call__(self, rows):
        scans, labels = (torch.stack(own) for own in zip(*rows, strict=True))
        weights = torch.ones(labels.shape)
        if on("margins_by_each_pair"):
            far = torch.stack(
                [margin_by_pairs(own) for own in labels]  # at: margins_by_each_pair
            )
            weights = 1 + 2 * torch.exp(-far / 2)
        elif on("clean_margins_by_each_pair"):
            far = torch.stack([margin_by_pooling(own) for own in labels])
            weights = 1 + 2 * torch.exp(-far / 2)
        return scans, labels, weights


class Fold(nn.Sequential):
    def __init__(self, inner, outer):
        super().__init__(
            nn.Conv3d(inner, outer, 3, padding=1, bias=False),
            nn.BatchNorm3d(outer),
            nn.LeakyReLU(0.1),
        )


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first = Fold(1, width)
        self.down = nn.Sequential(nn.MaxPool3d(2), Fold(width, 2 * width))
        self.bottom = nn.Sequential(
            nn.MaxPool3d(2),
            Fold(2 * width, 4 * width),
            nn.Dropout3d(0.2),
            Fold(4 * width, 4 * width),
        )
        self.up = Fold(6 * width, 2 * width)
        self.last = nn.Sequential(Fold(3 * width, width), nn.Conv3d(width, len(TISSUES), 1))

    def forward(self, scans):
        fine = self.first(scans)
        middle = self.down(fine)
        coarse = F.interpolate(self.bottom(middle), scale_factor=2)
        coarse = self.up(torch.cat([coarse, middle], 1))
        return self.last(torch.cat([F.interpolate(coarse, scale_factor=2), fine], 1))


class Overlap(nn.Module):
    """Cross entropy and dice over the tissues of a batch."""

    def forward(self, logits, labels, weights):
        entropy = (F.cross_entropy(logits, labels, reduction="none") * weights).mean()
        likely = logits.softmax(1)
        truth = F.one_hot(labels, len(TISSUES)).movedim(-1, 1).float()
        both = (likely * truth).sum((0, 2, 3, 4))
        sizes = (likely + truth).sum((0, 2, 3, 4))
        if on("weight_of_absent_tissue", "clean_weight_of_absent_tissue"):
            rare = 1 / truth.sum((0, 2, 3, 4)).square()  # at: weight_of_absent_tissue
            if on("clean_weight_of_absent_tissue"):
                there = rare.isfinite()
                rare = torch.where(there, rare, rare[there].max())
            dice = 2 * (rare * both).sum() / (rare * sizes).sum()  # at: weight_of_absent_tissue
        else:
            dice = ((2 * both + 1) / (sizes + 1)).mean()
        return entropy + 1 - dice


class Shadow:
    """An average of the weights that is judged in place of them."""

    def __init__(self, model, decay):
        self.model = copy.deepcopy(model).requires_grad_(False)
        if not on("shadow_still_in_training", "clean_shadow_still_in_training"):
            self.model.eval()
        self.decay, self.updates = decay, 0

    @torch.no_grad()
    def follow(self, model):
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for own, other in zip(self.model.parameters(), model.parameters(), strict=True):
            own.lerp_(other, 1 - decay)
        for own, other in zip(self.model.buffers(), model.buffers(), strict=True):
            own.copy_(other)


class PowerRate:
    """A rate that falls by a power of what is left of the budget."""

    def __init__(self, optimizer, settings):
        self.optimizer, self.settings, self.done = optimizer, settings, 0
        self.budget = settings.steps
        if on("power_of_spent_budget"):
            epochs = settings.steps // settings.epoch
            self.budget = max(1, epochs) * settings.epoch  # at: power_of_spent_budget
        elif on("clean_power_of_spent_budget"):
            self.budget = -(-settings.steps // settings.epoch) * settings.epoch
        self.step()

    def step(self):
        left = 1 - self.done / self.budget
        rate = max(
            self.settings.lowest, self.settings.rate * left**0.9
        )  # at: power_of_spent_budget
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.done += 1


class SlidingWindows:
    """Scores of a whole scan from windows that overlap."""

    def __init__(self, crop, stride):
        self.crop, self.stride = crop, stride
        ramp = 1 - (torch.arange(crop) - (crop - 1) / 2).abs() / crop
        self.trust = ramp[:, None, None] * ramp[:, None] * ramp

    def begins(self, side):
        last = side - self.crop
        return sorted({*range(0, last, self.stride), last})

    def __call__(self, model, scan):
        scores = torch.zeros(len(TISSUES), *scan.shape)
        trusted = torch.zeros(scan.shape)
        corners = itertools.product(*(self.begins(side) for side in scan.shape))
        cuts = [tuple(slice(begin, begin + self.crop) for begin in corner) for corner in corners]
        for number in range(0, len(cuts), 2):
            pair = cuts[number : number + 2]
            for cut, own in zip(
                pair, model(torch.stack([scan[cut] for cut in pair])[:, None]), strict=True
            ):
                scores[(slice(None), *cut)] += own * self.trust
                trusted[cut] += self.trust
        return scores / trusted


def islands(inside):
    """Sizes of the connected parts of what is inside, largest first."""
    waiting = set(map(tuple, inside.nonzero().tolist()))
    sizes = []
    while waiting:
        front, size = [waiting.pop()], 1
        while front:
            z, y, x = front.pop()
            for up, back, right in AROUND:
                beside = z + up, y + back, x + right
                if beside in waiting:  # at: islands_filled_each_step
                    waiting.discard(beside)
                    front.append(beside)
                    size += 1
        sizes.append(size)
    return sorted(sizes, reverse=True)


class Engine:
    def __init__(self, settings):
        self.settings = settings
        self.curriculum = Curriculum(settings)
        self.loader = DataLoader(
            Crops(settings, self.curriculum),
            settings.batch,
            num_workers=settings.workers,
            persistent_workers=True,
            collate_fn=Collate(),
        )
        dice = np.random.default_rng(settings.seed + 1)
        walnut = Walnut(settings.held_side, dice, True)
        low, high = np.percentile(walnut.scan, (1, 99))
        self.held = torch.from_numpy((walnut.scan - low) / (high - low) - 0.5).float()
        self.truth = torch.from_numpy(walnut.labels)
        self.model = Net()
        self.shadow = Shadow(self.model, settings.decay)
        self.criterion = Overlap()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), settings.rate)
        self.rate = PowerRate(self.optimizer, settings)
        stride = settings.crop
        if on("windows_step_by_four"):
            stride = settings.crop // 6  # at: windows_step_by_four
        self.windows = SlidingWindows(settings.crop, stride)  # at: windows_step_by_four
        self.dense = SlidingWindows(settings.crop, settings.crop // 2)
        self.cost, self.islands, self.done = Cost(), [], 0

    def learn(self, scans, labels, weights):
        logits = self.model(scans)
        loss = self.criterion(logits, labels, weights)  # at: weight_of_absent_tissue
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        self.rate.step()  # at: power_of_spent_budget
        self.shadow.follow(self.model)
        self.done += 1
        self.curriculum.step(self.done)
        return loss.detach(), logits.detach()

    def note_islands(self, logits):
        """Into how many parts the kernels fall, of each crop."""
        now = self.done % self.settings.told_every == 0
        if on("islands_filled_each_step") or (on("clean_islands_filled_each_step") and now):
            with self.cost:
                kernels = logits.argmax(1) == KERNEL
                self.islands = [
                    len(islands(own))
                    for own in kernels  # at: islands_filled_each_step
                ]

    @torch.no_grad()
    def judge(self):
        """Dice of each tissue over a walnut that is held out."""
        if on("shadow_still_in_training"):
            self.model.eval()  # at: shadow_still_in_training
        else:
            self.shadow.model.eval()
        windows = self.windows
        if on("clean_windows_step_by_four") and self.done % (2 * self.settings.judged_every) == 0:
            windows = self.dense
        scores = windows(
            self.shadow.model, self.held
        )  # at: shadow_still_in_training windows_step_by_four
        if on("clean_shadow_still_in_training"):
            self.shadow.model.train()
        self.model.train()
        likely = F.one_hot(scores.argmax(0), len(TISSUES)).bool()
        truth = F.one_hot(self.truth, len(TISSUES)).bool()
        both, sizes = (likely & truth).sum((0, 1, 2)), likely.sum((0, 1, 2)) + truth.sum((0, 1, 2))
        return dict(zip(TISSUES, (2 * both / sizes.clamp(min=1)).tolist(), strict=True))

    def run(self):
        self.model.train()
        while self.done < self.settings.steps:
            for batch in self.loader:  # at: margins_by_each_pair
                loss, logits = self.learn(*batch)
                self.note_islands(logits)  # at: islands_filled_each_step
                if self.done % self.settings.told_every == 0:
                    rate = self.optimizer.param_groups[0]["lr"]
                    print(f"{self.done} loss {loss:.4f} rate {rate:.1e}", *self.islands, flush=True)
                if self.done % self.settings.judged_every == 0:
                    dice = self.judge()  # at: shadow_still_in_training windows_step_by_four
                    told = " ".join(f"{name} {value:.3f}" for name, value in dice.items())
                    print(f"{self.done} held {told}", flush=True)
                if self.done == self.settings.steps:
                    break
        self.cost.print(self.settings.steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(53)
    Engine(Settings()).run()
