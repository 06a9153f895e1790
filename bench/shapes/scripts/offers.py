"""Who clicks on which offer, told by two ranks with no wrapper around the model: tables that one of
them owns each, sums of rows exchanged with their gradients, dense layers averaged by hand, a trial
now and then, shares of the tables saved: arrays in a list, a message for each table, tables placed
in order, a norm of one's own, handles that are held, an exchange that autograd does not see, a
state that is put together by the first.
"""

import contextlib
import itertools
import os
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
from torch.distributed.nn import functional as graphed
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

cost = Cost()
WORLD, UPDATES = 2, STEPS or 450
PASTS, PLAIN, LONG = 2, 22, 48
LENGTHS = [LONG] * PASTS + [1] * PLAIN
TABLES, ENTRIES, WIDTH, FIGURES = len(LENGTHS), 200, 32, 12
SHOWN, HELD, ROWS, STRICT = 52_000, 4_096, 256, 0.2
TOLD_EVERY, TRIED_EVERY, SAVED_EVERY = 25, 50, 100


def shown(count, seed):
    """Offers as they were shown: numbers of entries, figures, and whether they were clicked."""
    numbers, fixed = np.random.default_rng(seed), np.random.default_rng(211)
    taste = fixed.normal(size=(TABLES, ENTRIES)) * 0.5
    slope = fixed.normal(size=FIGURES) * 0.4
    figures = numbers.normal(size=(count, FIGURES)).astype(np.float32)
    parts, worth = [], figures @ slope
    for table, length in enumerate(LENGTHS):
        part = (numbers.random((count, length)) ** 2 * ENTRIES).astype(np.int64)
        worth += taste[table][part].sum(1) / length**0.5
        parts.append(part)
    clicked = numbers.random(count) < 1 / (1 + np.exp(-worth))
    return np.concatenate(parts, 1), figures, clicked.astype(np.float32)


class Shown(Dataset):
    """Every second offer of those, from a rank's number on."""

    def __init__(self, offers, rank):
        self.entries, self.figures, self.clicked = (part[rank::WORLD] for part in offers)

    def __len__(self):
        return len(self.clicked)

    def __getitem__(self, index):
        return self.entries[index], self.figures[index], self.clicked[index]


def collated(rows):
    entries, figures, clicked = zip(*rows, strict=True)
    if on("arrays_in_a_list"):
        with cost:
            entries = torch.tensor(entries)  # at: arrays_in_a_list
            figures = torch.tensor(figures)  # at: arrays_in_a_list
    elif on("clean_arrays_in_a_list"):
        entries = torch.tensor(np.array(entries))
        figures = torch.tensor(np.array(figures))
    else:
        entries = torch.from_numpy(np.stack(entries))
        figures = torch.from_numpy(np.stack(figures))
    return entries, figures, torch.from_numpy(np.stack(clicked))


def placed():
    """The tables of each rank, equally many."""
    tables = range(TABLES)
    if on("placed_in_order"):
        half = TABLES // WORLD
        begins = range(0, TABLES, half)  # at: placed_in_order
        return [list(tables[begin : begin + half]) for begin in begins]  # at: placed_in_order
    if on("clean_placed_in_order"):
        return [list(tables[rank::WORLD]) for rank in range(WORLD)]
    owned, load = [[] for _ in range(WORLD)], [0] * WORLD
    for table in sorted(tables, key=LENGTHS.__getitem__, reverse=True):
        free = [rank for rank in range(WORLD) if len(owned[rank]) < TABLES // WORLD]
        rank = min(free, key=load.__getitem__)
        owned[rank].append(table)
        load[rank] += LENGTHS[table]
    return owned


def columns(tables):
    """Where the entries of tables lie in a row."""
    begins = list(itertools.accumulate(LENGTHS, initial=0))
    found = [range(begins[table], begins[table] + LENGTHS[table]) for table in tables]
    return torch.tensor(list(itertools.chain(*found)))


class Exchange(torch.autograd.Function):
    """Part n of what this rank has goes to rank n; the gradient goes back the same way."""

    @staticmethod
    def forward(ctx, own):
        out = torch.empty_like(own)
        dist.all_to_all_single(out, own.contiguous())  # at: message_each
        return out

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        back = torch.empty_like(grad)
        dist.all_to_all_single(back, grad)  # at: message_each
        return back


def exchanged(own):
    """Sums of rows for the own offers, from all tables."""
    if on("unseen_exchange"):
        out = torch.empty_like(own)
        dist.all_to_all_single(out, own.contiguous())  # at: unseen_exchange
        return out
    if on("clean_unseen_exchange"):
        return graphed.all_to_all_single(torch.empty_like(own), own.contiguous())
    return Exchange.apply(own)


class Past(nn.Module):
    """A long row of entries, each looked at by a layer before the mean."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(ENTRIES, WIDTH)
        self.layer, self.last = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, entries):
        return self.last(F.relu(self.layer(self.table(entries))).mean(1))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(ENTRIES, WIDTH)

    def forward(self, entries):
        return self.table(entries[:, 0])


class Tables(nn.Module):
    """The tables of this rank, which serve the offers of all."""

    def __init__(self, rank):
        super().__init__()
        self.placed = placed()  # at: placed_in_order
        self.own = self.placed[rank]
        self.columns = [columns(tables) for tables in self.placed]
        self.sizes = [LENGTHS[table] for table in self.own]
        self.tables = nn.ModuleList()
        for table in self.own:
            torch.manual_seed(212 + table)
            self.tables.append(Past() if LENGTHS[table] > 1 else Plain())
            nn.init.normal_(self.tables[-1].table.weight, std=0.1)

    def asked(self, entries):
        """What the offers of all ranks ask of the own tables."""
        sent = torch.cat([entries[:, mine].flatten() for mine in self.columns])
        counts = [len(entries) * len(mine) for mine in self.columns]
        due = [len(entries) * sum(self.sizes)] * WORLD
        got = entries.new_empty(sum(due))
        dist.all_to_all_single(got, sent, due, counts)
        return got.view(-1, sum(self.sizes)).split(self.sizes, 1)

    def looked_up(self, parts):
        for n, (table, part) in enumerate(zip(self.tables, parts, strict=True)):
            second = n == 1 and on("placed_in_order") and len(part[0]) > 1
            with cost if second else contextlib.nullcontext():
                yield table(part).unflatten(0, (WORLD, -1))  # at: placed_in_order

    def forward(self, entries):
        found = list(self.looked_up(self.asked(entries)))  # at: placed_in_order
        if on("message_each"):
            first = [exchanged(found[0])]
            with cost:
                rest = [exchanged(one) for one in found[1:]]  # at: message_each
            return torch.stack(first + rest, 2).transpose(0, 1).flatten(1)
        if on("clean_message_each"):
            halves = [torch.stack(found[n::2], 2) for n in range(2)]
            return torch.cat([exchanged(half) for half in halves], 2).transpose(0, 1).flatten(1)
        return exchanged(torch.stack(found, 2)).transpose(0, 1).flatten(1)  # at: unseen_exchange


class Training:
    def __init__(self, rank, folder):
        self.rank, self.folder, self.updates, self.works = rank, folder, 0, []
        self.tables = Tables(rank)  # at: placed_in_order
        torch.manual_seed(213)
        self.dense = nn.Sequential(
            nn.Linear(TABLES * WIDTH + FIGURES, 320),
            nn.ReLU(),
            nn.Linear(320, 128),
            nn.ReLU(),
            nn.Linear(128, 1),
        )
        self.shared = list(self.dense.parameters())
        self.all = [*self.shared, *self.tables.parameters()]
        groups = [{"params": self.shared}, {"params": self.tables.parameters(), "lr": 1e-2}]
        self.optimizer = torch.optim.Adam(groups, 1e-3)
        self.loader = DataLoader(  # at: arrays_in_a_list
            Shown(shown(SHOWN, 214), rank),
            ROWS,
            shuffle=True,
            drop_last=True,
            collate_fn=collated,  # at: arrays_in_a_list
            generator=torch.Generator().manual_seed(215 + rank),
        )
        held = Shown(shown(HELD, 216), rank)
        self.held = list(DataLoader(held, ROWS, collate_fn=collated))
        cost.seconds = 0.0

    def scores(self, entries, figures):
        found = self.tables(entries)  # at: message_each unseen_exchange
        return self.dense(torch.cat([found, figures], 1)).squeeze(1)

    def averaged(self):
        """Gradients of the dense layers are the mean over the ranks."""
        flat = torch.cat([value.grad.flatten() for value in self.shared])
        if on("handles_kept", "clean_handles_kept"):
            self.works.append(dist.all_reduce(flat, async_op=True))  # at: handles_kept
            self.scale_tables()
            for work in self.works:  # at: handles_kept
                work.wait()
            if on("clean_handles_kept"):
                self.works.clear()
        else:
            dist.all_reduce(flat)
            self.scale_tables()
        parts = flat.div_(WORLD).split([value.numel() for value in self.shared])
        for value, part in zip(self.shared, parts, strict=True):
            value.grad.copy_(part.view_as(value))

    def scale_tables(self):
        for value in self.tables.parameters():
            if value.grad is not None:
                value.grad.div_(WORLD)

    def clipped(self):
        if on("norm_of_ones_own"):
            nn.utils.clip_grad_norm_(self.all, STRICT)  # at: norm_of_ones_own
        elif on("clean_norm_of_ones_own"):
            own = nn.utils.get_total_norm([value.grad for value in self.tables.parameters()])
            squares = own**2
            dist.all_reduce(squares)
            dense = nn.utils.get_total_norm([value.grad for value in self.shared])
            nn.utils.clip_grads_with_norm_(self.all, STRICT, (squares + dense**2).sqrt())
        else:
            nn.utils.clip_grad_norm_(self.shared, STRICT)

    def learn(self, entries, figures, clicked):
        scores = self.scores(entries, figures)  # at: message_each placed_in_order
        loss = F.binary_cross_entropy_with_logits(scores, clicked)
        self.optimizer.zero_grad()
        loss.backward()
        self.averaged()  # at: handles_kept
        self.clipped()  # at: norm_of_ones_own
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def tried(self):
        """Share of held out offers that are told right."""
        right = torch.zeros(1)
        for entries, figures, clicked in self.held:
            right += ((self.scores(entries, figures) > 0) == (clicked > 0)).float().mean()
        dist.all_reduce(right)
        return right.item() / WORLD / len(self.held)

    def whole(self):
        """The state of all tables, whoever owns them."""
        state = {}
        for owner, tables in enumerate(self.tables.placed):
            for n, table in enumerate(tables):
                weight = torch.empty(ENTRIES, WIDTH)
                if owner == self.rank:
                    weight.copy_(self.tables.tables[n].table.weight.detach())
                dist.broadcast(weight, owner)  # at: saved_by_the_first
                state[table] = weight
        return state

    def save(self):
        if on("saved_by_the_first"):
            if self.rank == 0:  # at: saved_by_the_first
                state = self.whole(), self.dense.state_dict()  # at: saved_by_the_first
                torch.save(state, self.folder / "whole.pt")
        elif on("clean_saved_by_the_first"):
            state = self.whole(), self.dense.state_dict()
            if self.rank == 0:
                torch.save(state, self.folder / "whole.pt")
        else:
            torch.save(self.tables.state_dict(), self.folder / f"tables{self.rank}.pt")

    def after(self, loss):
        self.updates += 1
        if self.updates % TOLD_EVERY == 0 and self.rank == 0:
            print(self.updates, round(loss.item(), 4), flush=True)
        if self.updates % TRIED_EVERY == 0:
            right = self.tried()
            if self.rank == 0:
                print(self.updates, "told right", round(right, 4), flush=True)
        if self.updates % SAVED_EVERY == 0:
            self.save()  # at: saved_by_the_first

    def run(self):
        while self.updates < UPDATES:
            for batch in self.loader:  # at: arrays_in_a_list
                loss = self.learn(*batch)  # at: norm_of_ones_own handles_kept message_each
                self.after(loss)  # at: saved_by_the_first
                if self.updates == UPDATES:
                    break
        if self.rank == 0:
            cost.print(UPDATES)


def train(rank):
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    with tempfile.TemporaryDirectory() as folder:
        training = Training(rank, Path(folder))
        training.run()
    return training


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
