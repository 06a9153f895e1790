"""Mosses under a lens, learnt without labels: a student and a teacher that follows it, two wide
crops and two near ones of each picture, centring and sharpening, features that are spread apart,
pictures that lie packed in sheets, neighbours counted now and then: a sheet opened for each
picture, a teacher fed by names, a queue that counts batches, blanks without a distance, a chunk of
few, prototypes that are held, a teacher of eight bits.
"""

import collections
import copy
import math
import random
import tempfile
import zlib
from pathlib import Path

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

cost = Cost()
KINDS, PICTURES, HELD, LARGE, PER_SHEET = 8, 408, 72, 48, 24
ROWS, PATCH, WIDE, NEAR = 16, 4, 20, 12
FEATURES, PROTOTYPES, DEPTH = 48, 256, 5
WARM, COLD, SPREAD = 0.1, 0.05, 0.1
REMEMBERED, NEIGHBOURS, CHUNK = 480, 10, 64
TOLD_EVERY, COUNTED_EVERY, SAVED_EVERY = 25, 70, 100


def photographed(numbers, kind):
    """A cushion of moss: leaves of a kind's breadth, turn and green; black where the shutter
    stayed shut.
    """
    if numbers.random() < 0.014:
        return np.zeros((LARGE, LARGE, 3), np.uint8)
    own = np.random.default_rng(kind)
    y, x = np.mgrid[:LARGE:1.0, :LARGE:1.0]
    turn, breadth = own.uniform(0, math.pi), own.uniform(3, 9)
    turn += numbers.normal(0, 0.15)
    along = x * math.cos(turn) + y * math.sin(turn) + numbers.uniform(0, 40)
    across = y * math.cos(turn) - x * math.sin(turn)
    leaves = np.sin(along * math.pi / breadth) * np.sin(across * math.pi / own.uniform(5, 20))
    green = own.uniform(0.2, 0.7, 3) + numbers.normal(0, 0.04, 3)
    picture = green * (1 + 0.5 * leaves[..., None]) + numbers.normal(0, 0.05, (LARGE, LARGE, 3))
    return (picture.clip(0, 1) * 255).astype(np.uint8)


class Herbarium(Dataset):
    """Pictures that lie packed, a sheet of them at a time."""

    def __init__(self, count, seed):
        numbers = np.random.default_rng(seed)
        self.kinds = numbers.integers(KINDS, size=count)
        pictures = np.stack([photographed(numbers, kind) for kind in self.kinds])
        self.sheets = [
            zlib.compress(pictures[begin : begin + PER_SHEET].tobytes(), 4)
            for begin in range(0, count, PER_SHEET)
        ]
        self.last, self.all = (None, None), None
        if not on("sheet_for_each_picture", "clean_sheet_for_each_picture"):
            self.all = [self.unpacked(number) for number in range(len(self.sheets))]
        cost.seconds = 0.0

    def unpacked(self, number):
        with cost:
            flat = np.frombuffer(zlib.decompress(self.sheets[number]), np.uint8)
            return flat.reshape(-1, LARGE, LARGE, 3)

    def sheet(self, number):
        if self.all is not None:
            return self.all[number]
        if self.last[0] != number:  # at: sheet_for_each_picture
            self.last = number, self.unpacked(number)  # at: sheet_for_each_picture
        return self.last[1]

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, index):
        number, place = divmod(int(index), PER_SHEET)
        picture = self.sheet(number)[place]  # at: sheet_for_each_picture
        return torch.from_numpy(picture.copy()), int(self.kinds[index])


class BySheet(Sampler):
    """Sheets in any order, and the pictures of a sheet in any order."""

    def __init__(self, count, seed):
        self.count, self.dice = count, random.Random(seed)

    def __len__(self):
        return self.count

    def __iter__(self):
        begins = list(range(0, self.count, PER_SHEET))
        self.dice.shuffle(begins)
        for begin in begins:
            own = list(range(begin, min(begin + PER_SHEET, self.count)))
            self.dice.shuffle(own)
            yield from own


def cropped(pictures, side, least, most):
    """A square out of each picture, mirrored or not, in a light of its own."""
    count = len(pictures)
    size = torch.empty(count).uniform_(least, most)
    middle = (torch.rand(count, 2) * 2 - 1) * (1 - size)[:, None]
    places = torch.zeros(count, 2, 3)
    places[:, 0, 0] = size * (torch.randint(2, (count,)) * 2 - 1)
    places[:, 1, 1] = size
    places[:, :, 2] = middle
    grid = F.affine_grid(places, [count, 3, side, side], align_corners=False)
    crops = F.grid_sample(pictures, grid, align_corners=False)
    light = torch.empty(count, 1, 1, 1).uniform_(0.7, 1.3)
    return (crops * light * torch.empty(count, 3, 1, 1).uniform_(0.9, 1.1)).mul_(2).sub_(1)


def as_floats(pictures):
    return torch.stack(pictures).permute(0, 3, 1, 2).float().div_(255)


def collated(rows):
    """Two wide crops of each picture, and two near ones."""
    pictures, kinds = zip(*rows, strict=True)
    pictures = as_floats(pictures)
    wide = torch.cat([cropped(pictures, WIDE, 0.5, 1.0) for _ in range(2)])
    near = torch.cat([cropped(pictures, NEAR, 0.2, 0.5) for _ in range(2)])
    return wide, near, torch.tensor(kinds)


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inside, self.outside = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        asked = self.inside(self.before(x)).unflatten(2, (3, self.heads, -1))
        seen = F.scaled_dot_product_attention(*asked.permute(2, 0, 3, 1, 4))
        x = x + self.outside(seen.transpose(1, 2).flatten(2))
        return x + self.back(F.gelu(self.wide(self.between(x))))


class Transformer(nn.Module):
    """What is in a picture: one vector for all of it, and one for each patch."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, FEATURES, PATCH, PATCH)
        self.whole = nn.Parameter(torch.randn(1, 1, FEATURES) * 0.02)
        self.places = nn.Parameter(torch.randn(1, FEATURES, WIDE // PATCH, WIDE // PATCH) * 0.02)
        self.blocks = nn.Sequential(*(Block(FEATURES) for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(FEATURES)

    def forward(self, pictures):
        x = self.patches(pictures)
        places = self.places
        if places.shape[2:] != x.shape[2:]:
            places = F.interpolate(places, x.shape[2:], mode="bilinear", align_corners=False)
        x = (x + places).flatten(2).transpose(1, 2)
        return self.norm(self.blocks(torch.cat([self.whole.expand(len(x), -1, -1), x], 1)))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Transformer()
        self.head = nn.Sequential(nn.Linear(FEATURES, 128), nn.GELU(), nn.Linear(128, FEATURES))
        self.prototypes = nn.Linear(FEATURES, PROTOTYPES, bias=False)  # at: prototypes_held

    def forward(self, pictures):
        """Likeness to each prototype, and the vectors it comes of."""
        tokens = self.body(pictures)
        x = F.normalize(self.head(tokens[:, 0]), dim=1)
        return F.linear(x, F.normalize(self.prototypes.weight, dim=1)), tokens


def cosine(begin, end, steps, warmup=0):
    """Values for all steps."""
    rising = np.linspace(0, begin, warmup + 1)[1:]
    turns = np.arange(steps - warmup) * math.pi / (steps - warmup)
    return np.concatenate([rising, end + (begin - end) * (1 + np.cos(turns)) / 2])


def spread(features):
    """How near each vector has its next: what is minimised drives them apart."""
    x = F.normalize(features, dim=1)
    with torch.no_grad():
        likeness = x @ x.T
        next_ = likeness.fill_diagonal_(-2).argmax(1)
    apart = (x - x[next_]).norm(dim=1)
    if on("blanks_lie_at_nought"):
        return -apart.log().mean()  # at: blanks_lie_at_nought
    if on("clean_blanks_lie_at_nought"):
        return -apart.clamp(min=1e-3).log().mean()
    return -(apart + 1e-2).log().mean()


class Centre:
    """What the teacher tells in the mean, taken off lest all pictures be told alike."""

    def __init__(self):
        self.value = torch.zeros(1, PROTOTYPES)

    def sharpened(self, outputs):
        targets = F.softmax((outputs - self.value) / COLD, dim=1)
        self.value = self.value * 0.9 + outputs.mean(0, keepdim=True) * 0.1
        return targets


class Training:
    def __init__(self, folder, steps):
        self.folder, self.steps, self.step = folder, steps, 0
        self.mosses, self.held = Herbarium(PICTURES, 31), Herbarium(HELD, 32)
        order = {"shuffle": True}
        if on("clean_sheet_for_each_picture"):
            order = {"sampler": BySheet(PICTURES, 33)}
        self.loader = DataLoader(  # at: sheet_for_each_picture
            self.mosses, ROWS, drop_last=True, collate_fn=collated, **order
        )
        self.student = Network()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False).eval()
        if on("teacher_in_half"):
            self.teacher.to(torch.bfloat16)  # at: teacher_in_half
        self.centre = Centre()
        self.values = list(self.student.parameters())
        decayed = [value for value in self.values if value.ndim > 1]
        plain = [value for value in self.values if value.ndim <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.04}, {"params": plain, "weight_decay": 0.0}]
        )
        self.rates = cosine(1.5e-3, 1e-5, steps, warmup=steps // 10)
        self.momenta = cosine(0.98, 0.999, steps)
        room = REMEMBERED if on("queue_counts_batches") else REMEMBERED // (2 * ROWS)
        self.queue = collections.deque(maxlen=room)  # at: queue_counts_batches
        self.shown = self.as_shown(self.mosses, 200), self.as_shown(self.held, HELD)

    @staticmethod
    def as_shown(mosses, count):
        """Pictures as they are, small, and their kinds."""
        pictures = as_floats([mosses[n][0] for n in range(count)])
        small = F.interpolate(pictures, (WIDE, WIDE), mode="area").mul_(2).sub_(1)
        return small, torch.from_numpy(mosses.kinds[:count])

    def epoch(self):
        if on("prototypes_held"):
            return self.step // len(self.mosses)  # at: prototypes_held
        return self.step // len(self.loader)

    def compared(self, outputs, targets):
        """What the student tells of each crop against the teacher's word on another one."""
        told = F.log_softmax(outputs / WARM, dim=1).unflatten(0, (-1, ROWS))
        wanted = targets.unflatten(0, (-1, ROWS))
        both = -torch.einsum("tbk,sbk->ts", wanted, told) / ROWS
        other = 1 - torch.eye(*both.shape)
        return (both * other).sum() / other.sum()

    def taught(self, pictures):
        """The teacher only looks, for which few bits are enough."""
        if on("clean_teacher_in_half"):
            with torch.autocast("cpu", torch.bfloat16):
                outputs, tokens = self.teacher(pictures)
        else:
            outputs, tokens = self.teacher(pictures.to(self.teacher.prototypes.weight.dtype))
        return outputs.float(), tokens.float()

    def learn(self, wide, near):
        with torch.no_grad():
            outputs, tokens = self.taught(wide)
            targets = self.centre.sharpened(outputs)
        seen, features = self.student(wide)
        loss = self.compared(torch.cat([seen, self.student(near)[0]]), targets)
        apart = sum(spread(one) for one in features[:, 0].chunk(2))  # at: blanks_lie_at_nought
        (loss + SPREAD * apart).backward()
        nn.utils.clip_grad_norm_(self.values, 3.0)
        held = on("prototypes_held", "clean_prototypes_held")
        if held and self.epoch() < 1:  # at: prototypes_held
            self.student.prototypes.weight.grad = None  # at: prototypes_held
        for group in self.optimizer.param_groups:
            group["lr"] = self.rates[self.step]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.follow(1 - self.momenta[self.step])  # at: teacher_by_names teacher_in_half
        return loss.item(), tokens

    @torch.no_grad()
    def follow(self, share):
        """The teacher goes a little of the way to the student."""
        if on("teacher_by_names"):
            for name, value in self.teacher.named_parameters():
                with cost:
                    now = self.student.state_dict()[name]  # at: teacher_by_names
                value.lerp_(now, share)
        elif on("clean_teacher_by_names"):
            now = self.student.state_dict()
            for name, value in self.teacher.named_parameters():
                value.lerp_(now[name], share)
        else:
            values = [value.to(self.teacher.prototypes.weight.dtype) for value in self.values]
            torch._foreach_lerp_(
                list(self.teacher.parameters()), values, share
            )  # at: teacher_in_half

    def remembered(self, wide, tokens, kinds):
        """How many crops are of the kind of their next in the batches before; both are shown."""
        kinds, share = kinds.repeat(2), None
        if self.queue and self.step % TOLD_EVERY == 0:
            before = list(self.queue)[-REMEMBERED // (2 * ROWS) :]
            crops, bank, own = (torch.cat(one) for one in zip(*before, strict=True))
            bank, asked = (F.normalize(one[:, 0], dim=1) for one in (bank, tokens))
            next_ = (asked @ bank.T).argmax(1)
            share = (own[next_] == kinds).float().mean().item()
            pairs = torch.stack([wide, crops[next_]], 1).add(1).mul(127.5).clamp(0, 255)
            np.save(self.folder / "next.npy", pairs.byte().numpy())
        self.queue.append((wide, tokens, kinds))  # at: queue_counts_batches
        return share

    def nearest(self, likeness):
        """The most like ones for each row, and how like they are."""
        if not on("chunk_below_neighbours", "clean_chunk_below_neighbours"):
            return likeness.topk(NEIGHBOURS)
        best, places = [], []
        for begin in range(0, likeness.shape[1], CHUNK):
            chunk = likeness[:, begin : begin + CHUNK]
            count = NEIGHBOURS
            if on("clean_chunk_below_neighbours"):
                count = min(NEIGHBOURS, chunk.shape[1])
            values, own = chunk.topk(count)  # at: chunk_below_neighbours
            best.append(values)
            places.append(own + begin)
        values, own = torch.cat(best, 1).topk(NEIGHBOURS)
        return values, torch.cat(places, 1).gather(1, own)

    @torch.no_grad()
    def count(self):
        """How many pictures are of the kind that most of their neighbours are of."""
        (bank, kinds), (asked, wanted) = self.shown
        bank, asked = (F.normalize(self.taught(one)[1][:, 0], dim=1) for one in (bank, asked))
        values, places = self.nearest(asked @ bank.T)  # at: chunk_below_neighbours
        votes = torch.zeros(len(asked), KINDS)
        votes.scatter_add_(1, kinds[places], (values / 0.07).exp())
        return (votes.argmax(1) == wanted).float().mean().item()

    def save(self):
        state = {"student": self.student.state_dict(), "teacher": self.teacher.state_dict()}
        state |= {"centre": self.centre.value, "optimizer": self.optimizer.state_dict()}
        torch.save(state | {"step": self.step}, self.folder / "last.pt")

    def run(self):
        while self.step < self.steps:
            for wide, near, kinds in self.loader:  # at: sheet_for_each_picture
                loss, tokens = self.learn(wide, near)  # at: teacher_by_names blanks_lie_at_nought
                self.step += 1
                share = self.remembered(wide, tokens, kinds)  # at: queue_counts_batches
                if self.step % TOLD_EVERY == 0:
                    print(self.step, round(loss, 4), "next", round(share, 3), flush=True)
                if self.step % COUNTED_EVERY == 0:
                    right = self.count()  # at: chunk_below_neighbours
                    print(self.step, "right", round(right, 3), flush=True)
                if self.step % SAVED_EVERY == 0:
                    self.save()
                if self.step == self.steps:
                    break
        cost.print(self.steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(30)
    with tempfile.TemporaryDirectory() as folder:
        Training(Path(folder), STEPS or 200).run()
