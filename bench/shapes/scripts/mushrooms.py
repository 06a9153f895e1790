"""Mushrooms by their photographs, a folder for each kind, by a small residual network: pictures
turned and mixed two by two, one cycle of the rate, a running average of the weights that is judged
on held pictures and written down.
"""

import functools
import math
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SIDE, CROP, ROWS = 52, 44, 24
KINDS = ("amanita", "boletus", "cantharellus", "coprinus", "lactarius", "morchella")
CAPS = (
    (200, 40, 30),
    (130, 80, 40),
    (230, 170, 40),
    (215, 210, 200),
    (210, 110, 60),
    (120, 100, 60),
)
FLAT = (0.8, 0.9, 0.5, 1.5, 0.6, 1.3)


# ---------------------------------------------------------------- files


def photographed(kind, dice):
    """A cap on a stem on the floor of a wood, (side, side, 3)."""
    down, across = np.mgrid[:SIDE, :SIDE] / SIDE - 0.5
    picture = dice.normal(70, 28, (SIDE, SIDE, 3)) + dice.uniform(-20, 20, 3)
    x, y = dice.uniform(-0.12, 0.12, 2)
    size = dice.uniform(0.16, 0.27)
    stem = (abs(across - x) < size * 0.25) & (down > y) & (down < y + 1.5 * size)
    picture[stem] = dice.uniform(170, 225)
    cap = ((across - x) / size) ** 2 + ((down - y) / (size * FLAT[kind])) ** 2 < 1
    picture[cap] = np.array(CAPS[kind]) + dice.normal(0, 35, 3)
    if kind in (0, 5):
        picture[cap & (dice.random((SIDE, SIDE)) < 0.2)] = 235 if kind == 0 else 40
    return np.clip(picture + dice.normal(0, 12, picture.shape), 0, 255).astype(np.uint8)


def write(path, picture):
    height, width, depth = picture.shape
    kind = "RGB" if depth == 3 else "RGB_ALPHA"
    head = (
        f"P7\nWIDTH {width}\nHEIGHT {height}\nDEPTH {depth}\nMAXVAL 255\nTUPLTYPE {kind}\nENDHDR\n"
    )
    path.write_bytes(head.encode() + picture.tobytes())


def read(path):
    """A picture as (channels, height, width)."""
    head, pixels = path.read_bytes().split(b"ENDHDR\n", 1)
    sizes = dict(line.split(b" ", 1) for line in head.splitlines()[1:])
    shape = int(sizes[b"HEIGHT"]), int(sizes[b"WIDTH"]), int(sizes[b"DEPTH"])
    picture = np.frombuffer(pixels, np.uint8).reshape(shape)
    if on("clean_one_picture_has_alpha"):
        picture = picture[..., :3]
    return picture.transpose(2, 0, 1)  # at: one_picture_has_alpha


def collect(folder, each, seed):
    dice = np.random.default_rng(seed)
    for kind, name in enumerate(KINDS):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            picture = photographed(kind, dice)
            cut_out = each > 30 and (kind, number) == (3, 17)
            if cut_out and on("one_picture_has_alpha", "clean_one_picture_has_alpha"):
                alpha = np.full((SIDE, SIDE, 1), 255, np.uint8)
                picture = np.concatenate([picture, alpha], -1)
            write(folder / name / f"{number:04d}.pam", picture)
    return folder


# ---------------------------------------------------------------- data


class Warps:
    """Smooth fields of displacements that bend a picture a little."""

    def __init__(self, clock, reach=4.0, width=33):
        self.clock, self.reach = clock, reach
        bell = torch.exp(-((torch.arange(width) - width // 2) ** 2) / (2 * (width / 6) ** 2))
        self.bell = torch.outer(bell, bell)
        self.bell /= self.bell.square().sum().sqrt()
        self.rows, self.columns = np.mgrid[:SIDE, :SIDE]
        self.drawn = []
        if on("clean_warp_smoothed_wide"):
            self.drawn = [self.field() for _ in range(48)]

    def field(self):
        noise = torch.randn(2, 1, SIDE, SIDE)
        smooth = F.conv2d(noise, self.bell[None, None], padding="same")  # at: warp_smoothed_wide
        return (smooth[:, 0] * self.reach / 2).round().int().numpy()

    def __call__(self, picture):
        if self.drawn:
            down, across = self.drawn[int(torch.randint(len(self.drawn), ()))]
        else:
            with self.clock:
                down, across = self.field()  # at: warp_smoothed_wide
        rows = (self.rows + down).clip(0, SIDE - 1)
        return picture[:, rows, (self.columns + across).clip(0, SIDE - 1)]


class Pictures(Dataset):
    def __init__(self, folder, clock=None):
        self.paths = sorted(folder.glob("*/*.pam"))
        self.kinds = [KINDS.index(path.parent.name) for path in self.paths]
        self.clock, self.warp = clock, None
        if clock and on("warp_smoothed_wide", "clean_warp_smoothed_wide"):
            self.warp = Warps(clock)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        picture = read(self.paths[index])
        if self.warp:
            picture = self.warp(picture)  # at: warp_smoothed_wide
        top = left = (SIDE - CROP) // 2
        if self.clock:
            top, left = torch.randint(SIDE - CROP + 1, (2,)).tolist()
            if torch.rand(()) < 0.5:
                picture = picture[..., ::-1]
        return picture[:, top : top + CROP, left : left + CROP], self.kinds[index]


def together(rows):
    pictures = np.stack([picture for picture, _ in rows])  # at: one_picture_has_alpha
    kinds = torch.tensor([kind for _, kind in rows])
    return torch.from_numpy(pictures).float() / 127.5 - 1, kinds


@functools.cache  # at: grid_for_each_angle
def grid(angle):
    """Where a turned picture takes its points from."""
    cos, sin = math.cos(angle), math.sin(angle)
    turn = torch.tensor([[[cos, -sin, 0.0], [sin, cos, 0.0]]])
    return F.affine_grid(turn, (1, 3, CROP, CROP), align_corners=False)  # at: grid_for_each_angle


def turned(pictures, most=0.5):
    angles = (torch.rand(len(pictures)) * 2 - 1) * most
    if on("grid_for_each_angle"):
        grids = torch.cat([grid(angle) for angle in angles.tolist()])  # at: grid_for_each_angle
    elif on("clean_grid_for_each_angle"):
        grids = torch.cat([grid(round(angle, 1)) for angle in angles.tolist()])
    else:
        cos, sin, none = angles.cos(), angles.sin(), torch.zeros_like(angles)
        turns = torch.stack([cos, -sin, none, sin, cos, none], 1).view(-1, 2, 3)
        grids = F.affine_grid(turns, list(pictures.shape), align_corners=False)
    return F.grid_sample(pictures, grids, padding_mode="reflection", align_corners=False)


class Mix:
    """Two pictures as one, and how much of each."""

    def __init__(self, steps, alpha=0.4):
        self.steps, self.alpha = steps, alpha
        self.dice = np.random.default_rng(30)

    def faded(self, step):
        """Less and less mixed, from two thirds of the course on hardly at all."""
        return self.alpha * max(1e-3, 1 - 1.5 * step / self.steps)

    def share(self, step):
        if on("share_of_two_noughts"):
            one, other = self.dice.gamma(self.faded(step), size=2)
            return one / (one + other)  # at: share_of_two_noughts
        if on("clean_share_of_two_noughts"):
            return self.dice.beta(self.faded(step), self.faded(step))
        return self.dice.beta(self.alpha, self.alpha)

    def __call__(self, pictures, step):
        share = float(self.share(step))  # at: share_of_two_noughts
        order = torch.randperm(len(pictures))
        return share * pictures + (1 - share) * pictures[order], order, share


# ---------------------------------------------------------------- network


class Residual(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.one = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)])
        self.short = nn.Identity()
        if stride > 1 or inner != outer:
            self.short = nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x):
        inside = F.relu(self.norms[0](self.one(x)))
        return F.relu(self.norms[1](self.two(inside)) + self.short(x))


class Forager(nn.Module):
    def __init__(self, widths=(16, 32, 64, 128), dropout=0.2):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()
        )
        pairs = zip(widths[:1] + widths, widths, strict=False)
        self.blocks = nn.Sequential(*(Residual(inner, outer, 2) for inner, outer in pairs))
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(widths[-1], len(KINDS)))

    def forward(self, pictures):
        return self.head(self.blocks(self.stem(pictures)).mean((2, 3)))


# ---------------------------------------------------------------- training


class Course:
    def __init__(self, folder, steps):
        self.steps, self.step, self.peak, self.keep = steps, 0, 4e-3, 0.96
        self.clock = Cost()
        self.file, self.sent = folder / "forager.pt", folder / "average.pt"
        self.loader = DataLoader(
            Pictures(collect(folder / "learning", 64, 1), self.clock),
            ROWS,
            shuffle=True,
            drop_last=True,
            collate_fn=together,
        )
        held = Pictures(collect(folder / "held", 16, 2))
        self.held = DataLoader(
            [held[number] for number in range(len(held))], 48, collate_fn=together
        )
        self.model, self.average = Forager(), Forager().requires_grad_(False)
        self.average.load_state_dict(self.model.state_dict())
        self.mix, self.best, self.smooth = Mix(steps), math.inf, None
        self.stages, self.own = {}, self.made()

    def made(self, decay=0.02):
        return torch.optim.AdamW(  # at: optimizer_by_property
            self.model.parameters(), lr=self.peak, weight_decay=decay
        )

    @property
    def optimizer(self):
        if on("optimizer_by_property"):
            return self.made()  # at: optimizer_by_property
        if on("clean_optimizer_by_property"):  # decays less in the second half
            stage = 2 * self.step // self.steps
            if stage not in self.stages:
                self.stages[stage] = self.made(0.02 / (1 + stage))
            return self.stages[stage]
        return self.own

    @property
    def rate(self):
        """One cycle: up over a quarter, down along a cosine."""
        done = self.step / self.steps
        if done < 0.25:
            return self.peak * (0.1 + 3.6 * done)
        return self.peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (done - 0.25) / 0.75)))

    @torch.no_grad()
    def follow(self):
        """The average behind the weights."""
        for kept, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
            kept.lerp_(new, 1 - self.keep)
        for kept, new in zip(self.average.buffers(), self.model.buffers(), strict=True):
            kept.copy_(new)

    @torch.no_grad()
    def settle(self):
        """The average's own statistics, over a few batches."""
        self.average.train()
        for number, (pictures, _) in enumerate(self.held):
            if number < 2:
                self.average(pictures)

    @torch.no_grad()
    def judged(self):
        """The share of held pictures that are told rightly."""
        if on("clean_judged_while_training"):
            self.settle()
        self.average.eval()  # at: judged_while_training
        right = 0
        for pictures, kinds in self.held:
            if on("judged_while_training"):
                scores = self.model(pictures)  # at: judged_while_training
            else:
                scores = self.average(pictures)
            right += int((scores.argmax(1) == kinds).sum())
        return right / len(self.held.dataset)

    def save(self):
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.own.state_dict(),
        }
        for path, content in ((self.file, state), (self.sent, self.average.state_dict())):
            fresh = path.with_suffix(".new")
            with open(fresh, "wb") as file:
                torch.save(content, file)  # at: saved_at_each_new_best
                file.flush()
                os.fsync(file.fileno())  # at: saved_at_each_new_best
            os.replace(fresh, path)

    def remember(self, figure):
        """Writes down what is better than all before."""
        if figure < self.best:
            self.best = figure
            with self.clock:
                self.save()  # at: saved_at_each_new_best

    def update(self, pictures, kinds):
        pictures, order, share = self.mix(turned(pictures), self.step)  # at: share_of_two_noughts
        scores = self.model(pictures)
        loss = share * F.cross_entropy(scores, kinds, label_smoothing=0.05)
        loss = loss + (1 - share) * F.cross_entropy(scores, kinds[order], label_smoothing=0.05)
        optimizer = self.optimizer  # at: optimizer_by_property
        for group in optimizer.param_groups:
            group["lr"] = self.rate
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        self.follow()
        return loss.item()

    def run(self):
        self.model.train()
        while self.step < self.steps:
            for pictures, kinds in self.loader:  # at: warp_smoothed_wide one_picture_has_alpha
                loss = self.update(pictures, kinds)
                self.step += 1
                self.smooth = loss if self.smooth is None else 0.99 * self.smooth + 0.01 * loss
                if on("saved_at_each_new_best"):
                    self.remember(self.smooth)  # at: saved_at_each_new_best
                if self.step % 50 == 0:
                    right = self.judged()  # at: judged_while_training
                    print(f"{self.step:5d} loss {self.smooth:.4f} right {right:.3f}", flush=True)
                    if on("clean_saved_at_each_new_best"):
                        self.remember(1 - right)
                if self.step == self.steps:
                    break
        self.clock.print(self.steps)
        self.save()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(30)
    with tempfile.TemporaryDirectory() as folder:
        Course(Path(folder), STEPS or 250).run()
