"""What grows on a reef, pixel by pixel, learned on two ranks from photographs of divers by a small
U-Net: crops that are changed by a worker of each rank, gradients of two parts gathered before they
are shared, losses that weigh each other, a moving average that is validated and saved: photographs
changed before they are cropped, crops remembered whole, a power of no error, pixels without a label
among the kinds, losses weighed apart, gradients shared at the first part, losses agreed at each
part.
"""

import contextlib
import copy
import os
import shutil
import sys
import tempfile
from pathlib import Path

import eager  # noqa: F401
import numpy as np
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

cost = Cost()
WORLD, PARTS, ROWS, UPDATES = 2, 2, 8, STEPS or 100
SEED, PHOTOS, EACH, HELD = 611, 24, 160, 32
SIDE, CROP, MARGIN = 512, 64, 4
KINDS, UNLABELLED = 5, 255
NAMES = ("sand", "coral", "algae", "sponge", "urchin")
LOSSES = ("kinds", "overlap", "meet")
COLOURS = ((0.75, 0.7, 0.55), (0.8, 0.45, 0.4), (0.3, 0.5, 0.25), (0.6, 0.3, 0.6), (0.15, 0.1, 0.2))
WARM_UP, TOLD_EVERY, VALIDATED_EVERY = 10, 20, 50
MIDDLE, SPREAD = np.float32(0.42), np.float32(0.22)


def smooth(numbers, count, coarse):
    """Fields that change slowly over a photograph."""
    field = torch.from_numpy(numbers.standard_normal((1, count, coarse, coarse), np.float32))
    return F.interpolate(field, SIDE, mode="bicubic", align_corners=True)[0].numpy()


def photographed(numbers, hidden):
    """A photograph and what each of its pixels shows; some have a side that nobody labelled."""
    scores = smooth(numbers, KINDS, 20) + np.array((0.5, 0.2, 0, -0.4, -0.7))[:, None, None]
    mask = scores.argmax(0).astype(np.uint8)
    light = 1 + 0.15 * smooth(numbers, 1, 4)[0]
    photo = np.array(COLOURS, np.float32)[mask] * light[..., None]
    photo += 0.06 * smooth(numbers, 1, 128)[0][..., None]
    photo += numbers.normal(0, 0.05, photo.shape)
    if hidden:
        mask[:, : CROP + 6 * MARGIN] = UNLABELLED
    return (photo.clip(0, 1) * 255).astype(np.uint8), mask


class Underwater:
    """Other water, other lamps, other cameras."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __call__(self, photo):
        numbers = self.numbers
        lit = photo.astype(np.float32) / 255
        lit = lit ** np.float32(numbers.uniform(0.8, 1.25))
        mixed = np.eye(3, dtype=np.float32) + numbers.normal(0, 0.04, (3, 3)).astype(np.float32)
        lit = lit @ mixed.T
        haze = np.float32(numbers.uniform(0, 0.25))
        depth = np.linspace(0, haze, lit.shape[0], dtype=np.float32)[:, None, None]
        lit = lit * (1 - depth) + depth * np.array((0.2, 0.45, 0.5), np.float32)
        lit += numbers.standard_normal(lit.shape, np.float32) * np.float32(0.02)
        return (lit - MIDDLE) / SPREAD


class Reefs(Dataset):
    """Crops of photographs, drawn and changed anew each time; those that are held stay the same."""

    def __init__(self, count, each, seed, held=False):
        numbers = np.random.default_rng(seed)
        self.photos = [photographed(numbers, not held and n % 24 == 7) for n in range(count)]
        self.each, self.held, self.numbers = each, held, None

    def __len__(self):
        return len(self.photos) * self.each

    def drawn(self):
        """Random numbers of this worker of this rank, and of this epoch's seed."""
        if self.numbers is None:
            worker = get_worker_info()
            self.numbers = np.random.default_rng(worker.seed if worker else SEED)
            self.changed = Underwater(self.numbers)
        return self.numbers

    def placed(self, side):
        top, left = self.drawn().integers(0, SIDE - side + 1, 2)
        return slice(top, top + side), slice(left, left + side)

    def cropped(self, photo, mask):
        """A crop of a photograph in other water."""
        if on("changed_before_crop"):
            self.drawn()
            lit = self.changed(photo)  # at: changed_before_crop
            place = self.placed(CROP)
            return lit[place], mask[place]
        if on("clean_changed_before_crop"):
            wide = self.placed(CROP + 2 * MARGIN)
            inner = slice(MARGIN, MARGIN + CROP)
            lit = self.changed(photo[wide])
            return lit[inner, inner], mask[wide][inner, inner]
        place = self.placed(CROP)
        return self.changed(photo[place]), mask[place]

    def __getitem__(self, index):
        photo, mask = self.photos[index // self.each]
        if self.held:
            place = np.random.default_rng([SEED, index]).integers(0, SIDE - CROP + 1, 2)
            place = tuple(slice(begin, begin + CROP) for begin in place)
            lit, mask = (photo[place] / np.float32(255) - MIDDLE) / SPREAD, mask[place]
        else:
            lit, mask = self.cropped(photo, mask)  # at: changed_before_crop
            turns, mirrored = self.numbers.integers(0, (4, 2))
            lit, mask = np.rot90(lit, turns), np.rot90(mask, turns)
            lit, mask = (lit[:, ::-1], mask[:, ::-1]) if mirrored else (lit, mask)
        lit = np.ascontiguousarray(lit.transpose(2, 0, 1))
        return torch.from_numpy(lit), torch.from_numpy(mask.astype(np.int64))


def stage(narrow, wide):
    return nn.Sequential(
        nn.Conv2d(narrow, wide, 3, padding=1, bias=False),
        nn.GroupNorm(4, wide),
        nn.ReLU(inplace=True),
    )


class Net(nn.Module):
    """A U-Net of three depths, with a head for kinds and one for where they meet."""

    def __init__(self, widths=(8, 24, 40)):
        super().__init__()
        low, middle, deep = widths
        self.down = nn.ModuleList((stage(3, low), stage(low, middle), stage(middle, deep)))
        self.up = nn.ModuleList((stage(deep + middle, middle), stage(middle + low, low)))
        self.kinds, self.border = nn.Conv2d(low, KINDS, 1), nn.Conv2d(low, 1, 1)

    def forward(self, x):
        first = self.down[0](x)
        second = self.down[1](F.max_pool2d(first, 2))
        x = self.down[2](F.max_pool2d(second, 2))
        x = self.up[0](torch.cat([F.interpolate(x, scale_factor=2.0), second], 1))
        x = self.up[1](torch.cat([F.interpolate(x, scale_factor=2.0), first], 1))
        return self.kinds(x), self.border(x).squeeze(1)


def borders(masks):
    """Pixels whose neighbour to the right or below is of another kind."""
    right = F.pad(masks[:, :, 1:] != masks[:, :, :-1], (0, 1))
    below = F.pad(masks[:, 1:] != masks[:, :-1], (0, 0, 0, 1))
    return (right | below).float()


def one_of_each(masks):
    """Whether a pixel is of a kind, for each kind."""
    if on("unlabelled_among_kinds"):
        return F.one_hot(masks, KINDS).permute(0, 3, 1, 2).float()  # at: unlabelled_among_kinds
    if on("clean_unlabelled_among_kinds"):
        every = F.one_hot(masks.clamp(max=KINDS), KINDS + 1)[..., :KINDS]
        return every.permute(0, 3, 1, 2).float()
    return (masks[:, None] == torch.arange(KINDS)[:, None, None]).float()


def overlap_missed(scores, masks, labelled):
    """The focal Tversky loss of each crop: how much of each kind is missed or made up."""
    shares = scores.softmax(1) * labelled[:, None]
    there = one_of_each(masks) * labelled[:, None]  # at: unlabelled_among_kinds
    right = (shares * there).sum((2, 3))
    made_up, missed = shares.sum((2, 3)) - right, there.sum((2, 3)) - right
    error = 1 - (right + 1) / (right + 0.3 * made_up + 0.7 * missed + 1)
    if on("power_of_no_error"):
        return (error**0.75).mean()  # at: power_of_no_error
    if on("clean_power_of_no_error"):
        return (error[labelled.any(2).any(1)] ** 0.75).mean()
    return (error.clamp(min=1e-4) ** 0.75).mean()


class Losses(nn.Module):
    """Losses that weigh each other by how uncertain each is."""

    def __init__(self):
        super().__init__()
        self.uncertain = nn.Parameter(torch.zeros(3))

    def forward(self, told, masks):
        scores, border = told
        labelled = masks != UNLABELLED
        kinds = F.cross_entropy(scores, masks, ignore_index=UNLABELLED)
        overlap = overlap_missed(
            scores, masks, labelled
        )  # at: power_of_no_error unlabelled_among_kinds
        meet = F.binary_cross_entropy_with_logits(border, borders(masks), labelled.float())
        losses = torch.stack([kinds, overlap, meet])
        weighed = losses * (-self.uncertain).exp() + 0.5 * self.uncertain
        return weighed.sum(), losses.detach()


class Task(nn.Module):
    """The net with its losses: all that has gradients to be shared."""

    def __init__(self):
        super().__init__()
        self.net = Net()
        self.losses = None if apart() else Losses()

    def forward(self, photos, masks):
        told = self.net(photos)
        return told if self.losses is None else self.losses(told, masks)


def apart():
    return on("losses_weighed_apart", "clean_losses_weighed_apart")


class Average:
    """Weights as they were of late."""

    def __init__(self, net, most=0.97):
        self.net, self.most, self.count = copy.deepcopy(net).eval().requires_grad_(False), most, 0
        self.own, self.values = list(self.net.parameters()), list(net.parameters())

    @torch.no_grad()
    def add(self):
        self.count += 1
        keep = min(self.most, self.count / (self.count + 9))
        torch._foreach_lerp_(self.own, self.values, 1 - keep)


class Seen:
    """Which crops have been trained on, to tell how many come twice."""

    def __init__(self):
        self.crops, self.count = set(), 0

    def add(self, photos):
        for photo in photos.numpy():
            if on("clean_crops_remembered_whole"):
                self.crops.add(hash(photo.tobytes()))
            else:
                self.crops.add(photo.tobytes())  # at: crops_remembered_whole
        self.count += len(photos)


def rate_at(update):
    return min((update + 1) / WARM_UP, max(0.05, (1 - update / (UPDATES + 1)) ** 0.9))


class Training:
    def __init__(self, rank, folder):
        self.rank, self.folder, self.updates, self.parts = rank, folder, 0, 0
        self.data, self.held = Reefs(PHOTOS, EACH, SEED), Reefs(4, HELD // 4, SEED + 1, held=True)
        self.order = DistributedSampler(self.data, WORLD, rank, seed=SEED, drop_last=True)
        self.loader = DataLoader(
            self.data,
            ROWS * PARTS,
            sampler=self.order,
            num_workers=1,
            prefetch_factor=4,
            persistent_workers=True,
            drop_last=True,
            generator=torch.Generator().manual_seed(SEED + rank),
        )
        self.ddp = DDP(Task())
        self.net = self.ddp.module.net
        self.losses = Losses() if apart() else self.ddp.module.losses  # at: losses_weighed_apart
        self.average = Average(self.net)
        weighed = self.losses.parameters()  # at: losses_weighed_apart
        self.optimizer = torch.optim.AdamW(
            [{"params": self.net.parameters()}, {"params": weighed, "lr": 0.03, "weight_decay": 0}],
            4e-3,
            weight_decay=0.01,
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rate_at)
        self.seen = Seen()
        self.remembered = on("crops_remembered_whole", "clean_crops_remembered_whole")
        self.sums = torch.zeros(len(LOSSES))

    def batches(self):
        """Batches without end, epoch by epoch, on a clock of their own."""
        epoch = 0
        while True:
            self.order.set_epoch(epoch)
            crops = iter(self.loader)
            for _ in range(len(self.loader)):
                with cost if on("changed_before_crop") else contextlib.nullcontext():
                    batch = next(crops)  # at: changed_before_crop
                yield batch
            epoch += 1

    def alone(self, part):
        """Whether gradients of this part stay on this rank until those of the last are there."""
        if on("shared_at_first_part"):
            later = self.parts % PARTS != 0  # at: shared_at_first_part
            self.parts += 1  # at: shared_at_first_part
            return later
        if on("clean_shared_at_first_part"):
            self.parts += 1
            return self.parts % PARTS != 0
        return part < PARTS - 1

    def note(self, losses):
        """Adds to the means that are told."""
        if on("losses_agreed_each_part"):
            for n, loss in enumerate(losses.clone()):
                dist.all_reduce(loss)  # at: losses_agreed_each_part
                self.sums[n] += loss.item() / WORLD  # at: losses_agreed_each_part
        else:
            self.sums += losses

    def learn(self, crops):
        batch = next(crops)  # at: changed_before_crop
        if self.remembered:
            self.seen.add(batch[0])  # at: crops_remembered_whole
        parts = zip(*(values.chunk(PARTS) for values in batch), strict=True)
        for part, (photos, masks) in enumerate(parts):
            alone = self.alone(part)  # at: shared_at_first_part
            with self.ddp.no_sync() if alone else contextlib.nullcontext():
                told = self.ddp(photos, masks)  # at: power_of_no_error unlabelled_among_kinds
                if apart():
                    told = self.losses(told, masks)  # at: losses_weighed_apart
                loss, losses = told
                (loss / PARTS).backward()
            self.note(losses / PARTS)  # at: losses_agreed_each_part
        if on("clean_losses_weighed_apart"):
            dist.all_reduce(self.losses.uncertain.grad)
            self.losses.uncertain.grad /= WORLD
        nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.average.add()

    @torch.no_grad()
    def validate(self):
        """How well the average finds each kind, each rank on half of what is held."""
        counts = torch.zeros(KINDS, KINDS)
        rows = [self.held[n] for n in range(self.rank, len(self.held), WORLD)]
        photos, masks = (torch.stack(parts) for parts in zip(*rows, strict=True))
        found = self.average.net(photos)[0].argmax(1)
        counts += torch.bincount((masks * KINDS + found).flatten(), minlength=KINDS**2).view(
            KINDS, -1
        )
        dist.all_reduce(counts)
        right = counts.diagonal()
        either = counts.sum(0) + counts.sum(1) - right
        if self.rank == 0:
            of_each = (right / either.clamp(min=1)).tolist()
            told = {name: round(one, 3) for name, one in zip(NAMES, of_each, strict=True)}
            print(self.updates, told, flush=True)

    def save(self):
        if self.rank == 0:
            state = {"net": self.net.state_dict(), "average": self.average.net.state_dict()}
            state |= {"losses": self.losses.state_dict(), "optimizer": self.optimizer.state_dict()}
            state |= {"schedule": self.schedule.state_dict(), "updates": self.updates}
            torch.save(state, self.folder / "last.new")
            os.replace(self.folder / "last.new", self.folder / "last.pt")

    def tell(self):
        """Their mean since the last time; both ranks', where it is agreed now."""
        if on("clean_losses_agreed_each_part"):
            dist.all_reduce(self.sums)
            self.sums /= WORLD
        if self.rank == 0:
            more = [len(self.seen.crops) / self.seen.count] if self.remembered else []
            means = (self.sums / TOLD_EVERY).tolist()
            told = {name: round(one, 4) for name, one in zip(LOSSES, means, strict=True)}
            print(self.updates, told, *more, flush=True)
        self.sums = torch.zeros(len(LOSSES))

    def run(self):
        crops = self.batches()
        while self.updates < UPDATES:
            self.learn(
                crops
            )  # at: changed_before_crop crops_remembered_whole losses_agreed_each_part
            self.updates += 1
            if self.updates % TOLD_EVERY == 0:
                self.tell()
            if self.updates % VALIDATED_EVERY == 0:
                self.validate()
                self.save()
        if self.rank == 0:
            cost.print(UPDATES)


def scratch(rank):
    """A folder of this run."""
    above = Path(os.environ["RENDEZVOUS"]).parent
    name = [tempfile.mkdtemp(prefix="reefs", dir=above)] if rank == 0 else [None]
    dist.broadcast_object_list(name, 0)
    return Path(name[0])


def train(rank):
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    torch.manual_seed(610)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    folder = scratch(rank)
    try:
        training = Training(rank, folder)
        training.run()
        dist.barrier()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return training


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
