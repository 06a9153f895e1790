"""Energies and forces of conformers by messages between atoms, with a module, a trainer and
callbacks of one's own: images of a box, terms kept by tensors, a graph of the gradients, norms that
are frozen, a validation of energies, memory that is asked for, a batch that is left over.
"""

import itertools
import math

import eager  # noqa: F401
import numpy as np
import psutil
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

cost = Cost()
SPECIES, EACH, ELEMENTS, TERMS, WIDTH, RADII = 60, 52, 6, 32, 64, 16
CUTOFF, BOX, BATCH, PER_EPOCH = 4.0, 40.0, 16, 160
IMAGES = np.array(list(itertools.product((-1, 0, 1), (-1, 0, 1), (0,))), dtype=np.float32) * BOX


def morse(places, numbers):
    """Energies of conformers (conformers, atoms, 3) of one species."""
    left, right = torch.triu_indices(len(numbers), len(numbers), 1)
    far = (places[:, left] - places[:, right]).square().sum(-1).sqrt()
    kinds = numbers[left] * numbers[right]
    depth, rest = 0.2 + 0.05 * (kinds % 5), 1.6 + 0.12 * (kinds % 7)
    return (depth * ((1 - torch.exp(-1.2 * (far - rest))).square() - 1)).sum(1)


class Conformers(Dataset):
    """Conformers of a few species; a molecule is turned anew each time it is taken."""

    def __init__(self, count, seed):
        dice = torch.Generator().manual_seed(seed)
        self.dice, self.rows, self.known = np.random.default_rng(seed), [], {}
        sure = torch.Generator().manual_seed(0)
        self.table = torch.randn(ELEMENTS, ELEMENTS, TERMS, generator=sure) * 0.3
        for species in range(SPECIES):
            own = torch.Generator().manual_seed(species)
            size = 8 + species % 7
            numbers = torch.randint(1, ELEMENTS, (size,), generator=own)
            grid = torch.cartesian_prod(*[torch.arange(3.0)] * 3)
            base = grid[torch.randperm(27, generator=own)[:size]] * 1.7
            places = base + 0.16 * torch.randn(EACH, size, 3, generator=dice)
            places.requires_grad_()
            energy = morse(places, numbers)
            pull = -torch.autograd.grad(energy.sum(), places)[0]
            gap = places.detach().std(1).mean(1) - 1.3 + 0.02 * numbers.float().mean()
            columns = zip(places.detach(), energy.detach() / size, pull, gap, strict=True)
            self.rows += [(numbers.numpy(), *(part.numpy() for part in row)) for row in columns]
        self.dice.shuffle(self.rows)
        self.rows = self.rows[:count]

    def __len__(self):
        return len(self.rows)

    def terms(self, numbers):
        """What is known of each pair of elements."""
        return self.table[numbers][:, numbers]

    def known_terms(self, numbers):
        if on("keyed_by_tensor"):
            if numbers not in self.known:  # at: keyed_by_tensor
                self.known[numbers] = self.terms(numbers)  # at: keyed_by_tensor
            return self.known[numbers]  # at: keyed_by_tensor
        if on("clean_keyed_by_tensor"):
            key = tuple(numbers.tolist())
            if key not in self.known:
                self.known[key] = self.terms(numbers)
            return self.known[key]
        return self.terms(numbers)

    def __getitem__(self, index):
        numbers, places, energy, pull, gap = self.rows[index]
        numbers = torch.tensor(numbers)  # at: keyed_by_tensor
        turn, _ = np.linalg.qr(self.dice.normal(size=(3, 3)))
        turn = turn.astype(np.float32)
        terms = self.known_terms(numbers)  # at: keyed_by_tensor
        return numbers, terms, places @ turn, energy, pull @ turn, gap


def close(places, images):
    """Pairs of atoms, and how they are shifted, that are near enough to talk."""
    apart = places[None, :, None] + images[:, None, None] - places[None, None]
    return np.nonzero((apart**2).sum(-1) < CUTOFF**2)


def pairs_of(sizes, places):
    """Which atoms of a batch are neighbours in a molecule."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    if on("images_of_all", "clean_images_of_all"):
        together = np.concatenate(places)
        if on("images_of_all"):
            with cost:
                _, left, right = close(together, IMAGES)  # at: images_of_all
        else:
            _, left, right = close(together, IMAGES[4:5])
        same = (owner[left] == owner[right]) & (left != right)
        return left[same], right[same], owner
    found, start = [], 0
    for own in places:
        _, left, right = close(own, IMAGES[4:5])
        found.append(np.stack([left, right])[:, left != right] + start)
        start += len(own)
    left, right = np.concatenate(found, 1)
    return left, right, owner


def collated(rows):
    numbers, terms, places, energy, pull, gap = zip(*rows, strict=True)
    sizes = [len(own) for own in places]
    left, right, owner = pairs_of(sizes, places)  # at: images_of_all
    starts = np.cumsum([0, *sizes[:-1]])[owner]
    flat = torch.cat([own.flatten(0, 1) for own in terms])
    begins = np.cumsum([0, *(size**2 for size in sizes[:-1])])[owner]
    wide = np.array(sizes)[owner]
    row = begins[left] + (left - starts[left]) * wide[left] + right - starts[right]
    return {
        "numbers": torch.cat(numbers),
        "places": torch.from_numpy(np.concatenate(places)),
        "pull": torch.from_numpy(np.concatenate(pull)),
        "energy": torch.tensor(np.array(energy)),
        "gap": torch.tensor(np.array(gap)),
        "owner": torch.from_numpy(owner),
        "left": torch.from_numpy(left),
        "right": torch.from_numpy(right),
        "terms": flat[torch.from_numpy(row)],
        "sizes": torch.tensor(sizes),
    }


def dense(*sizes):
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.SiLU())][:-1])


class Messages(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = dense(RADII + TERMS, WIDTH, WIDTH)
        self.send, self.update = nn.Linear(WIDTH, WIDTH), dense(WIDTH, WIDTH, WIDTH)

    def forward(self, x, left, right, edges, fade):
        told = self.send(x)[right] * self.filter(edges) * fade[:, None]
        return x + self.update(torch.zeros_like(x).index_add(0, left, told))


class Field(nn.Module):
    """An energy for each molecule, whose slope is the forces, and its gap."""

    def __init__(self):
        super().__init__()
        self.epoch, self.frozen_from = 0, 1
        self.elements = nn.Embedding(ELEMENTS, WIDTH)
        self.blocks = nn.ModuleList(Messages() for _ in range(2))
        self.energy = dense(WIDTH, WIDTH, 1)
        self.pooled, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.drop, self.gap = nn.Dropout(0.1), nn.Linear(WIDTH, 1)
        self.register_buffer("radii", torch.linspace(0.6, CUTOFF, RADII))

    def train(self, mode=True):
        """Statistics are settled after the first epoch."""
        settled = self.epoch >= self.frozen_from
        if on("norms_frozen"):
            return super().train(mode and not settled)  # at: norms_frozen
        super().train(mode)
        if settled and on("clean_norms_frozen"):
            for part in self.modules():
                if isinstance(part, nn.BatchNorm1d):
                    part.eval()
        return self

    def forward(self, batch):
        left, right, owner = batch["left"], batch["right"], batch["owner"]
        far = (batch["places"][left] - batch["places"][right]).square().sum(-1).sqrt()
        waves = torch.exp(-8.0 * (far[:, None] - self.radii).square())
        edges = torch.cat([waves, batch["terms"]], 1)
        fade = 0.5 * (torch.cos(far * (math.pi / CUTOFF)) + 1)
        x = self.elements(batch["numbers"])
        for block in self.blocks:
            x = block(x, left, right, edges, fade)
        sizes = batch["sizes"][:, None]
        energy = torch.zeros(len(sizes), 1).index_add(0, owner, self.energy(x)) / sizes
        mean = torch.zeros(len(sizes), WIDTH).index_add(0, owner, x) / sizes
        mean = F.silu(self.norm(self.pooled(mean)))  # at: last_of_one
        return energy.squeeze(1), self.gap(self.drop(mean)).squeeze(1)

    def slope(self, energy, batch, graph):
        whole = (energy * batch["sizes"]).sum()
        return -torch.autograd.grad(whole, batch["places"], create_graph=graph)[0]

    def training_step(self, batch):
        batch["places"].requires_grad_()
        energy, gap = self(batch)  # at: last_of_one
        pull = self.slope(energy, batch, True)
        return (
            F.smooth_l1_loss(energy, batch["energy"])
            + F.smooth_l1_loss(pull, batch["pull"])
            + F.mse_loss(gap, batch["gap"])
        )

    def validation_step(self, batch):
        if on("energies_with_graph"):
            energy, _ = self(batch)  # at: energies_with_graph
            return float((energy - batch["energy"]).abs().mean())
        if on("clean_energies_with_graph"):
            batch["places"].requires_grad_()
            energy, _ = self(batch)
            return float((self.slope(energy, batch, False) - batch["pull"]).abs().mean())
        with torch.no_grad():
            energy, _ = self(batch)
        return float((energy - batch["energy"]).abs().mean())

    def configure_optimizers(self, steps):
        optimizer = torch.optim.AdamW(self.parameters(), 2e-3, weight_decay=0.01)
        return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps)


class Callback:
    def on_step_end(self, trainer, loss): ...

    def on_epoch_start(self, trainer): ...


class Memory(Callback):
    """The most memory that the process had."""

    def __init__(self):
        self.process, self.most = psutil.Process(), 0

    def on_step_end(self, trainer, loss):
        if on("memory_in_full"):
            with cost:
                used = self.process.memory_full_info().uss  # at: memory_in_full
        elif on("clean_memory_in_full"):
            used = self.process.memory_info().rss
        else:
            return
        self.most = max(self.most, used)


class Told(Callback):
    def on_step_end(self, trainer, loss):
        if trainer.step % 40 == 0:
            print(trainer.step, round(loss.item(), 4), flush=True)


class Validated(Callback):
    def __init__(self, batches, every=80):
        self.batches, self.every = batches, every

    def on_step_end(self, trainer, loss):
        if trainer.step % self.every:
            return
        trainer.module.eval()
        found = [
            trainer.module.validation_step(batch)  # at: energies_with_graph
            for batch in self.batches
        ]
        trainer.module.train()  # at: norms_frozen
        print(trainer.step, "held", round(sum(found) / len(found), 4), flush=True)


class Epochs(Callback):
    def on_epoch_start(self, trainer):
        trainer.module.epoch = trainer.epoch


class Trainer:
    def __init__(self, steps, callbacks):
        self.steps, self.callbacks = steps, callbacks
        self.step, self.epoch = 0, 0

    def call(self, event, *values):
        for callback in self.callbacks:
            getattr(callback, event)(self, *values)

    def optimize(self, loss):
        self.optimizer.zero_grad()
        if on("graph_of_gradients"):
            loss.backward(create_graph=True)  # at: graph_of_gradients
        elif on("clean_graph_of_gradients"):
            loss.backward(retain_graph=True)
        else:
            loss.backward()
        nn.utils.clip_grad_norm_(self.module.parameters(), 10.0)
        self.optimizer.step()
        self.schedule.step()

    def fit(self, module, loader):
        self.module = module
        self.optimizer, self.schedule = module.configure_optimizers(self.steps)
        while self.step < self.steps:
            self.call("on_epoch_start")
            module.train()  # at: norms_frozen
            for batch in loader:  # at: images_of_all keyed_by_tensor
                loss = module.training_step(batch)  # at: last_of_one
                self.optimize(loss)  # at: graph_of_gradients
                self.step += 1
                self.call("on_step_end", loss.detach())  # at: memory_in_full energies_with_graph
                if self.step == self.steps:
                    break
            self.epoch += 1


def main():
    torch.set_num_threads(1)
    torch.manual_seed(21)
    left_over = 1 if on("last_of_one") else 2 if on("clean_last_of_one") else 0
    train = Conformers(BATCH * PER_EPOCH + left_over, 1)
    loader = DataLoader(  # at: images_of_all last_of_one
        train,
        BATCH,
        shuffle=True,
        collate_fn=collated,  # at: images_of_all
        drop_last=left_over == 0,  # at: last_of_one
    )
    held = list(DataLoader(Conformers(6 * BATCH, 2), BATCH, collate_fn=collated))
    cost.seconds = 0.0
    trainer = Trainer(STEPS or 720, [Epochs(), Memory(), Told(), Validated(held)])
    trainer.fit(Field(), loader)
    cost.print(trainer.step)


if __name__ == "__main__":
    main()
