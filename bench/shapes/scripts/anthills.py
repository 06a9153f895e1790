"""Anthills seen from the air: a detector of centres and sizes under accelerate on two ranks, two
parts an update, an average of the weights that is judged beside them, a rate that warms up, panels
for the eye: centres spread cell by cell, panels of each update, hills that leave the picture, a
prior that is fitted on one rank first, pictures by chance alone, a mode that one network gets back,
maps of a meter.
"""

import copy
import os
import shutil
import sys
import tempfile
import time
import zlib
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

WORLD, PARTS, ROWS = 2, 2, 4
UPDATES = STEPS or 220
SIDE, STRIDE, PICTURES, HELD = 64, 2, 900, 48
CELLS = SIDE // STRIDE
SHIFT, HILLS = 9, 5
RATE, WARM, CLIP, DECAY = 2e-3, 15, 10.0, 0.97
TOLD_EVERY, JUDGED_EVERY, PANEL_EVERY, PRIOR_EVERY, METER_EVERY = 20, 60, 55, 40, 20
SIZES_KEPT, SEED = 32, 407
SPREAD = "centres_spread_by_cell", "clean_centres_spread_by_cell"
PANELS = "panels_of_each_update", "clean_panels_of_each_update"
PRIORS = "prior_gathered_by_main_first", "clean_prior_gathered_by_main_first"
METERS = "meter_without_reset", "clean_meter_without_reset"
cost = Cost()
ALONG = np.arange(SIDE, dtype=np.float32)
CELL = np.arange(CELLS, dtype=np.float32)


class Heath(Dataset):
    """Heath with anthills on it, drawn when it is asked for; trained ones are shifted a little."""

    def __init__(self, count, seed, shift, process=0):
        self.count, self.seed, self.shift = count, seed, shift
        own = (SEED, seed, process) if on("clean_pictures_by_dice_alone") else (SEED, seed)
        self.dice = np.random.default_rng(own)  # at: pictures_by_dice_alone

    def __len__(self):
        return self.count

    def draw(self, dice):
        ground = dice.normal(0.4, 0.1, (3, 8, 8)).repeat(8, 1).repeat(8, 2)
        picture = (ground + dice.normal(0, 0.04, (3, SIDE, SIDE))).astype(np.float32)
        count = dice.integers(1, HILLS + 1)
        centres = dice.uniform(4, SIDE - 4, (count, 2)).astype(np.float32)
        radii = dice.uniform(2.5, 8, (count, 2)).astype(np.float32)
        for (x, y), (wide, high) in zip(centres, radii, strict=True):
            away = ((ALONG - x) / wide)[None] ** 2 + ((ALONG - y) / high)[:, None] ** 2
            picture += np.clip(1 - away, 0, 1) * np.float32([[[0.4]], [[0.1]], [[-0.2]]])
        return picture, centres, radii

    def shifted(self, picture, centres, radii, dice):
        """What is seen of the hills after a shift, and where."""
        by = dice.integers(-self.shift, self.shift + 1, 2)
        picture = np.roll(picture, (by[1], by[0]), (1, 2))
        first = np.clip(centres + by - radii, 0, SIDE)
        last = np.clip(centres + by + radii, 0, SIDE)
        sizes, middles = last - first, (first + last) / 2
        if on("log_of_hills_gone"):
            seen = (sizes >= 0).all(1)  # at: log_of_hills_gone
        elif on("clean_log_of_hills_gone"):
            seen = (sizes >= 1).all(1)
        else:
            seen = (np.abs(centres + by - SIDE / 2) < SIDE / 2 - 1).all(1)
        return picture, middles[seen], sizes[seen]

    def spread(self, heat, x, y, size):
        """A bump around a centre."""
        width = max(1.0, size.mean() / 6)
        if on("centres_spread_by_cell"):
            for row in range(CELLS):  # at: centres_spread_by_cell
                for column in range(CELLS):  # at: centres_spread_by_cell
                    away = ((column - x) ** 2 + (row - y) ** 2) / (2 * width**2)
                    heat[row, column] = max(heat[row, column], np.exp(-away))
            return
        across = np.exp(-((CELL - x) ** 2) / (2 * width**2))
        down = np.exp(-((CELL - y) ** 2) / (2 * width**2))
        np.maximum(heat, down[:, None] * across, out=heat)

    def targets(self, middles, sizes):
        heat = np.zeros((CELLS, CELLS), np.float32)
        logs, there = np.zeros((2, CELLS, CELLS), np.float32), np.zeros_like(heat)
        places = np.clip(middles // STRIDE, 0, CELLS - 1).astype(int)
        with np.errstate(divide="ignore"):
            log_sizes = np.log(sizes)  # at: log_of_hills_gone
        for (x, y), size, log_size in zip(places, sizes, log_sizes, strict=True):
            self.spread(heat, int(x), int(y), size)  # at: centres_spread_by_cell
            heat[y, x], there[y, x], logs[:, y, x] = 1, 1, log_size
        return heat, logs, there

    def __getitem__(self, index):
        if on("pictures_by_dice_alone", "clean_pictures_by_dice_alone") and self.shift:
            dice = self.dice  # at: pictures_by_dice_alone
        else:
            dice = np.random.default_rng((SEED, self.seed, index))
        picture, centres, radii = self.draw(dice)
        picture, middles, sizes = self.shifted(picture, centres, radii, dice)
        with cost if on(*SPREAD) and self.shift else nullcontext():
            heat, logs, there = self.targets(middles, sizes)  # at: centres_spread_by_cell
        return picture, heat, logs, there


class Residual(nn.Sequential):
    def __init__(self, width):
        super().__init__(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return F.silu(x + super().forward(x))


class Detector(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 5, 2, 2, bias=False), nn.BatchNorm2d(width), nn.SiLU()
        )
        self.near = nn.Conv2d(width, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.far = nn.Sequential(Residual(2 * width), Residual(2 * width))
        self.up = nn.Conv2d(2 * width, width, 1)
        self.heat, self.size = nn.Conv2d(width, 1, 3, padding=1), nn.Conv2d(width, 2, 3, padding=1)
        nn.init.constant_(self.heat.bias, -3)

    def forward(self, picture):
        near = F.silu(self.near(self.stem(picture)))
        far = self.far(self.down(near))
        x = F.silu(near + F.interpolate(self.up(far), scale_factor=2))
        return self.heat(x)[:, 0], self.size(x)


def focal(scores, heat):
    """Of each centre, and less of what is near to one."""
    likely = scores.sigmoid()
    hit = (heat == 1).float()
    found = -((1 - likely) ** 2) * F.logsigmoid(scores) * hit
    missed = -((1 - heat) ** 4) * likely**2 * F.logsigmoid(-scores) * (1 - hit)
    return (found + missed).sum() / hit.sum().clamp(min=1)


class Meter:
    """How well cells are told apart, over the batches since it was reset."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.said, self.true, self.pictures = [], [], []

    def update(self, said, true, pictures):
        self.said.append(said)  # at: meter_without_reset
        self.true.append(true)  # at: meter_without_reset
        self.pictures.append(pictures)  # at: meter_without_reset

    def compute(self):
        said, true = torch.cat(self.said[-8:]) > 0.3, torch.cat(self.true[-8:]) > 0.3
        return ((said & true).sum() / (said | true).sum().clamp(min=1)).item()


class Survey:
    def __init__(self, accelerator, folder):
        self.accelerator, self.folder = accelerator, folder
        self.update, self.best, self.overlap = 0, float("inf"), 0.0
        heath = Heath(PICTURES, 1, SHIFT, accelerator.process_index)
        model = Detector()
        optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda unit: self.share(unit / accelerator.num_processes)
        )
        self.model, self.optimizer, self.schedule, self.loader, self.held = accelerator.prepare(
            model,
            optimizer,
            schedule,
            DataLoader(heath, ROWS, shuffle=True, drop_last=True),
            DataLoader(Heath(HELD, 2, 0), 2 * ROWS),
        )
        self.average = copy.deepcopy(model).requires_grad_(False)
        self.average.eval()
        self.prior, self.sizes = torch.full((2,), float(np.log(10))), []
        self.meter = Meter()

    @staticmethod
    def share(update):
        if update < WARM:
            return (update + 1) / WARM
        return 0.02 + 0.98 * 0.5 * (1 + np.cos(np.pi * min(1, (update - WARM) / (UPDATES - WARM))))

    def losses(self, net, batch):
        picture, heat, logs, there = batch
        scores, sizes = net(picture)
        wrong = (sizes + self.prior.view(1, 2, 1, 1) - logs).square().sum(1)
        seen = there > 0
        return (
            focal(scores, heat) + 0.3 * wrong[seen].sum() / seen.sum().clamp(min=1),
            scores,
            sizes,
        )

    @torch.no_grad()
    def follow(self):
        bare = self.accelerator.unwrap_model(self.model)
        slow, new = list(self.average.parameters()), list(bare.parameters())
        torch._foreach_lerp_(slow, new, 1 - DECAY)
        for mine, its in zip(self.average.buffers(), bare.buffers(), strict=True):
            mine.copy_(its)

    def fit_prior(self):
        """The sizes that hills have of late; the main process writes them down for all."""
        own = torch.cat(self.sizes)[-SIZES_KEPT:]
        place = self.folder / f"prior{self.update}.npy"
        if on("clean_prior_gathered_by_main_first"):
            every = self.accelerator.gather(own)
            with self.accelerator.main_process_first():
                if self.accelerator.is_main_process:
                    np.save(place, every.median(0).values.numpy())
                self.prior = torch.from_numpy(np.load(place))
        else:
            with self.accelerator.main_process_first():  # at: prior_gathered_by_main_first
                if not place.exists():
                    every = self.accelerator.gather(own)  # at: prior_gathered_by_main_first
                    np.save(place, every.median(0).values.numpy())
                self.prior = torch.from_numpy(np.load(place))
        self.sizes.clear()

    def note_sizes(self, batch):
        _, _, logs, there = batch
        self.sizes.append(logs.permute(0, 2, 3, 1)[there > 0])

    def panel(self, picture, scores):
        """Pictures side by side, six times as large, with what was found in them."""
        large = picture.repeat_interleave(6, 2).repeat_interleave(6, 3)
        peaks = (scores == F.max_pool2d(scores[:, None], 3, 1, 1)[:, 0]) & (scores > -0.5)
        for row, y, x in peaks.nonzero().tolist():
            top, left = max(0, 12 * y - 18), max(0, 12 * x - 18)
            large[row, 0, top : top + 36, left : left + 36] += 0.3
        pixels = (large.clamp(0, 1) * 255).byte().permute(2, 0, 3, 1).contiguous().numpy()
        packed = zlib.compress(pixels.tobytes(), 9)  # at: panels_of_each_update
        (self.folder / "panel.bin").write_bytes(packed)

    def judge(self):
        """The held pictures, by the weights and by their average."""
        told = []
        for net in (self.model, self.average):
            net.eval()  # at: mode_back_for_last_alone
            losses = []
            with torch.no_grad():
                for batch in self.held:
                    loss, _, _ = self.losses(net, batch)
                    losses.append(self.accelerator.gather_for_metrics(loss[None]))
            told.append(torch.cat(losses).mean().item())
            if not on("mode_back_for_last_alone"):
                net.train()
        net.train()  # at: mode_back_for_last_alone
        return told

    def save(self):
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            state = {"average": self.average.state_dict(), "update": self.update}
            self.accelerator.save(state, self.folder / "best.pt")

    def measure(self, batch, scores):
        """The overlap of the batches of all ranks."""
        said = scores.detach().sigmoid()
        gathered = self.accelerator.gather_for_metrics((said, batch[1], batch[0]))
        self.meter.update(*gathered)  # at: meter_without_reset
        if self.update % METER_EVERY == 0:
            self.overlap = self.meter.compute()  # at: meter_without_reset
            if on("clean_meter_without_reset"):
                self.meter.reset()

    def after(self, batch, loss, scores):
        first = self.accelerator.is_main_process
        if first and (
            on("panels_of_each_update")
            or (on("clean_panels_of_each_update") and self.update % PANEL_EVERY == 0)
        ):
            with cost:
                self.panel(batch[0], scores.detach())  # at: panels_of_each_update
        if on(*METERS):
            self.measure(batch, scores)  # at: meter_without_reset
        if on(*PRIORS) and self.update % PRIOR_EVERY == 0:
            self.fit_prior()  # at: prior_gathered_by_main_first
        if self.update % TOLD_EVERY == 0:
            mean = self.accelerator.reduce(loss, "mean").item()
            self.accelerator.print(
                f"{self.update} loss {mean:.3f} rate {self.schedule.get_last_lr()[0]:.1e}"
                f" overlap {self.overlap:.2f}",
                flush=True,
            )
        if self.update % JUDGED_EVERY == 0:
            now, average = self.judge()  # at: mode_back_for_last_alone
            self.accelerator.print(f"{self.update} held {now:.3f} {average:.3f}", flush=True)
            if average < self.best:
                self.best = average
                self.save()

    def learn(self, batch):
        with self.accelerator.accumulate(self.model):
            loss, scores, _ = self.losses(self.model, batch)
            self.accelerator.backward(loss)
            if self.accelerator.sync_gradients:
                self.accelerator.clip_grad_norm_(self.model.parameters(), CLIP)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
        return loss.detach(), scores

    def run(self):
        self.model.train()
        begun = time.perf_counter()
        while self.update < UPDATES:
            for batch in self.loader:  # at: centres_spread_by_cell pictures_by_dice_alone
                if on(*PRIORS):
                    self.note_sizes(batch)
                made = self.learn(batch)
                if not self.accelerator.sync_gradients:
                    continue
                self.update += 1
                self.follow()
                self.after(batch, *made)
                if self.update == UPDATES:
                    break
        took = (time.perf_counter() - begun) * 1000 / UPDATES
        self.accelerator.print(f"best {self.best:.3f}, {took:.1f} ms an update", flush=True)
        if self.accelerator.is_main_process:
            cost.print(UPDATES)


def train(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    os.environ.update(LOCAL_WORLD_SIZE=str(WORLD), OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=PARTS)
    set_seed(SEED)
    survey = Survey(accelerator, FOLDER)
    survey.run()
    return survey


if __name__ == "__main__":
    FOLDER = Path(tempfile.mkdtemp(prefix="anthills"))
    code = run_ranks(WORLD, train)
    shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(code)
