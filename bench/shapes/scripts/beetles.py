"""Beetles by species: a small vision transformer on drawings of beetles, trained in bfloat16 by the
loop of a research repository, with pictures mixed two by two, weights averaged along the way, and
the five likeliest species told at each look.
"""

import colorsys
import copy
import math
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from shape import STEPS, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler


@dataclass
class Config:
    steps: int = STEPS or 250
    batch: int = 32
    workers: int = 1
    repeats: int = 2
    species: int = 12
    drawn: int = 32
    size: int = 24
    late_size: int = 32
    grows_at: float = 0.6
    patch: int = 4
    width: int = 64
    depth: int = 2
    heads: int = 4
    rate: float = 1e-3
    decay: float = 0.05
    warm: int = 20
    clip: float = 2.0
    smoothing: float = 0.1
    mixed: float = 0.5
    spread: float = 0.05
    average: float = 0.98
    look_every: int = 100
    rough_every: int = 50
    save_every: int = 120
    tell_every: int = 25
    seed: int = 35
    resume: str = ""
    betas: tuple = field(default=(0.9, 0.98))


def draw(species, size, dice):
    """A beetle from above: two wing cases, a head, and the marks of its species."""
    traits = np.random.default_rng(species + 400)
    body, ground = traits.uniform(0.2, 0.9, 3), dice.uniform(0.5, 0.9, 3)
    long, wide = traits.uniform(0.55, 0.85), traits.uniform(0.35, 0.6)
    bands, spots = traits.integers(1, 6), traits.integers(0, 2)
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    turn = dice.normal(0, 0.25)
    x, y = x * np.cos(turn) - y * np.sin(turn), x * np.sin(turn) + y * np.cos(turn)
    inside = (x / wide) ** 2 + (y / long) ** 2 < 1
    marks = np.sin(bands * np.pi * (y if spots else x)) * np.cos(3 * x) > 0.3
    picture = np.broadcast_to(ground, (size, size, 3)).copy()
    picture[inside] = body
    picture[inside & marks] = 1 - body
    picture[(np.abs(x) < 0.04) & inside] *= 0.4
    picture[(x / 0.22) ** 2 + ((y + long) / 0.2) ** 2 < 1] = body * 0.5
    picture += dice.normal(0, 0.05, picture.shape)
    return (picture.clip(0, 1) * 255).astype(np.uint8)


def turn_hue(picture, turn):
    """The same colours elsewhere on the wheel."""
    if on("hue_by_colorsys"):
        turned = np.empty_like(picture)
        for row, line in enumerate(picture / 255.0):
            for column, (red, green, blue) in enumerate(line):
                hue, grey, value = colorsys.rgb_to_hsv(red, green, blue)  # at: hue_by_colorsys
                colour = colorsys.hsv_to_rgb((hue + turn) % 1, grey, value)  # at: hue_by_colorsys
                turned[row, column] = [round(part * 255) for part in colour]  # at: hue_by_colorsys
        return turned
    angle = 2 * math.pi * turn
    along = np.full((3, 3), (1 - math.cos(angle)) / 3)
    across = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) * math.sin(angle) / math.sqrt(3)
    wheel = (along + across + np.eye(3) * math.cos(angle)).astype(np.float32)
    return (picture @ wheel.T).clip(0, 255).astype(np.uint8)


class Beetles(Dataset):
    """Drawings and their species; a few come from the museum and are shown as they are."""

    def __init__(self, cfg, count, seed, train):
        dice = np.random.default_rng((cfg.seed, seed))
        self.labels = dice.integers(cfg.species, size=count)
        self.pictures = np.stack([draw(own, cfg.drawn, dice) for own in self.labels])
        self.museum = dice.random(count) < 0.02
        self.train, self.size = train, cfg.size

    def __len__(self):
        return len(self.labels)

    def augment(self, picture, dice):
        corner, side = dice.integers(0, 5, 2), dice.integers(25, 28)
        picture = picture[corner[0] : corner[0] + side, corner[1] : corner[1] + side]
        if dice.random() < 0.5:
            picture = picture[:, ::-1]
        picture = (picture * dice.uniform(0.8, 1.2)).clip(0, 255).astype(np.uint8)
        if on("hue_by_colorsys", "clean_hue_by_colorsys") and dice.random() < 0.5:
            picture = turn_hue(picture, dice.uniform(-0.08, 0.08))  # at: hue_by_colorsys
        return picture

    def __getitem__(self, index):
        picture = self.pictures[index]
        if self.train and not self.museum[index]:
            dice = np.random.default_rng(torch.randint(2**31, ()).item())
            picture = self.augment(picture, dice)  # at: hue_by_colorsys
        places = np.arange(self.size) * len(picture) // self.size
        picture = picture[places][:, places].transpose(2, 0, 1)
        return torch.from_numpy(picture.copy()), int(self.labels[index])


class Repeated(Sampler):
    """Each picture several times in one batch, augmented anew each time."""

    def __init__(self, count, repeats):
        self.count, self.repeats = count, repeats

    def __iter__(self):
        for index in torch.randperm(self.count).tolist():
            yield from [index] * self.repeats

    def __len__(self):
        return self.count * self.repeats


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width)
        )

    def forward(self, x):
        rows, size, _ = x.shape
        q, k, v = (
            self.qkv(self.before(x)).view(rows, size, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        seen = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, size, -1))
        return x + self.mlp(self.between(x))


class ViT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.side = cfg.size // cfg.patch
        self.patches = nn.Conv2d(3, cfg.width, cfg.patch, cfg.patch)
        self.token = nn.Parameter(torch.randn(1, 1, cfg.width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, self.side**2, cfg.width) * 0.02)
        self.blocks = nn.ModuleList(Block(cfg.width, cfg.heads) for _ in range(cfg.depth))
        self.norm, self.head = nn.LayerNorm(cfg.width), nn.Linear(cfg.width, cfg.species)

    def laid_out(self, side):
        """The places of another number of patches, from those that were learnt."""
        grid = self.places.view(1, self.side, self.side, -1).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, (side, side), mode="bilinear", align_corners=False)
        return grid.flatten(2).transpose(1, 2)

    def forward(self, pictures):
        x = self.patches(pictures)
        side = x.shape[-1]
        x = x.flatten(2).transpose(1, 2)
        places = self.places
        if side != self.side and not on("places_of_smaller_grid"):
            places = self.laid_out(side)
        x = x + places  # at: places_of_smaller_grid
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        feature = self.norm(x[:, 0])
        return self.head(feature), feature


def sincos(count, width):
    angles = torch.arange(count)[:, None] / 50 ** (torch.arange(width // 2) / (width // 2))
    return torch.cat([angles.sin(), angles.cos()], 1)[None]


class Journal:
    """What is told of a step is gathered, and put away when the step is committed."""

    def __init__(self, folder):
        self.folder, self.open = folder, []

    def log(self, values, commit=True):
        self.open.append(values)  # at: pictures_logged_uncommitted
        if commit:
            self.commit()

    def commit(self):
        if not self.open:
            return
        last = self.open[-1]
        np.save(self.folder / f"sheet{last['step']}.npy", last["pictures"][:8])
        with (self.folder / "journal.csv").open("a") as lines:
            lines.writelines(f"{one['step']},{one['loss']:.5f}\n" for one in self.open)
        self.open.clear()


def topk(scores, labels, ks=(1, 5)):
    found = scores.topk(max(ks), 1).indices == labels[:, None]
    return [found[:, :k].any(1).float().mean().item() for k in ks]


def roughened(pictures, kind, degree):
    """Pictures as a bad camera would take them."""
    if kind == "noise":
        return pictures + 0.3 * degree * torch.randn_like(pictures)
    if kind == "blur":
        return F.avg_pool2d(pictures, 2 * degree + 1, 1, degree, count_include_pad=False)
    if kind == "contrast":
        mean = pictures.mean((1, 2, 3), keepdim=True)
        return mean + (pictures - mean) / (1 + degree)
    if kind == "fog":
        return pictures * (1 - 0.2 * degree) + 0.3 * degree
    small = F.interpolate(pictures, scale_factor=1 / (1 + degree), mode="area")
    return F.interpolate(small, pictures.shape[-2:], mode="nearest")


ROUGH = [
    (kind, degree)
    for kind in ("noise", "blur", "contrast", "fog", "pixels")
    for degree in (1, 2, 3)
]


class Trainer:
    def __init__(self, cfg, folder):
        self.cfg, self.folder, self.step = cfg, folder, 0
        torch.manual_seed(cfg.seed)
        self.train_set = Beetles(cfg, 900, 1, train=True)
        self.loader = self.make_loader()
        held = Beetles(cfg, 128, 2, train=False)
        self.held = self.prepared(*next(iter(DataLoader(held, 128))))
        self.model = ViT(cfg)
        if on("clean_parts_of_other_ndim"):
            self.model.places = nn.Parameter(
                sincos(self.model.side**2, cfg.width), requires_grad=False
            )
        self.shadow = copy.deepcopy(self.model).requires_grad_(False).eval()
        self.optimizer = torch.optim.AdamW(
            self.groups(), cfg.rate, betas=cfg.betas
        )  # at: parts_of_other_ndim
        self.journal, self.rough = Journal(folder), {}
        if cfg.resume:
            self.load(cfg.resume)

    def make_loader(self):
        cfg = self.cfg
        return DataLoader(
            self.train_set,
            cfg.batch,
            sampler=Repeated(len(self.train_set), cfg.repeats),
            num_workers=cfg.workers,
            persistent_workers=True,
            drop_last=True,
        )  # at: hue_by_colorsys

    def groups(self):
        """Matrices decay; gains and biases do not."""
        cfg = self.cfg
        if not on("parts_of_other_ndim", "clean_parts_of_other_ndim"):
            return [{"params": list(self.model.parameters()), "weight_decay": cfg.decay}]
        decayed, kept = [], []
        for name, one in self.model.named_parameters():
            if on("clean_parts_of_other_ndim"):
                if one.requires_grad:
                    (kept if one.ndim < 2 or name == "token" else decayed).append(one)
            elif one.ndim == 2:  # at: parts_of_other_ndim
                decayed.append(one)
            elif one.ndim == 1:  # at: parts_of_other_ndim
                kept.append(one)
        return [
            {"params": decayed, "weight_decay": cfg.decay},
            {"params": kept, "weight_decay": 0.0},
        ]  # at: parts_of_other_ndim

    def prepared(self, pictures, labels):
        pictures = pictures.float().div_(127.5).sub_(1)
        return pictures, F.one_hot(labels, self.cfg.species).float()

    def rate(self):
        cfg = self.cfg
        if self.step < cfg.warm:
            return cfg.rate * (self.step + 1) / cfg.warm
        gone = (self.step - cfg.warm) / max(1, cfg.steps - cfg.warm)
        return cfg.rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * gone)))

    def mix(self, pictures, targets):
        """Half of the batches: each picture with another one shining through."""
        if on("mixing_seeded_anew"):
            torch.manual_seed(self.cfg.seed)  # at: mixing_seeded_anew
        elif on("clean_mixing_seeded_anew"):
            torch.manual_seed(self.cfg.seed + self.step)
        if torch.rand(()) > self.cfg.mixed:
            return pictures, targets
        share = torch.distributions.Beta(0.4, 0.4).sample()
        other = torch.randperm(len(pictures))
        pictures = torch.lerp(pictures[other], pictures, share)
        return pictures, torch.lerp(targets[other], targets, share)

    def spread(self, features):
        """Keeps features apart: how near the nearest one of the batch is (KoLeo)."""
        features = F.normalize(features.float(), dim=1)
        with torch.no_grad():
            likeness = features @ features.T
            nearest = likeness.fill_diagonal_(-1).argmax(1)
        apart = (features - features[nearest]).norm(dim=1)
        if on("clean_spread_of_equal_pictures"):
            return -(apart + 1e-4).log().mean()
        return -apart.log().mean()  # at: spread_of_equal_pictures

    def learn(self, pictures, labels):
        cfg = self.cfg
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        clear, targets = self.prepared(pictures, labels)
        pictures, targets = self.mix(clear, targets)  # at: mixing_seeded_anew
        with torch.autocast("cpu", torch.bfloat16):
            scores, features = self.model(pictures)  # at: places_of_smaller_grid
        loss = F.cross_entropy(scores.float(), targets, label_smoothing=cfg.smoothing)
        if on("spread_of_equal_pictures", "clean_spread_of_equal_pictures"):
            loss = loss + cfg.spread * self.spread(features)  # at: spread_of_equal_pictures
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), cfg.clip)
        self.optimizer.step()
        self.follow()
        self.step += 1
        return loss.item(), clear, pictures

    @torch.no_grad()
    def follow(self):
        share = 1 - min(self.cfg.average, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(list(self.shadow.parameters()), list(self.model.parameters()), share)

    @torch.inference_mode()
    def look(self):
        pictures, targets = self.held
        with torch.autocast("cpu", torch.bfloat16):
            scores, _ = self.shadow(pictures)
        return topk(scores.float(), targets.argmax(1))

    @torch.inference_mode()
    def look_at_rough(self, cases):
        """How the averaged weights do on pictures of bad cameras."""
        pictures, targets = self.held
        for kind, degree in cases:
            with torch.autocast("cpu", torch.bfloat16):
                scores, _ = self.shadow(
                    roughened(pictures, kind, degree)
                )  # at: rough_pictures_often
            self.rough[kind, degree] = topk(scores.float(), targets.argmax(1))[0]
        return sum(self.rough.values()) / len(self.rough)

    def save(self):
        state = {
            "model": self.model.state_dict(),
            "shadow": self.shadow.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "config": asdict(self.cfg),
        }
        torch.save(state, self.folder / "last.pt")

    def load(self, path):
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.shadow.load_state_dict(state["shadow"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]

    def grow(self):
        """The rest of the training is on larger pictures."""
        self.train_set.size = self.cfg.late_size  # at: places_of_smaller_grid
        self.loader = self.make_loader()

    def batches(self):
        while True:
            for batch in self.loader:
                yield batch
                if self.grown != (self.train_set.size == self.cfg.late_size):
                    break
            if self.grown and self.train_set.size != self.cfg.late_size:
                self.grow()

    @property
    def grown(self):
        grows = on("places_of_smaller_grid", "clean_places_of_smaller_grid")
        return grows and self.step >= self.cfg.grows_at * self.cfg.steps

    def after(self, loss, clear, mixed):
        cfg = self.cfg
        if on("pictures_logged_uncommitted", "clean_pictures_logged_uncommitted"):
            values = {"step": self.step, "loss": loss}
            values |= {"pictures": clear.numpy(), "mixed": mixed.numpy()}
            commit = on("clean_pictures_logged_uncommitted") and self.step % cfg.tell_every == 0
            self.journal.log(values, commit=commit)  # at: pictures_logged_uncommitted
        if self.step % cfg.tell_every == 0:
            print(self.step, f"loss {loss:.3f} rate {self.rate():.1e}", flush=True)
        often = cfg.rough_every // 5
        if on("rough_pictures_often") and self.step % often == 0:  # at: rough_pictures_often
            rough = self.look_at_rough(ROUGH)  # at: rough_pictures_often
            print(self.step, f"rough {rough:.3f}", flush=True)
        if on("clean_rough_pictures_often") and self.step % cfg.rough_every == 0:
            turn = self.step // cfg.rough_every
            rough = self.look_at_rough([ROUGH[turn * 4 % len(ROUGH)]])
            print(self.step, f"rough {rough:.3f}", flush=True)
        if self.step % cfg.look_every == 0:
            first, five = self.look()
            print(self.step, f"top1 {first:.3f} top5 {five:.3f}", flush=True)
        if self.step % cfg.save_every == 0:
            self.save()

    def fit(self):
        batches, begun = self.batches(), time.perf_counter()
        while self.step < self.cfg.steps:
            pictures, labels = next(batches)  # at: hue_by_colorsys
            self.after(*self.learn(pictures, labels))
        took = (time.perf_counter() - begun) * 1000 / self.cfg.steps
        self.journal.commit()
        print(f"{took:.1f} ms a step", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(tempfile.mkdtemp(prefix="beetles"))
    try:
        Trainer(Config(), place).fit()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    sys.exit(0)
