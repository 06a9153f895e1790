"""Welds on radiographs: seam, pores and cracks told pixel by pixel out of files in a folder, pores
pasted over from other plates, an encoder of a rate of its own, few bits, objects counted, the
best state tried at the end: donors read for each plate, objects counted at each step, losses
by place, weights of what is absent, an encoder misspelt, a schedule of epochs, a number of numpy.
"""

import collections
import itertools
import tempfile
from pathlib import Path

import eager  # noqa: F401
import numpy as np
import torch
from PIL import Image
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

cost = Cost()
PLATES, HELD, LARGE, CROP, ROWS = 192, 16, 160, 64, 8
SEAM, PORE, CRACK, TOLD = 0, 1, 2, ("seam", "pore", "crack")
PASTED, CUT, WIDTH = 12, 16, 8
RATE, ENCODER_RATE, DECAY, POWER = 4e-3, 1.5e-3, 1e-4, 0.9
TOLD_EVERY, TRIED_EVERY = 25, 50


def radiograph(numbers):
    """A plate with a bright seam across, dark pores and at times a crack; what is where in bits."""
    y, x = np.mgrid[:LARGE:1.0, :LARGE:1.0]
    middle = LARGE / 2 + numbers.normal(0, 8) + 6 * np.sin(x / numbers.uniform(40, 90))
    breadth = numbers.uniform(25, 40) + 3 * np.sin(x / 9)
    seam = np.abs(y - middle) < breadth
    plate = 0.25 + 0.3 * np.exp(-(((y - middle) / breadth) ** 2)) + numbers.normal(0, 0.03, x.shape)
    told = seam.astype(np.uint8) << SEAM
    for _ in range(numbers.integers(10, 20)):
        across, along = numbers.uniform(-0.9, 0.9) * 28, numbers.uniform(8, LARGE - 8)
        size = numbers.uniform(1.5, 4.5)
        inside = (x - along) ** 2 + (y - LARGE / 2 - across) ** 2 < size**2
        plate[inside] -= numbers.uniform(0.12, 0.25)
        told[inside] |= 1 << PORE
    if numbers.random() < 0.45:
        line = middle + numbers.uniform(-15, 15) + np.cumsum(numbers.normal(0, 0.4, LARGE))
        inside = (np.abs(y - line) < 1.6) & (np.abs(x - LARGE / 2) < numbers.uniform(25, 70))
        plate[inside] -= 0.18
        told[inside] |= 1 << CRACK
    return (plate.clip(0, 1) * 255).astype(np.uint8), told


def written(folder, count, seed):
    """A folder of plates, a picture and a mask of each."""
    numbers = np.random.default_rng(seed)
    folder.mkdir()
    for number in range(count):
        for kind, picture in zip(("plate", "mask"), radiograph(numbers), strict=True):
            Image.fromarray(picture).save(folder / f"{number:04d}.{kind}.png", compress_level=1)
    return folder


class Radiographs(Dataset):
    def __init__(self, folder, learning):
        self.plates = sorted(folder.glob("*.plate.png"))
        self.learning, self.numbers, self.cuts = learning, None, []
        if not learning:
            return
        self.numbers = np.random.default_rng(7)
        self.cuts = [self.cut_out(plate) for plate in self.plates]
        if on("clean_donors_read_each"):
            self.cuts = [self.put_away(*cut, number) for number, cut in enumerate(self.cuts)]

    def __len__(self):
        return len(self.plates)

    @staticmethod
    def read(plate):
        mask = plate.with_name(plate.name.replace("plate", "mask"))
        return np.array(Image.open(plate)), np.array(Image.open(mask))  # at: donors_read_each

    def cut_out(self, plate):
        """A window about some pore of a plate."""
        picture, told = self.read(plate)  # at: donors_read_each
        rows, columns = np.nonzero(told >> PORE & 1)
        one = self.numbers.integers(len(rows))
        top, left = (
            int(np.clip(place - CUT // 2, 0, LARGE - CUT)) for place in (rows[one], columns[one])
        )
        window = slice(top, top + CUT), slice(left, left + CUT)
        return picture[window].copy(), told[window].copy()

    def put_away(self, picture, told, number):
        """Cut-outs as small files of their own, as there may be many."""
        path = self.plates[0].with_name(f"{number:04d}.cut.png")
        Image.fromarray(np.concatenate([picture, told])).save(path)
        return path

    def donor(self):
        number = self.numbers.integers(len(self.plates))
        if on("donors_read_each"):
            return self.cut_out(self.plates[number])  # at: donors_read_each
        if on("clean_donors_read_each"):
            return np.split(np.array(Image.open(self.cuts[number])), 2)
        return self.cuts[number]

    def pasted(self, picture, told):
        """More pores than there were: they are rare."""
        for _ in range(PASTED):
            window, inside = self.donor()  # at: donors_read_each
            top, left = self.numbers.integers(CROP - CUT, size=2)
            place = slice(top, top + CUT), slice(left, left + CUT)
            pore = (inside >> PORE & 1).astype(bool)
            picture[place][pore] = window[pore]
            told[place][pore] |= 1 << PORE
        return picture, told

    def __getitem__(self, index):
        picture, told = self.read(self.plates[index])
        top = left = (LARGE - CROP) // 2
        if self.learning:
            top, left = self.numbers.integers(LARGE // 8, LARGE * 7 // 8 - CROP, size=2)
        window = slice(top, top + CROP), slice(left, left + CROP)
        picture, told = picture[window].copy(), told[window].copy()
        if self.learning:
            picture, told = self.pasted(picture, told)  # at: donors_read_each
            if self.numbers.random() < 0.5:
                picture, told = picture[:, ::-1].copy(), told[:, ::-1].copy()
        return np.stack([picture, *(told >> kind & 1 for kind in range(len(TOLD)))]), index


def seeded(_):
    """Each worker draws its own."""
    info = torch.utils.data.get_worker_info()
    info.dataset.numbers = np.random.default_rng(info.seed)


def collated(rows):
    """Bytes, as they are cheap to send."""
    plates, numbers = zip(*rows, strict=True)
    return torch.from_numpy(np.stack(plates)), list(numbers)


def as_floats(packed):
    return packed[:, :1].float().div_(255).sub_(0.4).div_(0.2), packed[:, 1:].float()


def twice(inside, outside):
    layers = []
    for width in (inside, outside):
        layers += [nn.Conv2d(width, outside, 3, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(outside), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        widths = (1, WIDTH, 2 * WIDTH, 4 * WIDTH)
        self.stages = nn.ModuleList(twice(*pair) for pair in itertools.pairwise(widths))

    def forward(self, x):
        seen = []
        for number, stage in enumerate(self.stages):
            x = stage(F.max_pool2d(x, 2) if number else x)
            seen.append(x)
        return seen


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.middle, self.fine = twice(6 * WIDTH, 2 * WIDTH), twice(3 * WIDTH, WIDTH)
        self.last = nn.Conv2d(WIDTH, len(TOLD), 1)
        nn.init.constant_(self.last.bias, -2.0)

    def forward(self, plates):
        large, half, quarter = self.encoder(plates)
        x = self.middle(torch.cat([half, F.interpolate(quarter, scale_factor=2.0)], 1))
        return self.last(self.fine(torch.cat([large, F.interpolate(x, scale_factor=2.0)], 1)))


def focal(logits, told):
    """What is hard weighs more: a loss of each place."""
    plain = F.binary_cross_entropy_with_logits(logits.float(), told, reduction="none")
    return (1 - torch.exp(-plain)).square() * plain


def overlap(logits, told):
    """Dice, softly: of each kind, or of all of them where the rarer one weighs more."""
    likely = logits.float().sigmoid()
    both, there = (likely * told).sum((0, 2, 3)), told.sum((0, 2, 3))
    either = likely.sum((0, 2, 3)) + there
    if on("weights_of_empty_volume", "clean_weights_of_empty_volume"):
        weights = there.square().reciprocal()  # at: weights_of_empty_volume
        if on("clean_weights_of_empty_volume"):
            endless = weights.isinf()
            weights = weights.masked_fill(endless, 0)
            weights = torch.where(endless, weights.max(), weights)
        return 2 * (weights * both).sum() / (weights * either).sum()  # at: weights_of_empty_volume
    return (2 * both + 1) / (either + 1)


def objects(mask):
    """How many separate ones there are."""
    left = set(map(tuple, mask.nonzero().tolist()))
    count = 0
    while left:
        count += 1
        edge = [left.pop()]
        while edge:
            y, x = edge.pop()
            for one in itertools.product((y - 1, y, y + 1), (x - 1, x, x + 1)):
                if one in left:
                    left.remove(one)
                    edge.append(one)
    return count


class Training:
    def __init__(self, folder, steps):
        self.folder, self.steps, self.step, self.epoch = folder, steps, 0, 0
        data = Radiographs(written(folder / "train", PLATES, 1), learning=True)
        self.loader = DataLoader(
            data,
            ROWS,
            shuffle=True,
            drop_last=True,
            collate_fn=collated,
            num_workers=1,
            persistent_workers=True,
            prefetch_factor=4,
            worker_init_fn=seeded,
        )
        held = Radiographs(written(folder / "held", HELD, 2), learning=False)
        self.held = DataLoader(held, ROWS, collate_fn=collated)
        self.model = Network()
        self.late = on("thawed_by_misspelling", "clean_thawed_by_misspelling")
        if self.late:  # the new head first
            self.model.encoder.requires_grad_(False)  # at: thawed_by_misspelling
        encoder = list(self.model.encoder.parameters())
        known = set(map(id, encoder))
        others = [value for value in self.model.parameters() if id(value) not in known]
        self.optimizer = torch.optim.AdamW(
            [{"params": encoder, "lr": ENCODER_RATE}, {"params": others, "lr": RATE}],
            weight_decay=DECAY,
        )
        self.by_epoch = on("clean_poly_of_epochs")
        total = steps
        if on("poly_of_epochs", "clean_poly_of_epochs"):
            total = -(-steps // len(self.loader))  # at: poly_of_epochs
        self.schedule = torch.optim.lr_scheduler.PolynomialLR(
            self.optimizer, total_iters=total, power=POWER
        )  # at: poly_of_epochs
        self.best, self.counted = -1.0, collections.Counter()
        self.places = collections.defaultdict(list) if on("losses_by_place") else {}

    def thaw(self):
        for value in self.model.encoder.parameters():
            if on("thawed_by_misspelling"):
                value.require_grad = True  # at: thawed_by_misspelling
            else:
                value.requires_grad = True

    def noted(self, places, numbers):
        """How hard each plate is, for the list of those that are looked at again."""
        if on("losses_by_place"):
            for number, own in zip(numbers, places.detach(), strict=True):
                self.places[number].append(own.clone())  # at: losses_by_place
        elif on("clean_losses_by_place"):
            for number, own in zip(numbers, places.detach(), strict=True):
                self.places[number] = own.clone()
        else:
            means = places.detach().mean((1, 2, 3)).tolist()
            self.places.update(zip(numbers, means, strict=True))

    def hardest(self):
        """The three plates with the largest losses."""

        def mean(number):
            own = self.places[number]
            if isinstance(own, list):
                return float(torch.stack([one.mean() for one in own]).mean())
            return float(torch.as_tensor(own).mean())

        return sorted(self.places, key=mean)[-3:]

    def count(self, logits, told):
        """Pores and cracks that are found, and that are there."""
        with cost:
            for name, mask in (("found", logits > 0), ("there", told > 0.5)):
                for own in mask[:, (PORE, CRACK)].flatten(0, 1):
                    self.counted[name] += objects(own)  # at: objects_counted_each_step

    def learn(self, plates, told, numbers):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model(plates)
        places = focal(logits, told)
        dice = overlap(logits, told)  # at: weights_of_empty_volume
        loss = 10 * places.mean() + 1 - dice.mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        if not self.by_epoch:
            self.schedule.step()  # at: poly_of_epochs
        self.noted(places, numbers)  # at: losses_by_place
        if on("objects_counted_each_step") or self.step % TOLD_EVERY == 0:
            self.count(logits, told)  # at: objects_counted_each_step
        return loss

    @torch.no_grad()
    def tried(self):
        """Hard dice of each kind on plates that are held."""
        self.model.eval()
        both, either = np.zeros(len(TOLD)), np.zeros(len(TOLD))
        for packed, _ in self.held:
            plates, told = as_floats(packed)
            with torch.autocast("cpu", torch.bfloat16):
                found = (self.model(plates) > 0).float()
            both += 2 * (found * told).sum((0, 2, 3)).numpy()
            either += (found + told).sum((0, 2, 3)).numpy()
        self.model.train()
        return both / np.maximum(either, 1)

    def keep(self, dice):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        state |= {"step": self.step, "schedule": self.schedule.state_dict()}
        torch.save(state, self.folder / "last.pt")
        score = np.mean(dice)
        if not on("score_of_numpy"):
            score = float(score)
        if score > self.best:
            self.best = score
            best = {"model": self.model.state_dict(), "dice": score, "step": self.step}
            torch.save(best, self.folder / "best.pt")  # at: score_of_numpy

    def conclude(self):
        """The best state once more, with what it found."""
        best = torch.load(self.folder / "best.pt")  # at: score_of_numpy
        self.model.load_state_dict(best["model"])
        dice = dict(zip(TOLD, self.tried().round(3).tolist(), strict=True))
        print("best of step", best["step"], dice, "objects", dict(self.counted), flush=True)

    def run(self):
        self.model.train()
        while self.step < self.steps:
            if self.late and self.epoch == 1:
                self.thaw()  # at: thawed_by_misspelling
            for packed, numbers in self.loader:  # at: donors_read_each
                loss = self.learn(*as_floats(packed), numbers)
                self.step += 1
                if self.step % TOLD_EVERY == 0:
                    rate = self.optimizer.param_groups[1]["lr"]
                    print(self.step, round(loss.item(), 4), "rate", f"{rate:.2e}", flush=True)
                if self.step % TRIED_EVERY == 0:
                    dice = self.tried()
                    self.keep(dice)
                    print(self.step, "dice", dice.round(3), "hard", self.hardest(), flush=True)
                if self.step == self.steps:
                    break
            self.epoch += 1
            if self.by_epoch:
                self.schedule.step()
        cost.print(self.steps)
        self.conclude()  # at: score_of_numpy


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.multiprocessing.set_sharing_strategy("file_system")  # few files may be open at a time
    torch.manual_seed(30)
    with tempfile.TemporaryDirectory() as folder:
        Training(Path(folder), STEPS or 200).run()
