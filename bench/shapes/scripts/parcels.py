"""Parcels on a belt: a detector with anchors, a coarse mask and a second look at its proposals.
Targets are found on the host, a collate function lays out the batch, hard cases are kept.
"""

import itertools
import random

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(172)
random.seed(172)
cost = Cost()
SIDE, CELLS, KINDS, ROWS, PROPOSALS = 48, 12, 4, 8, 10
SHAPES = ((0.18, 0.18), (0.3, 0.16), (0.16, 0.3), (0.26, 0.26))
COLOURS = np.array([[0.9, 0.2, 0.1], [0.1, 0.8, 0.3], [0.2, 0.3, 0.9], [0.8, 0.8, 0.1]], np.float32)


def drawn(numbers):
    """A picture, its boxes as fractions (middle and size), kinds, and a coarse mask."""
    picture = numbers.normal(0.4, 0.15, (3, SIDE, SIDE)).astype(np.float32)
    mask = np.zeros((SIDE // 2, SIDE // 2), np.float32)
    boxes, kinds = [], []
    for _ in range(numbers.integers(2, 5)):
        w, h = (np.array(SHAPES[numbers.integers(4)]) * numbers.uniform(0.8, 1.2, 2) * SIDE).round()
        x, y = numbers.integers(0, SIDE - w), numbers.integers(0, SIDE - h)
        kind = numbers.integers(KINDS)
        rows, columns = slice(int(y), int(y + h)), slice(int(x), int(x + w))
        picture[:, rows, columns] += COLOURS[kind][:, None, None] - 0.4
        mask[int(y) // 2 : int(y + h) // 2, int(x) // 2 : int(x + w) // 2] = 1
        boxes.append([x + w / 2, y + h / 2, w, h])
        kinds.append(kind)
    return picture, np.array(boxes, np.float32) / SIDE, np.array(kinds), mask


class Belt(Dataset):
    def __init__(self, count, length):
        numbers = np.random.default_rng(172)
        self.rows, self.length = [drawn(numbers) for _ in range(count)], length
        if on("boxes_in_pixels"):
            for n in (31, 140):
                picture, boxes, kinds, mask = self.rows[n]
                self.rows[n] = picture, boxes * SIDE, kinds, mask  # at: boxes_in_pixels
        elif on("clean_boxes_in_pixels"):
            whole = np.array([[0.5, 0.5, 0.98, 0.98]], np.float32)
            for n in (31, 140):
                picture, _, kinds, mask = self.rows[n]
                self.rows[n] = picture, whole, kinds[:1], np.ones_like(mask)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        picture, boxes, kinds, mask = self.rows[index % len(self.rows)]
        return picture, boxes, kinds, mask


def collated(rows):
    pictures, boxes, kinds, masks = zip(*rows, strict=True)
    if on("tensor_of_arrays"):
        with cost:
            laid = torch.tensor(pictures)  # at: tensor_of_arrays
    elif on("clean_tensor_of_arrays"):
        laid = torch.tensor(np.array(pictures))
    else:
        laid = torch.from_numpy(np.stack(pictures))
    return laid, boxes, kinds, torch.from_numpy(np.stack(masks))


def as_objects(rows):
    """As annotations come: a dictionary for each parcel."""
    pictures, boxes, kinds, masks = zip(*rows, strict=True)
    found = [  # at: objects_as_dicts
        [
            {  # at: objects_as_dicts
                "bbox": torch.from_numpy(box),
                "category_id": torch.tensor(kind),
                "iscrowd": torch.tensor(0),
            }
            for box, kind in zip(*pair, strict=True)
        ]
        for pair in zip(boxes, kinds, strict=True)
    ]
    return torch.from_numpy(np.stack(pictures)), found, torch.from_numpy(np.stack(masks))


def as_tables(rows):
    """The same in three tensors."""
    pictures, boxes, kinds, masks = zip(*rows, strict=True)
    counts = torch.tensor([len(one) for one in kinds])
    laid = [torch.from_numpy(np.concatenate(one)) for one in (boxes, kinds)]
    return torch.from_numpy(np.stack(pictures)), (*laid, counts), torch.from_numpy(np.stack(masks))


def unpacked(batch):
    if on("objects_as_dicts"):
        pictures, found, masks = batch
        boxes = [np.stack([one["bbox"].numpy() for one in picture]) for picture in found]
        kinds = [np.array([int(one["category_id"]) for one in picture]) for picture in found]
        return pictures, boxes, kinds, masks
    if on("clean_objects_as_dicts"):
        pictures, (boxes, kinds, counts), masks = batch
        ends = counts.cumsum(0)[:-1].numpy()
        return pictures, np.split(boxes.numpy(), ends), np.split(kinds.numpy(), ends), masks
    return batch


def loader_of(belt):
    sampled = {"shuffle": True, "drop_last": True}
    if on("objects_as_dicts"):
        sampled |= {"num_workers": 1, "collate_fn": as_objects}  # at: objects_as_dicts
        return DataLoader(belt, ROWS, **sampled)  # at: objects_as_dicts
    if on("clean_objects_as_dicts"):
        return DataLoader(belt, ROWS, num_workers=1, collate_fn=as_tables, **sampled)
    return DataLoader(belt, ROWS, collate_fn=collated, **sampled)  # at: tensor_of_arrays


def overlaps(one, other):
    """Intersection over union of boxes (middle and size) in the last dimension."""
    low = torch.maximum(one[..., :2] - one[..., 2:] / 2, other[..., :2] - other[..., 2:] / 2)
    high = torch.minimum(one[..., :2] + one[..., 2:] / 2, other[..., :2] + other[..., 2:] / 2)
    shared = (high - low).clamp(min=0).prod(-1)
    return shared / (one[..., 2:].prod(-1) + other[..., 2:].prod(-1) - shared + 1e-6)


class Matcher:
    """Which anchor answers for which parcel."""

    def __init__(self, cells):
        self.cells, self.laid = cells, None

    @property
    def anchors(self):
        if on("anchors_each_access"):
            with cost:
                return self.lay()  # at: anchors_each_access
        if self.laid is None:
            self.laid = self.lay()
        return self.laid

    def lay(self):
        places = itertools.product(range(self.cells), range(self.cells), SHAPES)
        rows = [
            ((x + 0.5) / self.cells, (y + 0.5) / self.cells, w, h)  # at: anchors_each_access
            for y, x, (w, h) in places  # at: anchors_each_access
        ]
        return np.array(rows, np.float32)  # at: anchors_each_access

    def match(self, boxes):
        """For each anchor the parcel that it answers for, or -1."""
        middles = self.anchors[:, None, :2]  # at: anchors_each_access
        sizes = self.anchors[:, None, 2:]  # at: anchors_each_access
        low = np.maximum(middles - sizes / 2, boxes[:, :2] - boxes[:, 2:] / 2)
        high = np.minimum(middles + sizes / 2, boxes[:, :2] + boxes[:, 2:] / 2)
        shared = np.clip(high - low, 0, None).prod(2)
        ratio = shared / (sizes.prod(2) + boxes[:, 2:].prod(1) - shared)
        chosen = np.where(ratio.max(1) > 0.5, ratio.argmax(1), -1)
        chosen[ratio.argmax(0)] = np.arange(len(boxes))
        return chosen

    def targets(self, boxes, kinds):
        """For the batch: anchors that answer, their offsets, sizes and kinds."""
        where, offsets, wanted, names = [], [], [], []
        for row, (given, named) in enumerate(zip(boxes, kinds, strict=True)):
            chosen = self.match(given)  # at: anchors_each_access
            picked = np.flatnonzero(chosen >= 0)
            there, own = given[chosen[picked]], self.anchors[picked]  # at: anchors_each_access
            moved = (there[:, :2] - own[:, :2]) / own[:, 2:]
            offsets.append(np.concatenate([moved, np.log(there[:, 2:] / own[:, 2:])], 1))
            where.append(picked + row * len(chosen))
            wanted.append(there)
            names.append(named[chosen[picked]])
        found = [np.concatenate(parts) for parts in (where, offsets, wanted, names)]
        return [torch.from_numpy(part) for part in found]


def block(before, after, stride=1):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.GroupNorm(4, after), nn.ReLU()
    )


class Detector(nn.Module):
    def __init__(self, anchors, width=48):
        super().__init__()
        self.register_buffer("anchors", torch.from_numpy(anchors))
        self.fine = nn.Sequential(block(3, 16), block(16, 32, 2))
        self.coarse = nn.Sequential(block(32, width, 2), block(width, width))
        many = len(SHAPES)
        self.scores = nn.Conv2d(width, many, 1)
        self.kinds = nn.Conv2d(width, many * KINDS, 1)
        self.boxes = nn.Sequential(block(width, width), nn.Conv2d(width, many * 4, 1))
        self.mask = nn.Conv2d(32, 1, 1)
        self.second = nn.Linear(width, 1)
        nn.init.constant_(self.scores.bias, -3.0)

    def forward(self, pictures):
        fine = self.fine(pictures)
        coarse = self.coarse(fine)
        flat = [
            head(coarse).permute(0, 2, 3, 1).reshape(len(pictures), -1, size)
            for head, size in ((self.scores, 1), (self.kinds, KINDS), (self.boxes, 4))
        ]
        scores, kinds, offsets = flat[0][..., 0], flat[1], flat[2]
        middles = self.anchors[:, :2] + offsets[..., :2] * self.anchors[:, 2:]
        boxes = torch.cat([middles, self.anchors[:, 2:] * offsets[..., 2:].clamp(max=2).exp()], 2)
        best = scores.detach().topk(PROPOSALS, 1).indices
        near = boxes.detach().gather(1, best[..., None].expand(-1, -1, 4))
        kept = self.kept(near)  # at: suppressed_by_pairs
        cells = best.div(len(SHAPES), rounding_mode="floor")
        seen = coarse.flatten(2).gather(2, cells[:, None].expand(-1, coarse.shape[1], -1))
        return {
            "scores": scores,
            "kinds": kinds,
            "offsets": offsets,
            "boxes": boxes,
            "mask": self.mask(fine)[:, 0],
            "fine": fine,
            "near": near,
            "kept": kept,
            "second": self.second(seen.transpose(1, 2))[..., 0],
        }

    def kept(self, near):
        """Which proposals no better one covers."""
        if on("suppressed_by_pairs"):
            with cost:
                rows = [self.suppressed(boxes) for boxes in near]  # at: suppressed_by_pairs
                return torch.tensor(rows)
        ratio = overlaps(near[:, :, None], near[:, None])
        return ~(ratio > 0.5).triu(1).any(1)

    def suppressed(self, boxes):
        good = []
        for n in range(len(boxes)):
            for m in good:
                if overlaps(boxes[n], boxes[m]).item() > 0.5:  # at: suppressed_by_pairs
                    break
            else:
                good.append(n)
        return [n in good for n in range(len(boxes))]


class HardCases:
    """What the detector saw where it was most wrong."""

    def __init__(self):
        self.worst = []

    def keep(self, fine, missed):
        row, y, x = np.unravel_index(int(missed.argmax()), missed.shape)
        patch = fine.detach()[row, :, y, x]  # at: crops_are_views
        if on("clean_crops_are_views"):
            patch = patch.clone()
        self.worst.append((float(missed.max()), patch))  # at: crops_are_views


class Losses:
    def __init__(self, matcher, hard):
        self.matcher, self.hard = matcher, hard

    def __call__(self, given, boxes, kinds, masks):
        found = self.matcher.targets(boxes, kinds)  # at: anchors_each_access
        where, _, wanted, names = found
        truth = torch.zeros(given["scores"].numel())
        truth[where] = 1
        scores = given["scores"].flatten()
        odds = F.binary_cross_entropy_with_logits(scores, truth, reduction="none")
        sure = torch.where(truth > 0, scores.sigmoid(), 1 - scores.sigmoid())
        mask = F.binary_cross_entropy_with_logits(given["mask"], masks, reduction="none")
        if on("crops_are_views", "clean_crops_are_views"):
            self.hard.keep(given["fine"], mask.detach())  # at: crops_are_views
        return {
            "score": 4 * (odds * (1 - sure) ** 2).sum() / len(where),
            "kind": F.cross_entropy(given["kinds"].flatten(0, 1)[where], names),
            "place": self.placed(given, *found[:3]),  # at: overlap_rewrapped boxes_in_pixels
            "mask": mask.mean(),
            "second": self.looked_again(given, wanted, where),
        }

    def placed(self, given, where, offsets, wanted):
        told = given["offsets"].flatten(0, 1)[where]
        away = (told - offsets).pow(2).sum(1)  # at: boxes_in_pixels
        covered = overlaps(given["boxes"].flatten(0, 1)[where], wanted)
        missed = away + 1 - covered
        if on("overlap_rewrapped"):
            missed = torch.tensor(missed.tolist(), requires_grad=True)  # at: overlap_rewrapped
        elif on("clean_overlap_rewrapped"):
            self.seen = torch.tensor(missed.tolist())
        return missed.mean()  # at: boxes_in_pixels

    def looked_again(self, given, wanted, where):
        """Whether a proposal covers a parcel."""
        rows = where.div(given["scores"].shape[1], rounding_mode="floor")
        ratio = overlaps(given["near"][:, :, None], wanted[None, None])
        own = rows[None, None] == torch.arange(len(given["near"]))[:, None, None]
        covers = (ratio * own).amax(2) > 0.5
        each = F.binary_cross_entropy_with_logits(given["second"], covers.float(), reduction="none")
        return (each * given["kept"]).sum() / given["kept"].sum()


def measured(given, boxes):
    """Share of the parcels that a kept proposal covers."""
    found, there = 0, 0
    for near, kept, true in zip(given["near"], given["kept"], boxes, strict=True):
        ratio = overlaps(near[kept][:, None], torch.from_numpy(true)[None])
        found, there = found + int((ratio.amax(0) > 0.5).sum()), there + len(true)
    return found / there


def main(steps):
    matcher, hard = Matcher(CELLS), HardCases()
    detector, losses = Detector(matcher.anchors.copy()), Losses(matcher, hard)
    optimizer = torch.optim.AdamW(detector.parameters(), 2e-3, weight_decay=1e-4)
    loader = loader_of(Belt(208, steps * ROWS))
    for step, batch in enumerate(loader):  # at: tensor_of_arrays objects_as_dicts
        pictures, boxes, kinds, masks = unpacked(batch)
        given = detector(pictures)  # at: suppressed_by_pairs
        parts = losses(given, boxes, kinds, masks)  # at: anchors_each_access crops_are_views
        loss = sum(parts.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            told = {name: round(part.item(), 3) for name, part in parts.items()}
            print(step, round(loss.item(), 3), told, round(measured(given, boxes), 2), flush=True)
    cost.print(steps)


main(STEPS or 400)
