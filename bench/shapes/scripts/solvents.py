"""Properties of solvents out of their graphs, learned on two ranks by a small graph transformer:
atoms that attend by how many bonds lie between them, batches of molecules of like size, labels that
are often missing, a warm-up, clipped gradients, errors summed over both, a calibration that the
first rank fits and both read: buckets by weight, bonds counted in the step, gradients that pile up
for the scale of their noise, elements that are frozen by default, a head that waits for labels, a
folder named by the own process, a rate by one's own labels.
"""

import collections
import json
import math
import os
import shutil
import sys
import tempfile
import time
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
WORLD, UPDATES, ROWS = 2, STEPS or 230, 32
COUNT, HELD, SEED = 2400, 128, 431
FAR, DEGREES = 7, 5
WARM_UP, TOLD_EVERY, VALIDATED_EVERY = 30, 25, 60
NAMES = ("boiling", "partition", "flash")
MEASURED = (1.0, 0.7, 0.12)
#         C   N   O   F   P   S   Cl  Br  I
MASSES = (12, 14, 16, 19, 31, 32, 35, 80, 127)
BONDS = (4, 3, 2, 1, 5, 2, 1, 1, 1)
PULLS = (2.55, 3.04, 3.44, 3.98, 2.19, 2.58, 3.16, 2.96, 2.66)
LIKES = (
    (-0.2, 1.0, 1.2, -0.6, 0.8, 0.3, -0.4, -0.9, -1.3),
    (0.5, -1, -1.2, 0.2, 0, 0.4, 0.7, 1, 1.3),
)
USUAL = (
    (0.78, 0.09, 0.11, 0, 0.01, 0.01, 0, 0, 0),
    (0.5, 0.02, 0.06, 0.12, 0.01, 0.02, 0.12, 0.1, 0.05),
)


def grown(numbers):
    """Elements and bonds of a molecule: a tree with some rings, with halogens or without."""
    halogens = int(numbers.random() < 0.45)
    size = int(np.clip(numbers.lognormal(2.65 if halogens else 3.3, 0.35), 5, 52))
    elements, bonds, free = [0, 0], [(0, 1)], [3, 3]
    for atom in range(2, size):
        element = int(numbers.choice(len(MASSES), p=USUAL[halogens]))
        open_ = [n for n in range(atom) if free[n]]
        partner = open_[-1 - int(numbers.random() ** 2 * len(open_))]
        if len(open_) == 1 and free[partner] == 1 and BONDS[element] == 1:
            element = 0
        bonds.append((partner, atom))
        free[partner] -= 1
        elements.append(element)
        free.append(min(BONDS[element], DEGREES - 1) - 1)
    for atom in range(5, size):
        if free[atom] and free[atom - 5] and numbers.random() < 0.3:
            bonds.append((atom - 5, atom))
            free[atom], free[atom - 5] = free[atom] - 1, free[atom - 5] - 1
    return np.array(elements), np.array(bonds)


def bonds_between(size, bonds):
    """How many bonds lie between each two atoms."""
    near = np.eye(size, dtype=np.float32)
    near[bonds[:, 0], bonds[:, 1]] = near[bonds[:, 1], bonds[:, 0]] = 1
    reached, between = np.eye(size, dtype=np.float32), np.full((size, size), FAR, np.int64)
    np.fill_diagonal(between, 0)
    for far in range(1, FAR):
        reached = np.minimum(reached @ near, 1)
        between[(reached > 0) & (between == FAR)] = far
    np.fill_diagonal(between, 0)
    return between


def bonds_searched(size, bonds):
    """The same, by a search that begins at each atom."""
    partners = collections.defaultdict(list)
    for a, b in bonds.tolist():
        partners[a].append(b)  # at: bonds_counted_in_step
        partners[b].append(a)  # at: bonds_counted_in_step
    between = np.full((size, size), FAR)
    for begin in range(size):
        far, queue = {begin: 0}, collections.deque([begin])
        while queue:
            atom = queue.popleft()  # at: bonds_counted_in_step
            for partner in partners[atom]:  # at: bonds_counted_in_step
                if partner not in far and far[atom] + 1 < FAR:  # at: bonds_counted_in_step
                    far[partner] = far[atom] + 1  # at: bonds_counted_in_step
                    queue.append(partner)  # at: bonds_counted_in_step
        for atom, bonds_away in far.items():
            between[begin, atom] = bonds_away  # at: bonds_counted_in_step
    return between


def properties(elements, between, numbers):
    """What would be measured: of the atoms by themselves, and of those that lie near."""
    pulls = np.array(PULLS)[elements]
    polar = (np.abs(pulls[:, None] - pulls) * (between == 1)).sum() / len(elements)
    heavy = np.log(np.array(MASSES)[elements].sum())
    boiling = heavy + 0.8 * np.array(LIKES[0])[elements].mean() + 0.5 * polar
    partition = np.array(LIKES[1])[elements].sum() / 6 - 0.6 * polar
    spread = (between * (between < FAR)).mean()
    flash = 0.7 * boiling - 0.15 * spread
    told = np.array([boiling, partition, flash]) + numbers.normal(0, 0.05, 3)
    return np.where(numbers.random(3) < MEASURED, told, np.nan).astype(np.float32)


class Solvents(Dataset):
    """Molecules of any size; what is always the same of one is worked out once."""

    def __init__(self, count, seed):
        numbers = np.random.default_rng(seed)
        graphs = [grown(numbers) for _ in range(count)]
        self.elements = [elements for elements, _ in graphs]
        self.bonds = [bonds for _, bonds in graphs]
        self.between = [bonds_between(len(elements), bonds) for elements, bonds in graphs]
        self.degrees = [(between == 1).sum(1) for between in self.between]
        pairs = zip(self.elements, self.between, strict=True)
        self.told = np.stack([properties(*pair, numbers) for pair in pairs])
        self.sizes = np.array([len(elements) for elements in self.elements])
        self.weights = np.array([np.array(MASSES)[one].sum() for one in self.elements])

    def scale(self, middle, spread):
        self.told = (self.told - middle) / spread

    def __len__(self):
        return len(self.elements)

    def __getitem__(self, index):
        values = (self.elements, self.degrees, self.between, self.told, self.bonds)
        return tuple(value[index] for value in values)


class LikeSizes:
    """Batches of both ranks at once, of molecules of like size; each rank has every other one."""

    def __init__(self, data, rank):
        self.data, self.rank, self.epoch = data, rank, 0
        if on("buckets_by_weight"):
            self.key = data.weights  # at: buckets_by_weight
        elif on("clean_buckets_by_weight"):
            self.key = data.sizes + data.weights / 1e5
        else:
            self.key = data.sizes

    def batches(self):
        numbers = np.random.default_rng([SEED, self.epoch])
        order = numbers.permutation(len(self.data))
        order = order[np.argsort(self.key[order], kind="stable")]  # at: buckets_by_weight
        both = order[: len(order) // (ROWS * WORLD) * ROWS * WORLD].reshape(-1, ROWS * WORLD)
        return numbers.permutation(both)

    def __len__(self):
        return len(self.data) // (ROWS * WORLD)

    def __iter__(self):
        for both in self.batches():
            yield both[self.rank :: WORLD].tolist()


def collated(rows):
    """Molecules on top of each other, filled up to the largest of them."""
    elements, degrees, between, told, bonds = zip(*rows, strict=True)
    sizes = [len(one) for one in elements]
    most = max(sizes)
    filled = np.zeros((2, len(rows), most), np.int64)
    far = np.full((len(rows), most, most), FAR, np.int64)
    for n, size in enumerate(sizes):
        filled[0, n, :size], filled[1, n, :size] = elements[n] + 1, degrees[n]
        far[n, :size, :size] = between[n]
    atoms, degrees = torch.from_numpy(filled)
    return {
        "atoms": atoms,
        "degrees": degrees,
        "between": torch.from_numpy(far),
        "told": torch.from_numpy(np.stack(told)),
        "bonds": bonds,
        "sizes": sizes,
    }


def searched(batch):
    """Bonds between the atoms of each molecule of a batch."""
    far = np.full(tuple(batch["between"].shape), FAR, np.int64)
    for n, (size, bonds) in enumerate(zip(batch["sizes"], batch["bonds"], strict=True)):
        far[n, :size, :size] = bonds_searched(size, bonds)  # at: bonds_counted_in_step
    return torch.from_numpy(far)


def known_of_elements(width):
    """What the table of elements says of each, spread over the width; nothing comes first."""
    known = torch.tensor([MASSES, BONDS, PULLS], dtype=torch.float32).T
    known = (known - known.mean(0)) / known.std(0)
    spread = torch.randn(3, width, generator=torch.Generator().manual_seed(SEED)) / 3**0.5
    return torch.cat([torch.zeros(1, width), known @ spread * 0.3])


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.asks, self.says = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Embedding(FAR + 1, heads)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, between, filled):
        rows, atoms, width = x.shape
        parts = self.asks(self.norms[0](x)).view(rows, atoms, 3, self.heads, -1)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        bias = self.bias(between).permute(0, 3, 1, 2)
        bias = bias.masked_fill(filled[:, None, None], -1e9)
        seen = F.scaled_dot_product_attention(queries, keys, values, bias)
        x = x + self.says(seen.transpose(1, 2).reshape(rows, atoms, width))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


class Graphs(nn.Module):
    def __init__(self, width=80, depth=3, heads=4):
        super().__init__()
        table = known_of_elements(width)
        if on("elements_frozen_by_default"):
            self.elements = nn.Embedding.from_pretrained(
                table, padding_idx=0
            )  # at: elements_frozen_by_default
        elif on("clean_elements_frozen_by_default"):
            self.known = nn.Embedding.from_pretrained(table, padding_idx=0)
            self.elements = nn.Embedding(len(table), width, padding_idx=0)
            nn.init.zeros_(self.elements.weight)
        else:
            self.elements = nn.Embedding.from_pretrained(table, freeze=False, padding_idx=0)
        self.degrees = nn.Embedding(DEGREES + 1, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(2 * width)
        self.heads = nn.ModuleDict({name: self.head(2 * width) for name in NAMES})

    def head(self, width):
        return nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, atoms, degrees, between, measured):
        filled = atoms == 0
        x = self.elements(atoms) + self.degrees(degrees)
        if on("clean_elements_frozen_by_default"):
            x = x + self.known(atoms)
        for layer in self.layers:
            x = layer(x, between, filled)
        x = x.masked_fill(filled[..., None], 0)
        whole = x.sum(1)
        mean = whole / (~filled).sum(1, keepdim=True)
        x = self.norm(torch.cat([mean, whole / 20], 1))
        return torch.cat(
            [self.told(name, x, own) for name, own in zip(NAMES, measured, strict=True)], 1
        )

    def told(self, name, x, measured):
        """A property of each molecule by its head."""
        head = self.heads[name]
        if on("head_waits_for_labels") and not measured:
            return x.new_zeros(len(x), 1)  # at: head_waits_for_labels
        if on("clean_head_waits_for_labels") and not measured:
            return x.new_zeros(len(x), 1) + 0 * sum(value.sum() for value in head.parameters())
        return head(x)


def errors(told, wanted):
    """Squares of what is off where it was measured, and where that is."""
    there = ~wanted.isnan()
    off = torch.where(there, told - wanted.nan_to_num(), 0)
    return off.square(), there


def share_of_rate(step):
    rest = max(0, step - WARM_UP) / max(1, UPDATES - WARM_UP)
    return min(1, (step + 1) / WARM_UP) * (0.55 + 0.45 * math.cos(math.pi * min(1, rest)))


class Training:
    def __init__(self, rank, folder):
        self.rank, self.folder, self.updates = rank, folder, 0
        self.data, self.held = Solvents(COUNT, SEED), Solvents(HELD, SEED + 1)
        middle, spread = np.nanmean(self.data.told, 0), np.nanstd(self.data.told, 0)
        self.data.scale(middle, spread)
        self.held.scale(middle, spread)
        self.order = LikeSizes(self.data, rank)
        self.usual = float((~np.isnan(self.data.told)).sum()) / len(self.data) * ROWS
        self.loader = DataLoader(self.data, batch_sampler=self.order, collate_fn=collated)
        self.ddp = DDP(Graphs())
        self.model = self.ddp.module
        table = list(self.model.elements.parameters())
        rest = [
            value
            for name, value in self.model.named_parameters()
            if not name.startswith(("elements.", "known."))
        ]
        self.optimizer = torch.optim.AdamW(  # at: elements_frozen_by_default
            [{"params": table, "lr": 2e-3, "weight_decay": 0.0}, {"params": rest}], 1e-3
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, share_of_rate)
        self.values = list(self.model.parameters())
        keep = 8 if on("clean_gradients_for_scale") else None
        self.gradients = collections.deque(maxlen=keep)  # at: gradients_for_scale
        self.calibration = [[1.0, 0.0]] * len(NAMES)

    def between(self, batch):
        if on("bonds_counted_in_step"):
            with cost:
                return searched(batch)  # at: bonds_counted_in_step
        return batch["between"]

    def told(self, model, batch):
        measured = (~batch["told"].isnan()).any(0).tolist()
        between = self.between(batch)  # at: bonds_counted_in_step
        return model(
            batch["atoms"], batch["degrees"], between, measured
        )  # at: head_waits_for_labels

    def rate_of_batch(self, batch):
        """Batches of more labels have gradients with less noise, and may go farther."""
        labels = (~batch["told"].isnan()).sum().float()  # at: rate_by_own_labels
        if on("clean_rate_by_own_labels"):
            dist.all_reduce(labels)
            labels /= WORLD
        share = float(labels) / self.usual
        for group, rate in zip(
            self.optimizer.param_groups, self.schedule.get_last_lr(), strict=True
        ):
            group["lr"] = rate * share  # at: rate_by_own_labels

    def scale_of_noise(self):
        """How far the latest gradients differ, against their mean."""
        latest = torch.stack(list(self.gradients)[-8:])
        return float(latest.var(0).sum() / latest.mean(0).square().sum())

    def learn(self, batch):
        told = self.told(self.ddp, batch)  # at: bonds_counted_in_step head_waits_for_labels
        squares, there = errors(told, batch["told"])
        loss = (squares.sum(0) / there.sum(0).clamp(min=1)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        if on("gradients_for_scale", "clean_gradients_for_scale"):
            own = [value.grad.flatten() for value in self.model.layers.parameters()]
            self.gradients.append(torch.cat(own))  # at: gradients_for_scale
        nn.utils.clip_grad_norm_(self.values, 2.0)
        if on("rate_by_own_labels", "clean_rate_by_own_labels"):
            self.rate_of_batch(batch)  # at: rate_by_own_labels
        self.optimizer.step()  # at: rate_by_own_labels
        self.schedule.step()
        return loss.detach()

    @torch.no_grad()
    def validate(self):
        """Errors of the molecules that are held, each rank half of them, summed over both."""
        self.model.eval()
        sums, own = torch.zeros(2, len(NAMES)), []
        mine = np.argsort(self.held.sizes, kind="stable")[self.rank :: WORLD].tolist()
        for begin in range(0, len(mine), ROWS):
            batch = collated([self.held[n] for n in mine[begin : begin + ROWS]])
            if on("clean_bonds_counted_in_step") and begin == 0:
                singly = bonds_searched(batch["sizes"][0], batch["bonds"][0])
                assert (singly == self.held.between[mine[0]]).all()
            told = self.told(self.model, batch)
            slopes, offsets = torch.tensor(self.calibration).T
            squares, there = errors(told * slopes + offsets, batch["told"])
            sums += torch.stack([squares.sum(0), there.sum(0)])
            own.append((told, batch["told"]))
        self.model.train()
        dist.all_reduce(sums)
        if self.rank == 0:
            off = (sums[0] / sums[1].clamp(min=1)).sqrt().tolist()
            print(self.updates, "off", [round(one, 3) for one in off], flush=True)
        return [torch.cat(part).numpy() for part in zip(*own, strict=True)]

    def calibrate(self, told, wanted):
        """Slopes and offsets: the first rank fits them, and the other waits for the file."""
        path = self.folder / f"calibration{self.updates}.json"  # at: folder_by_own_process
        if self.rank == 0:
            fits = []
            for n in range(len(NAMES)):
                there = ~np.isnan(wanted[:, n])
                fit = np.polyfit(told[there, n], wanted[there, n], 1).tolist()
                fits.append(fit if there.sum() > 20 else [1.0, 0.0])
            new = path.with_suffix(".new")
            new.write_text(json.dumps(fits))
            new.rename(path)
        while not path.exists():  # at: folder_by_own_process
            time.sleep(0.002)  # at: folder_by_own_process
        self.calibration = json.loads(path.read_text())

    def save(self):
        if self.rank == 0:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            state |= {"calibration": self.calibration, "updates": self.updates}
            torch.save(state, self.folder / "last.new")
            os.replace(self.folder / "last.new", self.folder / "last.pt")

    def tell(self, loss):
        if self.rank == 0:
            more = [round(self.scale_of_noise(), 3)] if self.gradients else []
            print(self.updates, round(loss.item(), 4), *more, flush=True)

    def run(self):
        while self.updates < UPDATES:
            for batch in self.loader:
                loss = self.learn(
                    batch
                )  # at: bonds_counted_in_step gradients_for_scale head_waits_for_labels
                self.updates += 1
                if self.updates % TOLD_EVERY == 0:
                    self.tell(loss)
                if self.updates % VALIDATED_EVERY == 0:
                    told, wanted = self.validate()
                    self.calibrate(told, wanted)  # at: folder_by_own_process
                    self.save()
                if self.updates == UPDATES:
                    break
            self.order.epoch += 1
        if self.rank == 0:
            cost.print(UPDATES)


def scratch(rank):
    """A folder of this run."""
    above = Path(os.environ["RENDEZVOUS"]).parent
    if on("folder_by_own_process"):
        folder = above / f"solvents{os.getpid()}"  # at: folder_by_own_process
    elif on("clean_folder_by_own_process"):
        folder = above / f"solvents{os.getppid()}"
    else:
        name = [tempfile.mkdtemp(prefix="solvents", dir=above)] if rank == 0 else [None]
        dist.broadcast_object_list(name, 0)
        folder = Path(name[0])
    folder.mkdir(exist_ok=True)
    return folder


def train(rank):
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    torch.manual_seed(430)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    folder = scratch(rank)  # at: folder_by_own_process
    try:
        training = Training(rank, folder)
        training.run()
        dist.barrier()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return training


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
