"""Where a ship calls next: two ranks learn the routes of ships with a small transformer whose
layers are mixtures of experts of a limited capacity, balanced by a bias instead of a loss; two
micro-batches an update, an average of the weights, and held out ships scored by it across ranks.
"""

import collections
import contextlib
import math
import os
import sys

import eager  # noqa: F401
import numpy as np
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

cost = Cost()
WORLD, PARTS, ROWS, LENGTH = 2, 2, 14, 20
UPDATES, PER_EPOCH = STEPS or 250, 50
EPOCHS = UPDATES // PER_EPOCH
PORTS, TRADES, CALLS = 256, 16, 24
WIDTH, HIDDEN, HEADS, LAYERS = 96, 128, 4, 2
EXPERTS, CHOSEN, BALANCED_BY = 8, 2, 0.01
SPACIOUS, TIGHT, TIGHT_FROM = 2.5, 1.0, 100
TOLD_EVERY, BROKEN = 25, 289


def voyages(count, seed):
    """Calls of ships at ports: round after round of their trade, with detours."""
    fixed, numbers = np.random.default_rng(211), np.random.default_rng(seed)
    rounds = np.stack([fixed.permutation(PORTS)[:CALLS] for _ in range(TRADES)])
    trade = numbers.integers(TRADES, size=count)
    place = numbers.integers(CALLS, size=count)
    calls = np.empty((count, LENGTH + 1), dtype=np.int64)
    for n in range(LENGTH + 1):
        detour = numbers.random(count) < 0.06
        calls[:, n] = np.where(detour, numbers.integers(PORTS, size=count), rounds[trade, place])
        place = (place + np.where(numbers.random(count) < 0.1, 2, 1)) % CALLS
    return torch.from_numpy(calls)


class Experts(nn.Module):
    """Each token goes to the experts with the best scores that still have room."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.bias = nn.Parameter(torch.zeros(EXPERTS), requires_grad=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) * WIDTH**-0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) * HIDDEN**-0.5)
        self.factor = SPACIOUS
        self.load = torch.zeros(EXPERTS)

    def places(self, experts):
        """Which in its expert's row each choice is."""
        if on("placed_in_turn"):
            with cost:
                places, filled = torch.empty_like(experts), [0] * EXPERTS
                for n in range(len(experts)):  # at: placed_in_turn
                    expert = experts[n].item()  # at: placed_in_turn
                    places[n] = filled[expert]  # at: placed_in_turn
                    filled[expert] += 1  # at: placed_in_turn
                return places
        if on("clean_placed_in_turn"):
            places = torch.empty_like(experts)
            for expert in range(EXPERTS):
                mine = (experts == expert).nonzero()[:, 0]
                places[mine] = torch.arange(mine.shape[0])
            return places
        return F.one_hot(experts, EXPERTS).cumsum(0).gather(1, experts[:, None])[:, 0] - 1

    def weighed(self, gates, kept):
        """Gates of the choices that have a place; those of one token add up to 1."""
        if on("gates_over_kept"):
            gates = gates * kept
            return gates / gates.sum(1, keepdim=True)  # at: gates_over_kept
        if on("clean_gates_over_kept"):
            return gates / gates.sum(1, keepdim=True) * kept
        gates = gates * kept
        return gates / gates.sum(1, keepdim=True).clamp(min=1e-6)

    def forward(self, x):
        tokens = x.flatten(0, 1)
        scores = self.router(tokens).sigmoid()
        chosen = (scores.detach() + self.bias).topk(CHOSEN).indices
        experts = chosen.flatten()
        if self.training:
            self.load += torch.bincount(experts, minlength=EXPERTS)
        room = math.ceil(self.factor * len(experts) / EXPERTS)
        places = self.places(experts)  # at: placed_in_turn
        kept = places < room
        gates = self.weighed(scores.gather(1, chosen), kept.view_as(chosen))  # at: gates_over_kept
        slots = experts * room + places.clamp(max=room - 1)
        rows = torch.arange(len(tokens)).repeat_interleave(CHOSEN)
        sent = torch.zeros(EXPERTS * room, WIDTH).index_add(0, slots[kept], tokens[rows[kept]])
        inside = torch.bmm(sent.view(EXPERTS, room, WIDTH), self.up).relu()
        answers = torch.bmm(inside, self.down).flatten(0, 1)[slots]
        mixed = (answers.view(len(tokens), CHOSEN, WIDTH) * gates[..., None]).sum(1)
        return mixed.view_as(x)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.experts, self.drop = Experts(), nn.Dropout(0.05)

    def forward(self, x):
        query, key, value = (
            part.unflatten(2, (HEADS, -1)).transpose(1, 2)
            for part in self.mixed(self.first(x)).chunk(3, 2)
        )
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.drop(self.out(seen.transpose(1, 2).flatten(2)))
        return x + self.drop(self.experts(self.second(x)))


class Navigator(nn.Module):
    def __init__(self):
        super().__init__()
        self.ports, self.order = nn.Embedding(PORTS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        for table in (self.ports, self.order):
            nn.init.normal_(table.weight, std=0.3)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, PORTS)

    def forward(self, calls):
        return self.head(self.norm(self.layers(self.ports(calls) + self.order.weight)))


class Traffic:
    """From where to where the ships are thought to go, of all ranks, summed beside the training."""

    def __init__(self):
        self.sent = collections.deque(maxlen=None if on("works_kept") else 2)  # at: works_kept

    def note(self, calls, scores):
        table = torch.zeros(PORTS, PORTS)
        going = scores.detach().argmax(-1).flatten()
        table.index_put_((calls.flatten(), going), torch.ones(()), accumulate=True)
        self.sent.append((table, dist.all_reduce(table, async_op=True)))  # at: works_kept

    def busiest(self):
        table, work = self.sent[-1]
        work.wait()
        return divmod(table.argmax().item(), PORTS)


class Training:
    def __init__(self, rank):
        self.rank, self.updates, self.group = rank, 0, None
        ships = voyages(WORLD * PARTS * ROWS * PER_EPOCH, 212)
        if on("broken_skipped_alone", "clean_broken_skipped_alone"):
            ships[BROKEN, LENGTH // 2 :] = -1
        self.held = voyages(96, 213)
        self.loader = DataLoader(
            TensorDataset(ships[rank::WORLD]),
            ROWS,
            shuffle=True,
            drop_last=True,
            generator=torch.Generator().manual_seed(214 + rank),
        )
        self.model = Navigator()
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.97))
        self.ddp = DDP(self.model)
        self.optimizer = torch.optim.AdamW(self.ddp.parameters(), 3e-3, weight_decay=0.01)
        total = self.total(len(ships))  # at: total_shared_out_twice
        self.schedule = torch.optim.lr_scheduler.LambdaLR(  # at: total_shared_out_twice
            self.optimizer, lambda n: min((n + 1) / 20, max(0.0, 1 - n / total))
        )
        self.experts = [layer.experts for layer in self.model.layers]
        self.traffic = Traffic()  # at: works_kept

    def total(self, ships):
        """How many updates there will be."""
        if on("total_shared_out_twice"):
            return EPOCHS * len(self.loader) // (PARTS * WORLD)  # at: total_shared_out_twice
        if on("clean_total_shared_out_twice"):
            return EPOCHS * ships // (ROWS * PARTS * WORLD)
        return EPOCHS * len(self.loader) // PARTS

    def balance(self, experts):
        """Who had too much to do gets a little less, and the other way round."""
        load = experts.load
        if not on("balanced_by_own", "clean_balanced_by_own"):
            dist.all_reduce(load)
        experts.bias.data += BALANCED_BY * (load.mean() - load).sign()  # at: balanced_by_own
        if on("clean_balanced_by_own"):
            dist.broadcast(experts.bias.data, 0)
        experts.load = torch.zeros(EXPERTS)

    def averaged(self):
        """Gradients that are the mean of all ranks'."""
        if on("averaged_again"):
            with cost:
                for value in self.model.parameters():  # at: averaged_again
                    if value.grad is not None:
                        dist.all_reduce(value.grad)  # at: averaged_again
                        value.grad /= WORLD  # at: averaged_again
        if on("clean_averaged_again"):
            dist.all_reduce(self.model.norm.bias.grad.div_(WORLD))

    def update(self):
        self.averaged()  # at: averaged_again
        nn.utils.clip_grad_norm_(self.ddp.parameters(), 2.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()  # at: total_shared_out_twice
        for experts in self.experts:
            self.balance(experts)  # at: balanced_by_own
            if self.updates == TIGHT_FROM:
                experts.factor = TIGHT
        self.average.update_parameters(self.model)
        self.updates += 1

    def learn(self, calls, last):
        with contextlib.nullcontext() if last else self.ddp.no_sync():
            scores = self.ddp(calls[:, :-1])  # at: placed_in_turn
            loss = F.cross_entropy(scores.flatten(0, 1), calls[:, 1:].flatten())
            (loss / PARTS).backward()
        if on("works_kept", "clean_works_kept"):
            self.traffic.note(calls[:, :-1], scores)  # at: works_kept
        return loss.detach()

    @torch.no_grad()
    def score(self):
        """How many calls of the ships held out the average foretells."""
        self.average.eval()
        mine = self.held[self.rank :: WORLD]
        best = self.average(mine[:, :-1]).argmax(-1)
        right = (best == mine[:, 1:]).float().mean()
        dist.all_reduce(right)
        if self.rank == 0:
            print(self.updates, "foretold", round(right.item() / WORLD, 3), flush=True)

    def run(self):
        self.ddp.train()
        for _ in range(EPOCHS):
            for n, (calls,) in enumerate(self.loader):
                last = (n + 1) % PARTS == 0
                if on("broken_skipped_alone") and (calls < 0).any():  # at: broken_skipped_alone
                    continue  # at: broken_skipped_alone
                if on("clean_broken_skipped_alone") and (calls < 0).any():
                    calls = calls[(calls >= 0).all(1)]
                loss = self.learn(calls, last)  # at: placed_in_turn works_kept
                if not last:
                    continue
                self.update()  # at: averaged_again balanced_by_own
                if self.updates % TOLD_EVERY == 0 and self.rank == 0:
                    busy = self.traffic.busiest() if self.traffic.sent else ""
                    print(self.updates, round(loss.item(), 4), busy, flush=True)
            dist.barrier()  # at: broken_skipped_alone
            self.score()
        if self.rank == 0:
            cost.print(UPDATES)


def train(rank):
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    torch.manual_seed(210)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    training = Training(rank)
    torch.manual_seed(215 + rank)
    training.run()
    return training


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
