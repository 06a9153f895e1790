"""Tiles of stained tissue and their nuclei, learned by a small vision transformer: one worker that
flips them and brings their dyes to those of a reference, warps and tones of whole batches, scores
of held-out slides, the best checkpoint: a reference that is fitted anew, a history of what was
applied, views turned round, seeds for pairs, a power of what is dark, parameters of no module, an
interval at every evaluation.
"""

import dataclasses
import tempfile
from functools import cached_property
from pathlib import Path

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

cost = Cost()
SIDE, PATCH, WIDTH, HEADS, DEPTH, KINDS = 48, 6, 96, 4, 2, 3
PLACES = (SIDE // PATCH) ** 2
ROWS, TOLD_EVERY, SCORED_EVERY, RESAMPLES, SEED = 16, 20, 40, 10000, 231
DYES = np.array([[0.65, 0.70, 0.29], [0.09, 0.95, 0.28]], np.float32)


def density(image):
    return -np.log((image.astype(np.float32) + 1) / 256)


def coloured(absorbed):
    return (256 * np.exp(-absorbed) - 1).clip(0, 255).astype(np.uint8)


def stained(dice, side, kind, cast):
    """A picture of tissue and where its nuclei are: few, many, or few that are long."""
    mask = np.zeros((side, side), np.uint8)
    y, x = np.mgrid[:side, :side].astype(np.float32)
    many = (5, 14, 5)[kind] * (side // SIDE) ** 2
    for _ in range(int(dice.integers(many - 2, many + 3))):
        (top, left), turn = dice.uniform(0, side, 2), dice.uniform(0, np.pi)
        along = (x - left) * np.cos(turn) + (y - top) * np.sin(turn)
        across = (y - top) * np.cos(turn) - (x - left) * np.sin(turn)
        wide = 5.5 if kind == 2 else 3.2
        mask |= ((along / wide) ** 2 + (across / 2.8) ** 2 < 1).astype(np.uint8)
    dyes = np.stack([0.12 + 0.85 * mask, 0.35 - 0.1 * mask], 2)
    dyes += dice.normal(0, 0.05, dyes.shape)
    return coloured(dyes.astype(np.float32) @ DYES * cast), mask


class Stain:
    """The axes along which a picture's dyes lie, and how far."""

    def __init__(self, picture):
        absorbed = density(picture).reshape(-1, 3)
        tissue = absorbed[absorbed.max(1) > 0.15]
        self.axes = np.linalg.eigh(np.cov(tissue.T))[1].astype(np.float32)
        self.axes *= np.sign(self.axes.sum(0))
        low, self.middle, high = np.percentile(tissue @ self.axes, (5, 50, 95), axis=0)
        self.reach = high - low

    def like(self, other):
        return np.abs(self.middle - other.middle).max() < 1e-3


@dataclasses.dataclass
class Slide:
    overview: np.ndarray

    @cached_property
    def stain(self):
        return Stain(self.overview)


@dataclasses.dataclass
class Tile:
    image: np.ndarray
    mask: np.ndarray
    kind: int
    slide: Slide
    applied: list = dataclasses.field(default_factory=list)


def archive(slides, tiles, seed):
    """Tiles of slides of several laboratories; the reference is the first slide."""
    dice, found, shown = np.random.default_rng(seed), [], []
    for n in range(slides):
        cast = dice.uniform(0.75, 1.3, 3).astype(np.float32)
        shown.append(Slide(stained(dice, 3 * SIDE, 1, cast)[0]))
        for _ in range(tiles if n else 3):
            kind = int(dice.integers(KINDS))
            found.append(Tile(*stained(dice, SIDE, kind, cast), kind, shown[n]))
    return found, shown[0]


class Tiles(Dataset):
    def __init__(self, tiles, target, training):
        self.tiles, self.target, self.training, self.dice = tiles, target, training, None
        self.known = None if on("clean_reference_fitted_each") else Stain(target.overview)

    def __len__(self):
        return len(self.tiles)

    def reference(self):
        if on("reference_fitted_each"):
            return Stain(self.target.overview)  # at: reference_fitted_each
        if self.known is None:
            self.known = Stain(self.target.overview)
        return self.known

    def remember(self, tile, name, values):
        """What was applied to a tile, so that a prediction can be traced back."""
        if on("history_of_tile"):
            tile.applied.append((name, values))  # at: history_of_tile
        elif on("clean_history_of_tile"):
            tile.applied = [(name, values)]
        else:
            tile.applied = [name]

    def normalised(self, image, tile):
        """The picture in the dyes of the reference, with some grain."""
        own, target = tile.slide.stain, self.reference()  # at: reference_fitted_each
        if own.like(target):
            return image
        along = density(image) @ own.axes
        along = (along - own.middle) / own.reach * target.reach + target.middle
        if self.training:
            grain = self.dice.normal(0, 0.03, along.shape).astype(np.float32)
            along += grain
            self.remember(tile, "grain", grain)  # at: history_of_tile
        return coloured(along @ target.axes.T)

    def __getitem__(self, index):
        if self.dice is None:
            self.dice = np.random.default_rng(torch.initial_seed() % 2**32)
        tile = self.tiles[index]
        image, mask = tile.image, tile.mask
        if self.training and self.dice.random() < 0.5:
            image, mask = image[:, ::-1], mask[:, ::-1]  # at: flipped_view
        image = self.normalised(image, tile)
        if on("clean_flipped_view"):
            image = image.copy()
        elif not on("flipped_view"):
            image = np.ascontiguousarray(image)
        pixels = torch.from_numpy(image)  # at: flipped_view
        return pixels, torch.from_numpy(np.ascontiguousarray(mask)), tile.kind


class Pipeline:
    """Warps and tones of a whole batch."""

    def draw(self, rows):
        turn = (torch.rand(rows) - 0.5) * 0.8
        size = 1 + (torch.rand(rows) - 0.5) * 0.3
        shift = (torch.rand(rows, 2) - 0.5) * 0.2
        cos, sin = turn.cos() * size, turn.sin() * size
        return torch.stack([cos, -sin, shift[:, 0], sin, cos, shift[:, 1]], 1).view(rows, 2, 3)

    def warp(self, x, moves):
        grid = F.affine_grid(moves, list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)

    def pair(self, images, masks):
        """Pictures and masks are moved alike."""
        rows = len(images)
        if on("seeded_for_pairs"):
            torch.manual_seed(SEED)  # at: seeded_for_pairs
            images = self.warp(images, self.draw(rows))
            torch.manual_seed(SEED)  # at: seeded_for_pairs
            return images, self.warp(masks, self.draw(rows))
        if on("clean_seeded_for_pairs"):
            state = torch.get_rng_state()
            images = self.warp(images, self.draw(rows))
            torch.set_rng_state(state)
            return images, self.warp(masks, self.draw(rows))
        moves = self.draw(rows)
        return self.warp(images, moves), self.warp(masks, moves)

    def tone(self, images):
        rows = len(images)
        bright = torch.randn(rows, 1, 1, 1) * 0.082
        gamma = torch.exp(torch.randn(rows, 1, 1, 1) * 0.15)
        images = images + bright
        if on("power_of_dark"):
            return images.pow(gamma).clamp(0, 1)  # at: power_of_dark
        if on("clean_power_of_dark"):
            return (images.sign() * images.abs().pow(gamma)).clamp(0, 1)
        return images.clamp(0, 1).pow(gamma)

    def __call__(self, images, masks):
        images, masks = self.pair(images, masks)  # at: seeded_for_pairs
        return self.tone(images), masks  # at: power_of_dark


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.three, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(
            nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(3 * WIDTH, WIDTH)
        )

    def forward(self, x):
        parts = self.three(self.before(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*parts)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.wide(self.between(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Linear(3 * PATCH * PATCH, WIDTH)
        self.whole = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02)
        self.places = nn.Parameter(torch.randn(1, PLACES + 1, WIDTH) * 0.02)
        if on("clean_raw_ungrouped"):
            self.places.requires_grad_(False)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.last = nn.LayerNorm(WIDTH)
        self.kind, self.nuclei = nn.Linear(WIDTH, KINDS), nn.Linear(WIDTH, 1)

    def forward(self, images):
        x = self.patches(F.unfold(images - 0.6, PATCH, stride=PATCH).transpose(1, 2))
        x = torch.cat([self.whole.expand(len(x), -1, -1), x], 1) + self.places
        x = self.last(self.blocks(x))
        return self.kind(x[:, 0]), self.nuclei(x[:, 1:]).squeeze(2)


def grouped(model):
    """Weights of matrices decay; biases, norms and what is added to the tokens do not."""
    if on("raw_ungrouped", "clean_raw_ungrouped"):
        wide, slim = [], []
        for part in model.modules():
            if isinstance(part, nn.Linear):
                wide.append(part.weight)
                slim.append(part.bias)
            elif isinstance(part, nn.LayerNorm):  # at: raw_ungrouped
                slim += [part.weight, part.bias]
        if on("clean_raw_ungrouped"):
            slim.append(model.whole)
    else:
        wide = [value for value in model.parameters() if value.ndim == 2]
        slim = [value for value in model.parameters() if value.ndim != 2]
    return [{"params": wide, "weight_decay": 0.05}, {"params": slim, "weight_decay": 0.0}]


def prepared(images, masks):
    images = images.permute(0, 3, 1, 2).float().div(255)
    return images, masks[:, None].float()


def area(scores, kinds):
    """Area under the curve, the mean of each kind against the rest."""
    areas = []
    for kind in range(KINDS):
        right = kinds == kind
        places = scores[:, kind].argsort().argsort()
        ones = max(right.sum(), 1)
        lower = places[right].sum() - ones * (ones - 1) / 2
        areas.append(lower / (ones * max(len(kinds) - ones, 1)))
    return np.mean(areas)


class Training:
    def __init__(self, folder, steps):
        self.folder, self.steps, self.step, self.best = folder, steps, 0, 0.0
        tiles, target = archive(25, 40, SEED)
        held, _ = archive(5, 24, SEED + 1)
        self.loader = DataLoader(
            Tiles(tiles, target, True),  # at: reference_fitted_each
            ROWS,
            shuffle=True,
            drop_last=True,
            num_workers=1,
            persistent_workers=True,
        )
        self.held = DataLoader(Tiles(held, target, False), 33)
        self.pipeline, self.model = Pipeline(), Transformer()
        self.optimizer = torch.optim.AdamW(grouped(self.model), 1e-3)  # at: raw_ungrouped
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, [1e-3, 1e-3], total_steps=steps, pct_start=0.2
        )
        self.dice = np.random.default_rng(SEED + 2)

    def interval(self, scores, kinds, resamples):
        """Where the area lies in 95 of 100 draws of the held-out tiles."""
        with cost:
            areas = []
            for _ in range(resamples):
                rows = self.dice.integers(len(kinds), size=len(kinds))
                areas.append(area(scores[rows], kinds[rows]))  # at: interval_each_time
            return np.percentile(areas, (2.5, 97.5)).round(3).tolist()

    @torch.inference_mode()
    def score(self):
        self.model.eval()
        scores, truth = [], []
        for images, masks, kinds in self.held:
            scores.append(self.model(prepared(images, masks)[0])[0].softmax(1))
            truth.append(kinds)
        self.model.train()
        scores, truth = torch.cat(scores).numpy(), torch.cat(truth).numpy()
        print(self.step, "area", round(float(area(scores, truth)), 3), flush=True)
        if on("interval_each_time"):
            print(self.interval(scores, truth, RESAMPLES))  # at: interval_each_time
        elif on("clean_interval_each_time") and self.step + SCORED_EVERY > self.steps:
            print(self.interval(scores, truth, RESAMPLES // 10))
        return float(area(scores, truth))

    def save(self):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state | {"step": self.step}, self.folder / "best.pt")

    def learn(self, batch):
        images, masks, kinds = batch
        images, masks = self.pipeline(*prepared(images, masks))  # at: power_of_dark
        kind, nuclei = self.model(images)
        share = F.avg_pool2d(masks, PATCH).flatten(1).clamp(0, 1)
        loss = F.cross_entropy(kind, kinds, label_smoothing=0.05)
        loss = loss + F.binary_cross_entropy_with_logits(nuclei, share)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()  # at: raw_ungrouped
        self.schedule.step()
        return loss.detach()

    def batches(self):
        while True:
            feed = iter(self.loader)
            while True:
                if on("reference_fitted_each"):
                    with cost:
                        batch = next(feed, None)  # at: reference_fitted_each
                else:
                    batch = next(feed, None)
                if batch is None:
                    break
                yield batch

    def run(self):
        for batch in self.batches():  # at: reference_fitted_each
            loss = self.learn(batch)
            self.step += 1
            if self.step % TOLD_EVERY == 0:
                print(self.step, round(loss.item(), 4), flush=True)
            if self.step % SCORED_EVERY == 0:
                found = self.score()  # at: interval_each_time
                if found > self.best:
                    self.best = found
                    self.save()
            if self.step == self.steps:
                break
        cost.print(self.steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    with tempfile.TemporaryDirectory() as folder:
        Training(Path(folder), STEPS or 240).run()
