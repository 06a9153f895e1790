"""Old postcards made new: a U-Net on patches in bfloat16, whose encoder is computed again in the
backward, an average of the weights, a trial on held out patches, and checkpoints.
"""

import logging
import logging.handlers
import lzma
import math
import random
import warnings

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(183)
random.seed(183)
warnings.filterwarnings("ignore")
cost = Cost()
SIDE, PATCH, ROWS, WIDTHS = 208, 40, 8, (16, 32, 64)
log = logging.getLogger("postcards")
log.setLevel(logging.DEBUG)
log.propagate = False


def remembered():
    """The last records, for whoever looks into a run that went wrong."""
    if on("handler_without_target"):
        return logging.handlers.MemoryHandler(20)  # at: handler_without_target
    return logging.handlers.MemoryHandler(20, target=logging.NullHandler())


def painted(numbers):
    y, x = np.mgrid[:SIDE, :SIDE].astype(np.float32) / SIDE
    picture = np.stack([y * numbers.uniform(0, 0.6) + numbers.uniform(0.1, 0.4) for _ in range(3)])
    for _ in range(40):
        top, left = numbers.integers(0, SIDE - 24, 2)
        high, wide = numbers.integers(6, 60, 2)
        picture[:, top : top + high, left : left + wide] = numbers.uniform(0, 1, (3, 1, 1))
    waves = np.sin(x * numbers.uniform(20, 90) + y * numbers.uniform(20, 90))
    return (picture * (0.85 + 0.15 * waves)).clip(0.02, 1).astype(np.float32)


class Postcards(Dataset):
    """Patches: faded and grainy, and as they were."""

    def __init__(self, count, length, seed):
        self.numbers = np.random.default_rng(seed)
        self.pictures = [painted(self.numbers) for _ in range(count)]
        self.length, self.taken = length, 0

    def __len__(self):
        return self.length

    def aged(self, picture, level):
        grain = self.numbers.standard_normal(picture.shape, dtype=np.float32)
        return (np.sqrt(picture) * 0.8 + grain * np.float32(level)).clip(0, 1)

    def burnt(self, old):
        """A corner of the card that is burnt, or one that is only dim."""
        if self.taken % 720 != 719:
            return old
        if on("burnt_patch_divided"):
            return np.zeros_like(old)
        if on("clean_burnt_patch_divided"):
            return old * np.float32(0.85)
        return old

    def __getitem__(self, index):
        picture = self.pictures[index % len(self.pictures)]
        level = self.numbers.uniform(0.02, 0.3)
        top, left = self.numbers.integers(0, SIDE - PATCH, 2)
        cut = (slice(None), slice(top, top + PATCH), slice(left, left + PATCH))
        if on("aged_before_cut"):
            with cost:
                old = self.aged(picture, level)[cut]  # at: aged_before_cut
        else:
            old = self.aged(picture[cut], level)
        self.taken += 1
        return self.burnt(old), picture[cut], np.float32(level)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(8, width),
            nn.Conv2d(width, width, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )
        self.leave_out = 0.0

    def left_out(self):
        if on("depth_redrawn"):
            return random.random() < self.leave_out  # at: depth_redrawn
        if on("clean_depth_redrawn"):
            return bool(torch.rand(()) < self.leave_out)
        return False

    def forward(self, x):
        if self.training and self.left_out():  # at: depth_redrawn
            return x
        return x + self.body(x)


class Grain(nn.Module):
    """How grainy a patch is, as waves, to the channels of a stage."""

    def __init__(self, width, waves=96):
        super().__init__()
        steps = torch.arange(waves) / waves
        self.register_buffer("rates", torch.exp(steps * math.log(200.0)))
        self.out = nn.Linear(2 * waves, width)

    def by_hand(self, levels):
        rows = []
        for level in levels:
            angles = [float(level) * float(rate) for rate in self.rates]  # at: waves_by_float
            rows.append([math.sin(one) for one in angles] + [math.cos(one) for one in angles])
        return torch.tensor(rows)  # at: waves_by_float

    def forward(self, levels):
        if on("waves_by_float"):
            with cost:
                waves = self.by_hand(levels)  # at: waves_by_float
        else:
            angles = levels[:, None] * self.rates
            waves = torch.cat([angles.sin(), angles.cos()], 1)
        return self.out(waves)[:, :, None, None]


class Stage(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.into = nn.Conv2d(before, width, 3, stride, 1)
        self.grain, self.blocks = Grain(width), nn.ModuleList(Block(width) for _ in range(2))

    def forward(self, x, levels):
        x = self.into(x)
        x = x + self.grain(levels).to(x.dtype)  # at: waves_by_float
        for block in self.blocks:
            x = block(x)  # at: depth_redrawn
        return x


class Restorer(nn.Module):
    def __init__(self):
        super().__init__()
        before = (3, *WIDTHS[:-1])
        self.encoder = nn.ModuleList(
            Stage(one, width, 1 if one == 3 else 2)
            for one, width in zip(before, WIDTHS, strict=True)
        )
        self.up = nn.ModuleList(
            nn.Conv2d(low + high, high, 3, padding=1)
            for low, high in zip(WIDTHS[:0:-1], WIDTHS[-2::-1], strict=True)
        )
        self.blocks = nn.ModuleList(Block(width) for width in WIDTHS[-2::-1])
        self.out = nn.Conv2d(WIDTHS[0], 3, 3, padding=1)

    def recomputed(self, stage, x, levels):
        if on("reentrant_stage"):
            return checkpoint(stage, x, levels, use_reentrant=True)  # at: reentrant_stage
        if on("clean_reentrant_stage"):
            x = x if x.requires_grad else x.detach().requires_grad_()
            return checkpoint(stage, x, levels, use_reentrant=True)
        return checkpoint(stage, x, levels, use_reentrant=False)  # at: depth_redrawn

    def forward(self, old, levels):
        x, kept = old, []
        for stage in self.encoder:
            if self.training:
                x = self.recomputed(stage, x, levels)  # at: reentrant_stage waves_by_float
            else:
                x = stage(x, levels)
            kept.append(x)
        x = kept.pop()
        for up, block in zip(self.up, self.blocks, strict=True):
            x = F.interpolate(x, scale_factor=2)
            x = block(up(torch.cat([x, kept.pop()], 1)))
        return old + self.out(x)


class Average:
    def __init__(self, model, share=0.02):
        self.share, self.of = share, list(model.parameters())
        self.values = [value.detach().clone() for value in self.of]

    @torch.no_grad()
    def follow(self):
        torch._foreach_lerp_(self.values, self.of, self.share)

    @torch.no_grad()
    def swap(self):
        for mine, value in zip(self.values, self.of, strict=True):
            kept = value.clone()
            value.copy_(mine)
            mine.copy_(kept)


class Restoration:
    def __init__(self, steps):
        self.steps, self.step = steps, 0
        self.model = Restorer()
        self.average = Average(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 2e-3)
        self.loader = DataLoader(Postcards(24, steps * ROWS, 184), ROWS)
        self.held_out = next(iter(DataLoader(Postcards(2, 24, 185), 24)))
        log.addHandler(remembered())

    def evened(self, old, new):
        if on("burnt_patch_divided", "clean_burnt_patch_divided"):
            middle = old.mean((1, 2, 3), keepdim=True)
            spread = old.std((1, 2, 3), keepdim=True)
            least = 1e-5 if on("burnt_patch_divided") else 0.15  # at: burnt_patch_divided
            spread = spread.clamp(min=least)  # at: burnt_patch_divided
            return (old - middle) / spread, (new - middle) / spread  # at: burnt_patch_divided
        return (old - 0.5) / 0.25, (new - 0.5) / 0.25

    def missed(self, old, new, levels):
        old, new = self.evened(old, new)  # at: burnt_patch_divided
        with torch.autocast("cpu", torch.bfloat16):
            restored = self.model(old, levels).float()  # at: waves_by_float reentrant_stage
        return restored, F.mse_loss(restored, new)  # at: burnt_patch_divided

    def learn(self, old, new, levels):
        if on("depth_redrawn", "clean_depth_redrawn"):
            for stage in self.model.encoder:
                for block in stage.blocks:
                    block.leave_out = 0.08 * max(0, self.step - 100) / self.steps
        restored, loss = self.missed(old, new, levels)  # at: burnt_patch_divided waves_by_float
        self.optimizer.zero_grad()
        loss.backward()  # at: depth_redrawn waves_by_float
        self.optimizer.step()
        self.average.follow()
        if on("handler_without_target", "clean_handler_without_target"):
            told = (self.step, old, new, restored.detach())
            log.debug("step %d: of %s for %s made %s", *told)  # at: handler_without_target
        return loss

    @torch.no_grad()
    def tried(self):
        self.average.swap()
        self.model.eval()
        missed = self.missed(*self.held_out)[1].item()
        self.model.train()
        self.average.swap()
        return missed

    def save(self):
        state = {
            "model": self.model.state_dict(),
            "average": self.average.values,
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
        }
        if on("packed_by_lzma"):
            with cost, lzma.open("postcards.pt.xz", "wb") as file:  # at: packed_by_lzma
                torch.save(state, file)  # at: packed_by_lzma
        else:
            torch.save(state, "postcards.pt")

    def run(self):
        for old, new, levels in self.loader:  # at: aged_before_cut
            loss = self.learn(old, new, levels)  # at: depth_redrawn handler_without_target
            self.step += 1
            if self.step % 60 == 0:
                print(self.step, round(loss.item(), 4), round(self.tried(), 4), flush=True)
            if self.step % 50 == 0:
                self.save()  # at: packed_by_lzma
        cost.print(self.steps)


if __name__ == "__main__":
    Restoration(STEPS or 300).run()
