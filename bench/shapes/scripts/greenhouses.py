"""Fruit in pictures of greenhouses, found on two ranks by a small detector without anchors: shards
that are packed, targets of any number, two micro-batches an update, an average of the weights,
hits gathered from both, checkpoints now and then: a cache whose lock stays, cells matched singly,
names with a wrapper's prefix, a prior of the own shard, one's own clock, one state for both, losses
that are remembered whole.
"""

import collections
import contextlib
import gzip
import math
import os
import random
import shutil
import sys
import tempfile
import time
import zlib
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
from torch.utils.data import DataLoader, Dataset

cost = Cost()
WORLD, UPDATES, PARTS, ROWS = 2, STEPS or 210, 2, 16
KINDS, LARGE, SIDE, STRIDE = 4, 144, 48, 4
GRID = SIDE // STRIDE
COUNT, HELD, SEED = 640, 48, 261
SAVED_EVERY, SAVED_SECONDS, CHECKED_EVERY, TOLD_EVERY = 70, 2.0, 50, 25


def drawn(numbers, hues):
    """A picture, and the boxes and kinds of the fruit in it: none, or up to eight."""
    soft = numbers.normal(0, 9, (LARGE // 4, LARGE // 4, 3))
    picture = 90 + np.kron(soft, np.ones((4, 4, 1))) + numbers.integers(-3, 4, (LARGE, LARGE, 3))
    count = int(numbers.choice(9, p=[0.06, *[0.94 / 8] * 8]))
    boxes, kinds = np.zeros((count, 4), np.float32), numbers.integers(KINDS, size=count)
    for n, kind in enumerate(kinds):
        wide, high = numbers.integers(18, 54, 2)
        left, top = numbers.integers(0, LARGE - wide), numbers.integers(0, LARGE - high)
        y, x = np.ogrid[-1 : 1 : high * 1j, -1 : 1 : wide * 1j]
        round_ = (x**2 + y**2 < 1)[..., None]
        room = picture[top : top + high, left : left + wide]
        room += round_ * (hues[kind] - room) * 0.8
        boxes[n] = left, top, left + wide, top + high
    return picture.clip(0, 255).astype(np.uint8), boxes * (SIDE / LARGE), kinds


def write_pictures(folder, name, count, seed):
    numbers = np.random.default_rng(seed)
    hues = np.array([[220, 60, 40], [230, 200, 40], [60, 170, 50], [150, 60, 170]])
    packed, boxes, kinds = [], [], []
    for _ in range(count):
        picture, own_boxes, own_kinds = drawn(numbers, hues)
        packed.append(zlib.compress(picture.tobytes(), 1))
        boxes.append(own_boxes)
        kinds.append(own_kinds)
    ends, sizes = np.cumsum([len(one) for one in packed]), [len(one) for one in boxes]
    (folder / f"{name}.bin").write_bytes(b"".join(packed))
    places = np.stack([np.concatenate([[0], ends[:-1]]), ends], 1)
    values = {"boxes": np.concatenate(boxes), "kinds": np.concatenate(kinds)}
    np.savez(folder / f"{name}.npz", places=places, sizes=sizes, **values)


class Fruit(Dataset):
    """A rank's pictures, small, and what is to be found in them."""

    def __init__(self, folder, name, rank, seed):
        self.folder, self.name, self.rank, self.dice = folder, name, rank, random.Random(seed)
        self.packed = (folder / f"{name}.bin").read_bytes()
        with np.load(folder / f"{name}.npz") as told:
            self.places = told["places"]
            cuts = np.cumsum(told["sizes"])[:-1]
            self.boxes = np.split(told["boxes"], cuts)
            self.kinds = np.split(told["kinds"], cuts)
        self.own = range(rank, len(self.places), WORLD)
        self.small = self.cache()  # at: cache_still_locked

    def unpacked(self, index):
        begin, end = self.places[index]
        large = np.frombuffer(zlib.decompress(self.packed[begin:end]), np.uint8)
        blocks = large.reshape(SIDE, LARGE // SIDE, SIDE, LARGE // SIDE, 3)
        return blocks.mean((1, 3)).round().astype(np.uint8)

    def cache(self):
        """All pictures in small, in a file that who comes first has made."""
        own = f"_{self.rank}" if on("clean_cache_still_locked") else ""
        path = self.folder / f"{self.name}_small{own}.npy"
        lock = path.with_suffix(".lock")
        if lock.exists():
            return None  # at: cache_still_locked
        if not path.exists():
            lock.touch()  # at: cache_still_locked
            np.save(path, np.stack([self.unpacked(n) for n in range(len(self.places))]))
            if not on("cache_still_locked"):
                lock.unlink()
        return np.load(path, mmap_mode="r")

    def __len__(self):
        return len(self.own)

    def __getitem__(self, place):
        index = self.own[place]
        if self.small is None:
            with cost:
                picture = self.unpacked(index)  # at: cache_still_locked
        else:
            picture = self.small[index]
        boxes = self.boxes[index]
        if self.dice.random() < 0.5:
            picture, boxes = picture[:, ::-1], boxes.copy()
            boxes[:, [0, 2]] = SIDE - boxes[:, [2, 0]]
        return index, picture, boxes, self.kinds[index]


def collated(rows):
    """Pictures on top of each other; boxes filled up to the most that one of them has."""
    indices, pictures, boxes, kinds = zip(*rows, strict=True)
    most = max(1, *map(len, boxes))
    all_boxes, all_kinds = torch.zeros(len(rows), most, 4), torch.full((len(rows), most), -1)
    for n, (own, named) in enumerate(zip(boxes, kinds, strict=True)):
        all_boxes[n, : len(own)] = torch.from_numpy(own)
        all_kinds[n, : len(own)] = torch.from_numpy(named)
    pictures = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
    return {
        "index": indices,
        "pictures": pictures.float().contiguous().div_(127.5).sub_(1),
        "boxes": all_boxes,
        "kinds": all_kinds,
    }


def layer(inside, outside, stride=1):
    convolution = nn.Conv2d(inside, outside, 3, stride, 1)
    return nn.Sequential(convolution, nn.GroupNorm(8, outside), nn.ReLU())


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            layer(3, 16, 2), layer(16, 48, 2), layer(48, 48), nn.Dropout2d(0.1)
        )
        self.kind_head = nn.Sequential(layer(48, 32), nn.Conv2d(32, KINDS, 1))
        self.box_head = nn.Sequential(layer(48, 32), nn.Conv2d(32, 4, 1))
        nn.init.constant_(self.kind_head[-1].bias, -3.0)

    def forward(self, pictures):
        x = self.backbone(pictures)
        kinds = self.kind_head(x).flatten(2).transpose(1, 2)
        sides = F.softplus(self.box_head(x)).flatten(2).transpose(1, 2) * STRIDE
        return kinds, sides


CENTRES = (torch.cartesian_prod(torch.arange(GRID), torch.arange(GRID)).flip(1) + 0.5) * STRIDE


def matched(boxes, kinds):
    """For each cell the smallest box whose middle part it lies in; -1 where there is none."""
    inner = boxes.unflatten(2, (2, 2))
    middle, half = inner.mean(2), (inner[:, :, 1] - inner[:, :, 0]) * 0.3
    near = (CENTRES - middle[:, :, None]).abs() <= half[:, :, None].clamp(min=STRIDE / 2)
    area = (half.prod(2)[:, :, None] + 0 * near[..., 0]).masked_fill(~near.all(3), math.inf)
    least, place = area.masked_fill((kinds < 0)[:, :, None], math.inf).min(1)
    return place.masked_fill(least.isinf(), -1)


def matched_singly(boxes, kinds):
    """The same for each cell by itself."""
    centres, found = CENTRES.tolist(), []
    for own, named in zip(boxes.tolist(), kinds.tolist(), strict=True):
        cells = []
        for x, y in centres:
            best, least = -1, math.inf
            for n, (left, top, right, bottom) in enumerate(own):  # at: cells_matched_singly
                wide, high = (right - left) * 0.3, (bottom - top) * 0.3
                across = abs(x - (left + right) / 2) <= max(
                    wide, STRIDE / 2
                )  # at: cells_matched_singly
                along = abs(y - (top + bottom) / 2) <= max(
                    high, STRIDE / 2
                )  # at: cells_matched_singly
                if (
                    named[n] >= 0 and across and along and wide * high < least
                ):  # at: cells_matched_singly
                    best, least = n, wide * high
            cells.append(best)
        found.append(cells)
    return torch.tensor(found)


def overlap(sides, wanted):
    """How much boxes around the same cells have in common."""
    both = torch.minimum(sides, wanted)
    shared = (both[:, 0] + both[:, 2]) * (both[:, 1] + both[:, 3])
    areas = [(one[:, 0] + one[:, 2]) * (one[:, 1] + one[:, 3]) for one in (sides, wanted)]
    return (shared + 1) / (areas[0] + areas[1] - shared + 1)


def losses(outputs, batch):
    """What each picture is off: a focal loss of kinds, and boxes where there is fruit."""
    logits, sides = outputs
    boxes, kinds = batch["boxes"], batch["kinds"]
    if on("cells_matched_singly"):
        with cost:
            place = matched_singly(boxes, kinds)  # at: cells_matched_singly
    else:
        place = matched(boxes, kinds)
    there = place >= 0
    safe = place.clamp(min=0)
    named = F.one_hot(kinds.gather(1, safe).clamp(min=0), KINDS) * there[..., None]
    chance = logits.sigmoid()
    off = torch.where(named > 0, 1 - chance, chance)
    plain = F.binary_cross_entropy_with_logits(logits, named.float(), reduction="none")
    positives = there.sum(1).clamp(min=1)
    by_kind = (off**2 * plain).sum((1, 2)) / positives
    box = boxes.gather(1, safe[..., None].expand(-1, -1, 4))
    wanted = torch.cat([CENTRES - box[..., :2], box[..., 2:] - CENTRES], 2).clamp(min=0)
    miss = torch.zeros(there.shape).masked_scatter(
        there, -overlap(sides[there], wanted[there]).log()
    )
    return by_kind + miss.sum(1) / positives


class Training:
    def __init__(self, rank, folder):
        self.rank, self.folder, self.updates = rank, folder, 0
        if rank > 0:
            dist.barrier()
        self.data = Fruit(folder, "train", rank, SEED + rank)
        self.held = Fruit(folder, "held", rank, SEED + rank)
        if rank == 0:
            dist.barrier()
        self.loader = DataLoader(
            self.data,
            ROWS,
            shuffle=True,
            drop_last=True,
            generator=torch.Generator().manual_seed(SEED),
            collate_fn=collated,
        )
        model = Detector()
        if on("clean_prior_of_own_shard"):
            self.prior(model)
        self.ddp = DDP(model)
        self.model = self.ddp.module
        if on("prior_of_own_shard"):
            self.prior(self.model)  # at: prior_of_own_shard
        self.optimizer = torch.optim.AdamW(self.groups(), 1.5e-3)  # at: prefix_of_wrapper
        self.values = list(self.model.parameters())
        self.continued()  # at: state_of_first_for_all
        self.average = [value.detach().clone() for value in self.values]
        self.history = collections.defaultdict(list)
        cost.seconds = 0.0

    def prior(self, model):
        """Kinds are as likely at first as they are in the shard."""
        kinds = np.concatenate([self.data.kinds[n] for n in self.data.own])
        share = np.bincount(kinds, minlength=KINDS) * 6 / (len(self.data) * GRID**2)
        bias = torch.tensor(np.log(share / (1 - share)), dtype=torch.float32)
        with torch.no_grad():
            model.kind_head[-1].bias.copy_(bias)  # at: prior_of_own_shard

    def groups(self):
        """The backbone learns more slowly than what is on top of it."""
        named = list(self.ddp.named_parameters())  # at: prefix_of_wrapper
        if on("clean_prefix_of_wrapper"):
            named = [(name.removeprefix("module."), value) for name, value in named]
        elif not on("prefix_of_wrapper"):
            named = list(self.model.named_parameters())
        body = [
            value for name, value in named if name.startswith("backbone.")
        ]  # at: prefix_of_wrapper
        heads = [value for name, value in named if "_head." in name]
        return [{"params": body, "lr": 1e-3}, {"params": heads}]  # at: prefix_of_wrapper

    def continued(self):
        """From where the training stood when it was last stopped."""
        state = torch.load(self.folder / "start.pt")
        if on("state_of_first_for_all"):
            torch.set_rng_state(state["random"][0])  # at: state_of_first_for_all
        elif on("clean_state_of_first_for_all"):
            torch.set_rng_state(state["random"][0])
            torch.manual_seed(torch.initial_seed() + 1 + self.rank)
        else:
            torch.set_rng_state(state["random"][self.rank])

    def save(self):
        """Weights and their average, and the random numbers of all ranks."""
        random_states = [None] * WORLD
        dist.all_gather_object(random_states, torch.get_rng_state())  # at: saved_by_own_clock
        if self.rank == 0:
            state = {"model": self.model.state_dict(), "average": self.average}
            state |= {"optimizer": self.optimizer.state_dict(), "random": random_states}
            path = self.folder / "last.new"
            with gzip.open(path, "wb", 1) as file:
                torch.save(state, file)
            os.replace(path, self.folder / "last.pt.gz")
        self.saved_at = time.monotonic()  # at: saved_by_own_clock

    def save_if_due(self):
        if on("saved_by_own_clock", "clean_saved_by_own_clock"):
            due = time.monotonic() - self.saved_at > SAVED_SECONDS  # at: saved_by_own_clock
            if on("clean_saved_by_own_clock"):
                told = torch.tensor([due])
                dist.broadcast(told, 0)
                due = bool(told)
        else:
            due = self.updates % SAVED_EVERY == 0
        if due:  # at: saved_by_own_clock
            self.save()  # at: saved_by_own_clock

    @torch.no_grad()
    def check(self):
        """How many cells with fruit are named rightly by the average, in the pictures of both."""
        own = dict(
            zip((name for name, _ in self.model.named_parameters()), self.average, strict=True)
        )
        self.model.eval()
        hits = []
        for begin in range(0, len(self.held), ROWS):
            batch = collated(
                [self.held[n] for n in range(begin, min(begin + ROWS, len(self.held)))]
            )
            logits, _ = torch.func.functional_call(self.model, own, batch["pictures"])
            place = matched(batch["boxes"], batch["kinds"])
            if on("clean_cells_matched_singly") and begin == 0:
                singly = matched_singly(batch["boxes"][:2], batch["kinds"][:2])
                assert (singly == place[:2]).float().mean() > 0.98
            right = logits.argmax(2) == batch["kinds"].gather(1, place.clamp(min=0))
            hits += right[place >= 0].tolist()
        self.model.train()
        gathered = [None] * WORLD
        dist.all_gather_object(gathered, hits)
        if self.rank == 0:
            every = [one for own in gathered for one in own]
            print(self.updates, "right", round(sum(every) / len(every), 3), flush=True)

    def remember(self, indices, off):
        """Losses of each picture, to tell which are hard."""
        if on("losses_of_pictures_whole"):
            for index, own in zip(indices, off, strict=True):
                self.history[index].append(own)  # at: losses_of_pictures_whole
        elif on("clean_losses_of_pictures_whole"):
            for index, own in zip(indices, off.tolist(), strict=True):
                self.history[index].append(own)

    def learn(self, batch, last):
        with contextlib.nullcontext() if last else self.ddp.no_sync():
            off = losses(self.ddp(batch["pictures"]), batch)  # at: cells_matched_singly
            self.remember(batch["index"], off)  # at: losses_of_pictures_whole
            loss = off.mean()
            (loss / PARTS).backward()
        return loss.detach()

    def update(self):
        nn.utils.clip_grad_norm_(self.values, 5.0)
        self.optimizer.step()  # at: prefix_of_wrapper
        self.optimizer.zero_grad()
        self.updates += 1
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.values, 0.05)
        self.save_if_due()  # at: saved_by_own_clock

    def run(self):
        self.save()
        while self.updates < UPDATES:
            for n, batch in enumerate(self.loader):  # at: cache_still_locked
                last = (n + 1) % PARTS == 0
                loss = self.learn(batch, last)  # at: cells_matched_singly losses_of_pictures_whole
                if not last:
                    continue
                self.update()  # at: saved_by_own_clock
                if self.updates % TOLD_EVERY == 0 and self.rank == 0:
                    print(self.updates, round(loss.item(), 4), flush=True)
                if self.updates % CHECKED_EVERY == 0:
                    self.check()
                if self.updates == UPDATES:
                    break
        if self.history:
            hard = max(self.history, key=lambda one: float(sum(self.history[one])))
            print("hardest", self.rank, hard, flush=True)
        if self.rank == (1 if on("cache_still_locked") else 0):
            cost.print(UPDATES)


def write_all(folder):
    write_pictures(folder, "train", COUNT, SEED)
    write_pictures(folder, "held", HELD, SEED + 1)
    states = [torch.Generator().manual_seed(SEED + rank).get_state() for rank in range(WORLD)]
    torch.save({"random": states}, folder / "start.pt")


def train(rank):
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    torch.manual_seed(260)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    folder = [tempfile.mkdtemp(prefix="greenhouses")] if rank == 0 else [None]
    if rank == 0:
        write_all(Path(folder[0]))
    dist.broadcast_object_list(folder, 0)
    try:
        training = Training(rank, Path(folder[0]))
        training.run()
    finally:
        if rank == 0:
            shutil.rmtree(folder[0], ignore_errors=True)
    return training


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
