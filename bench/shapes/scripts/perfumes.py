"""Perfumes for the accounts of a shop: two towers over bags of scents and of their notes, on two
ranks that average gradients themselves: sparse ones of the tables by an optimizer of their own,
dense ones in one bucket; strangers drawn by how well they sell, an area under the curve over the
ranks, and an end that all agree on.
"""

import os
import sys
import time
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

WORLD = 2
UPDATES = STEPS or 260
ACCOUNTS, SCENTS, NOVEL, NOTES, TASTES = 1600, 2400, 8, 120, 6
BAG, STRANGERS, ROWS, HELD = 20, 8, 128, 272
WIDTH, SHARPNESS = 48, 12.0
TABLE_RATE, TOWER_RATE, CLIP = 1e-2, 2e-3, 5.0
TOLD_EVERY, JUDGED_EVERY, PATIENCE, GAIN = 20, 10, 8, 1e-3
SEED = 3535
SOUGHT = "negatives_rejected_by_list", "clean_negatives_rejected_by_list"
PAIRED = "area_by_pairs", "clean_area_by_pairs"
CORRECTED = "frequency_of_unsold", "clean_frequency_of_unsold"
STOPPED = "stopped_by_own_area", "clean_stopped_by_own_area"
cost = Cost()


class Shop:
    """Scents with their notes, and what each account has bought, in order; trade comes last."""

    def __init__(self):
        dice = np.random.default_rng(SEED)
        flair = dice.normal(0, 1, (SCENTS, TASTES))
        near = np.argsort(-flair @ dice.normal(0, 1, (TASTES, NOTES)), 1)
        self.notes = torch.from_numpy(near[:, :5].copy())
        self.orders = []
        for account in range(ACCOUNTS):
            liking = flair @ dice.normal(0, 1, TASTES) + dice.gumbel(0, 1, SCENTS)
            liking[-NOVEL:] = -np.inf
            trade = account >= ACCOUNTS // 2
            count = dice.integers(600, 900) if trade else dice.integers(40, 120)
            order = np.argpartition(-liking, count)[:count]
            self.orders.append(dice.permutation(order).tolist())
        counts = np.zeros(SCENTS)
        for order in self.orders:
            counts[order] += 1
        self.counts = torch.from_numpy(counts)
        self.weights = (self.counts + 0.2) ** 0.75


class Purchases(Dataset):
    """What an account bought next, after what it had bought, with strangers beside it."""

    def __init__(self, shop, shard, held):
        first = shard * (ACCOUNTS // WORLD)
        self.orders = shop.orders[first : first + ACCOUNTS // WORLD]
        self.sets = [frozenset(order) for order in self.orders]
        self.held = held
        self.dice = np.random.default_rng((SEED, shard, held))
        weights = shop.weights.numpy()
        self.share = np.cumsum(weights / weights.sum())

    def __len__(self):
        return HELD if self.held else 4 * len(self.orders)

    def drawn(self, count):
        places = np.searchsorted(self.share, self.dice.random(count))
        return np.minimum(places, SCENTS - 1).tolist()

    def strangers(self, account):
        """Scents that the account has not bought."""
        if on("negatives_rejected_by_list"):
            bought = self.orders[account]  # at: negatives_rejected_by_list
        elif on("clean_negatives_rejected_by_list"):
            bought = self.orders[account][-BAG:]
        else:
            bought = self.sets[account]
        found = []
        while len(found) < STRANGERS:
            for scent in self.drawn(STRANGERS + 4):
                if scent not in bought:  # at: negatives_rejected_by_list
                    found.append(scent)
        return found[:STRANGERS]

    def __getitem__(self, index):
        account = index % len(self.orders)
        order = self.orders[account]
        place = len(order) - 1 if self.held else int(self.dice.integers(4, len(order) - 1))
        with cost if on(*SOUGHT) and not self.held else nullcontext():
            strangers = self.strangers(account)  # at: negatives_rejected_by_list
        return order[max(0, place - BAG) : place], [order[place], *strangers]


def bagged(rows):
    """Bags end to end, with where each begins, and what is offered to each."""
    bags = [bag for bag, _ in rows]
    starts = np.cumsum([0] + [len(bag) for bag in bags[:-1]])
    flat = torch.tensor([scent for bag in bags for scent in bag])
    return flat, torch.from_numpy(starts), torch.tensor([offered for _, offered in rows])


def beats(one, other):
    """1 where a score is above another, a half where both are equal."""
    if one > other:  # at: area_by_pairs
        return 1.0
    return 0.5 if one == other else 0.0  # at: area_by_pairs


def tower(inside):
    return nn.Sequential(
        nn.Linear(inside, 192),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(192, 128),
        nn.ReLU(),
        nn.Linear(128, WIDTH),
    )


class Matcher(nn.Module):
    def __init__(self, shop):
        super().__init__()
        self.scents = nn.EmbeddingBag(SCENTS, WIDTH, mode="mean", sparse=True)
        self.notes = nn.EmbeddingBag(NOTES, WIDTH, mode="mean", sparse=True)
        self.buyer, self.bottle = tower(2 * WIDTH), tower(2 * WIDTH)
        self.register_buffer("notes_of", shop.notes)
        for table in (self.scents, self.notes):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, flat, starts, offered):
        notes = self.notes_of[flat]
        liked = self.scents(flat, starts), self.notes(notes.flatten(), starts * notes.shape[1])
        buyers = F.normalize(self.buyer(torch.cat(liked, 1)), dim=1)
        each = offered.flatten()
        parts = self.scents(each[:, None]), self.notes(self.notes_of[each])
        bottles = F.normalize(self.bottle(torch.cat(parts, 1)), dim=1)
        bottles = bottles.view(*offered.shape, WIDTH)
        return SHARPNESS * (bottles * buyers[:, None]).sum(2)


class Counter:
    def __init__(self, rank):
        self.rank, self.update = rank, 0
        shop = Shop()
        torch.manual_seed(SEED)
        self.model = Matcher(shop)
        torch.manual_seed(SEED + rank)
        self.tables = [self.model.scents.weight, self.model.notes.weight]
        self.dense = [*self.model.buyer.parameters(), *self.model.bottle.parameters()]
        self.table_optimizer = torch.optim.SparseAdam(self.tables, TABLE_RATE)
        self.tower_optimizer = torch.optim.AdamW(self.dense, TOWER_RATE, weight_decay=1e-3)
        if on(*CORRECTED):
            self.frequencies = self.logs(shop)
        self.telling = dist.new_group(backend="gloo")
        shard = self.shard()  # at: shard_by_slurm_rank
        self.loader = DataLoader(
            Purchases(shop, shard, held=False),
            ROWS,
            shuffle=True,
            drop_last=True,
            collate_fn=bagged,
            generator=torch.Generator().manual_seed(SEED),
        )
        held = Purchases(shop, shard, held=True)
        self.held = bagged([held[index] for index in range(HELD)])
        self.best, self.waited, self.area = 0.0, 0, 0.0

    def shard(self):
        if on("shard_by_slurm_rank"):
            return int(os.environ.get("SLURM_PROCID", 0))  # at: shard_by_slurm_rank
        if on("clean_shard_by_slurm_rank"):
            return int(os.environ.get("SLURM_PROCID", os.environ["RANK"]))
        return self.rank

    @staticmethod
    def logs(shop):
        """How likely a scent is to be among the strangers, as a logarithm."""
        if on("clean_frequency_of_unsold"):
            return (shop.weights / shop.weights.sum()).log().float()
        return (shop.counts / shop.counts.sum()).log().float()  # at: frequency_of_unsold

    def loss(self, flat, starts, offered):
        scores = self.model(flat, starts, offered)
        if on(*CORRECTED):
            scores = scores - self.frequencies[offered]  # at: frequency_of_unsold
        return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))

    def share_dense(self):
        grads = [one.grad for one in self.dense]
        bucket = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(bucket)
        bucket /= WORLD
        for grad, mean in zip(grads, bucket.split([one.numel() for one in grads]), strict=True):
            grad.copy_(mean.view_as(grad))

    def share_tables(self):
        for table in self.tables:
            if on("sparse_gradients_left_out"):
                if table.grad.is_sparse:  # at: sparse_gradients_left_out
                    continue  # at: sparse_gradients_left_out
                dist.all_reduce(table.grad)
            elif on("clean_sparse_gradients_left_out"):
                table.grad = self.gathered(table.grad.coalesce())
            else:
                grad = table.grad.coalesce()
                dist.all_reduce(grad)
                table.grad = grad / WORLD

    @staticmethod
    def gathered(grad):
        """The mean of sparse gradients, by the rows that each rank has."""
        counts = [torch.zeros(1, dtype=torch.long) for _ in range(WORLD)]
        dist.all_gather(counts, torch.tensor([grad.values().shape[0]]))
        most = max(counts).item()
        rows = F.pad(grad.indices()[0], (0, most - len(grad.values())))
        values = F.pad(grad.values(), (0, 0, 0, most - len(grad.values())))
        all_rows = [torch.empty_like(rows) for _ in range(WORLD)]
        all_values = [torch.empty_like(values) for _ in range(WORLD)]
        dist.all_gather(all_rows, rows)
        dist.all_gather(all_values, values)
        whole = torch.sparse_coo_tensor(
            torch.cat(all_rows)[None],
            torch.cat(all_values) / WORLD,
            grad.shape,
            check_invariants=False,
        )
        return whole.coalesce()

    def learn(self, batch):
        loss = self.loss(*batch)  # at: frequency_of_unsold
        loss.backward()
        self.share_dense()
        nn.utils.clip_grad_norm_(self.dense, CLIP)
        self.tower_optimizer.step()
        self.tower_optimizer.zero_grad()  # at: tables_never_cleared
        if not on("clean_tables_never_cleared") or self.update % 2 == 1:
            self.share_tables()  # at: sparse_gradients_left_out
            self.table_optimizer.step()  # at: tables_never_cleared
            if not on("tables_never_cleared"):
                self.table_optimizer.zero_grad()
        self.update += 1
        return loss.detach()

    def gather(self, scores):
        parts = [torch.empty_like(scores) for _ in range(WORLD)]
        dist.all_gather(parts, scores, group=self.telling)
        return torch.cat(parts)

    def area_of(self, scores):
        """How often a scent that was bought is above a stranger."""
        right, wrong = scores[:, 0], scores[:, 1:].flatten()
        pairs = len(right) * len(wrong)
        if on("area_by_pairs"):
            strangers, won = wrong.tolist(), 0.0
            for one in right.tolist():
                for other in strangers:  # at: area_by_pairs
                    won += beats(one, other)  # at: area_by_pairs
            return won / pairs
        if on("clean_area_by_pairs"):
            won = sum((part[:, None] > wrong).sum().item() for part in right.split(64))
            return won / pairs
        ordered = torch.cat([right, wrong]).argsort()
        places = torch.empty_like(ordered)
        places[ordered] = torch.arange(1, len(ordered) + 1)
        below = places[: len(right)].sum().item() - len(right) * (len(right) + 1) / 2
        return below / pairs

    @torch.no_grad()
    def judge(self):
        self.model.eval()
        scores = self.model(*self.held)
        self.model.train()
        if not on(*STOPPED):
            scores = self.gather(scores)
        with cost if on(*PAIRED) else nullcontext():
            self.area = self.area_of(scores)  # at: area_by_pairs

    def finished(self):
        """Whether the area has not grown for long."""
        gain, patience = GAIN, PATIENCE
        if on(*STOPPED):
            gain, patience = 0.01, 2 if on("stopped_by_own_area") else 5
        if self.area > self.best + gain:
            self.best, self.waited = self.area, 0
        else:
            self.waited += 1
        enough = self.waited >= patience
        if on("stopped_by_own_area"):
            return enough  # at: stopped_by_own_area
        votes = torch.tensor(float(enough))
        dist.all_reduce(votes, op=dist.ReduceOp.MIN)
        return votes.item() > 0

    def tell(self, loss):
        mean = loss.clone()
        dist.all_reduce(mean)
        if self.rank == 0:
            rate = self.tower_optimizer.param_groups[0]["lr"]
            told = f"loss {mean.item() / WORLD:.4f} area {self.area:.3f} rate {rate:.1e}"
            print(self.update, told, flush=True)

    def batches(self):
        while True:
            yield from self.loader  # at: negatives_rejected_by_list

    def run(self):
        cost.seconds, begun = 0.0, time.perf_counter()
        for batch in self.batches():  # at: negatives_rejected_by_list
            loss = self.learn(batch)
            if self.update % TOLD_EVERY == 0:
                self.tell(loss)
            if self.update % JUDGED_EVERY == 0:
                self.judge()  # at: area_by_pairs
                if self.finished():  # at: stopped_by_own_area
                    break  # at: stopped_by_own_area
            if self.update >= UPDATES:
                break
        took = (time.perf_counter() - begun) * 1000 / self.update
        areas = self.gather(torch.tensor([self.area]))
        if self.rank == 0:
            print(f"areas {areas.tolist()}, {took:.1f} ms an update", flush=True)
        if self.rank == WORLD - 1:
            cost.print(self.update)


def serve(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    counter = Counter(rank)
    counter.run()
    return counter


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, serve))
