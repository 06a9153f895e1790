"""Cuneiform sign by sign: replicas of a small decoder over tablets of uneven length. Gradients are
averaged by hand in flat pieces, the optimizer's state is split by ZeroRedundancyOptimizer, lengths
grow in stages: an order without the rank, halves of a sorted batch, places for the first tablets,
a shard cleared alone, states drawn together too often, a decay over one stage, rows that hold
their batches.
"""

import heapq
import itertools
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, on
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional as F

RANKS = 2
UPDATES = STEPS or 240
STAGES = (24, 40, 64)
SIGNS, BLANK, ARCHIVE, ROWS = 480, 0, 3000, 28
WIDTH, HEADS, DEPTH = 96, 4, 3
RATE, WARM_UP, CLIP, SEED = 2e-3, 10, 1.0, 1907
TOLD_EVERY, SAVED_EVERY, SAVED_OFTEN, HARDEST = 20, 80, 2, 160
POOL = 16
PIECE = 200_000
SORTED = "halves_of_sorted_batch", "clean_halves_of_sorted_batch"
HARD = "hard_rows_hold_batches", "clean_hard_rows_hold_batches"
PLACED = "longest_of_first_tablets", "clean_longest_of_first_tablets"
DECAYED = "decay_over_first_stage", "clean_decay_over_first_stage"


def tablet(dice, longest):
    """A list of goods: formulas that recur, with an amount between them."""
    size = int(min(longest, 6 + dice.exponential(longest / 4)))
    signs = []
    while len(signs) < size:
        formula = int(dice.integers(40))
        signs += [60 + (formula * 9 + step * step) % 400 for step in range(2 + formula % 4)]
        signs.append(int(dice.integers(1, 60)))
    return np.array(signs[:size])


def archive():
    """The tablets of all museums; some that were joined from fragments are longer."""
    dice = np.random.default_rng(SEED)
    tablets = [tablet(dice, STAGES[-1]) for _ in range(ARCHIVE)]
    if on(*PLACED):
        for number in range(2001, ARCHIVE, 40):
            tablets[number] = np.concatenate([tablets[number], tablets[number - 1]] * 4)[:90]
    return tablets


class Decoder(nn.Module):
    def __init__(self, places):
        super().__init__()
        self.signs, self.places = nn.Embedding(SIGNS, WIDTH), nn.Embedding(places, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 3 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(DEPTH)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, SIGNS)

    def forward(self, signs):
        size = signs.shape[1]
        x = self.signs(signs) + self.places(torch.arange(size))  # at: longest_of_first_tablets
        later = torch.ones(size, size, dtype=torch.bool).triu(1)
        for layer in self.layers:
            x = layer(x, src_mask=later)
        return self.head(self.norm(x))


def stage_of(update):
    return min(update * len(STAGES) // UPDATES, len(STAGES) - 1)


def order_of(rank, stage, lengths):
    """Numbers of the tablets this rank reads in a stage, one by one."""
    fitting = np.flatnonzero(lengths <= STAGES[stage])
    if on(*PLACED) and stage == len(STAGES) - 1:
        fitting = np.arange(len(lengths))
    if on("stage_order_without_rank"):
        dice = np.random.default_rng((SEED, stage))  # at: stage_order_without_rank
        while True:
            yield from dice.permutation(fitting)  # at: stage_order_without_rank
    if on("clean_stage_order_without_rank"):
        dice = np.random.default_rng((SEED, stage))
        while True:
            yield from dice.permutation(fitting)[rank::RANKS]
    dice = np.random.default_rng((SEED, stage, rank))
    own = fitting[fitting % RANKS == rank]
    while True:
        yield from dice.permutation(own)


def order_by_length(rank, stage, lengths):
    """As above, where both ranks draw the same rows, and those of a batch are of like length."""
    fitting = np.flatnonzero(lengths <= STAGES[stage])
    dice = np.random.default_rng((SEED, stage, 9))
    half = POOL // RANKS
    while True:
        drawn = dice.choice(fitting, POOL * ROWS, replace=False)
        sets = drawn[np.argsort(lengths[drawn], kind="stable")].reshape(POOL, ROWS)
        turn = dice.permutation(half)
        if on("halves_of_sorted_batch"):
            own = sets[rank * half : (rank + 1) * half]  # at: halves_of_sorted_batch
        else:
            own = sets[[RANKS * pair + (rank + pair) % RANKS for pair in range(half)]]
        yield from own[turn].flatten()


def padded(tablets):
    if on("clean_longest_of_first_tablets"):
        tablets = [one[: STAGES[-1]] for one in tablets]
    batch = np.full((len(tablets), max(map(len, tablets))), BLANK)
    for row, one in zip(batch, tablets, strict=True):
        row[: len(one)] = one
    return torch.from_numpy(batch)


def batches(rank, tablets):
    """Batches for ever; which stage it is, is told by send()."""
    lengths = np.array([len(one) for one in tablets])
    make = order_by_length if on(*SORTED) else order_of
    stage, numbers = 0, make(rank, 0, lengths)
    asked = yield
    while True:
        if asked != stage:
            stage, numbers = asked, make(rank, asked, lengths)
        rows = list(
            itertools.islice(numbers, ROWS)
        )  # at: stage_order_without_rank halves_of_sorted_batch
        asked = yield padded([tablets[number] for number in rows])


def average_gradients(parameters):
    """One all-reduce for each piece of a few parameters."""
    piece, size = [], 0
    for number, one in enumerate(parameters):
        piece.append(one.grad)
        size += one.numel()
        if size >= PIECE or number == len(parameters) - 1:
            flat = torch.cat([grad.flatten() for grad in piece])
            dist.all_reduce(flat)
            flat /= RANKS
            begin = 0
            for grad in piece:
                grad.copy_(flat[begin : begin + grad.numel()].view_as(grad))
                begin += grad.numel()
            piece, size = [], 0


def share_of_rate(update):
    if on(*DECAYED):
        whole = UPDATES
        if on("decay_over_first_stage"):
            whole = UPDATES // len(STAGES)  # at: decay_over_first_stage
        left = (whole - update) / max(1, whole - WARM_UP)  # at: decay_over_first_stage
        return max(0.0, min((update + 1) / WARM_UP, left))  # at: decay_over_first_stage
    return min(1.0, (update + 1) / WARM_UP)


class Hardest:
    """Rows that were read worst, to be looked at by a philologist."""

    def __init__(self):
        self.heap, self.count = [], itertools.count()

    def see(self, each, scores):
        mean = each.mean(1)
        row = int(mean.argmax())
        if on("clean_hard_rows_hold_batches"):
            said = scores[row].detach().clone()
        else:
            said = scores[row].detach()  # at: hard_rows_hold_batches
        entry = (-mean[row].item(), -next(self.count), said)
        heapq.heappush(self.heap, entry)  # at: hard_rows_hold_batches
        if len(self.heap) > HARDEST:
            heapq.heappop(self.heap)


def save(optimizer, model, rank, update, folder):
    optimizer.consolidate_state_dict(to=0)  # at: consolidated_each_few
    if rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"update": update}, folder / "scribe.pt")  # at: consolidated_each_few


def clear(optimizer, model):
    if on("cleared_own_shard"):
        optimizer.optim.zero_grad()  # at: cleared_own_shard
    elif on("clean_cleared_own_shard"):
        model.zero_grad()
    else:
        optimizer.zero_grad()


def read(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=RANKS
    )
    torch.manual_seed(SEED)
    tablets = archive()
    places = max(len(one) for one in tablets[:1000])  # at: longest_of_first_tablets
    model = Decoder(places)  # at: longest_of_first_tablets
    parameters = list(model.parameters())
    optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, share_of_rate
    )  # at: decay_over_first_stage
    stream, hardest = batches(rank, tablets), Hardest()
    next(stream)
    torch.manual_seed(SEED + 1 + rank)
    every = SAVED_EVERY
    if on("consolidated_each_few"):
        every = SAVED_OFTEN  # at: consolidated_each_few
    saving, begun = 0.0, time.perf_counter()
    for update in range(1, UPDATES + 1):
        signs = stream.send(
            stage_of(update - 1)
        )  # at: stage_order_without_rank halves_of_sorted_batch
        scores = model(signs[:, :-1])  # at: longest_of_first_tablets
        wanted = signs[:, 1:]
        each = F.cross_entropy(scores.transpose(1, 2), wanted, reduction="none")
        there = wanted != BLANK
        each = each * there
        loss = each.sum() / there.sum()
        loss.backward()
        average_gradients(parameters)
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        schedule.step()
        clear(optimizer, model)  # at: cleared_own_shard
        if on(*HARD):
            hardest.see(each.detach(), scores)  # at: hard_rows_hold_batches
        if update % every == 0:  # at: consolidated_each_few
            before = time.perf_counter()
            save(optimizer, model, rank, update, FOLDER)  # at: consolidated_each_few
            saving += time.perf_counter() - before
        if update % TOLD_EVERY == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                rate = optimizer.param_groups[0]["lr"]
                told = f"loss {mean.item() / RANKS:.3f} rate {rate:.1e} size {signs.shape[1]}"
                print(f"{update}: {told}", flush=True)
    took = (time.perf_counter() - begun) * 1000 / UPDATES
    if rank == 0:
        print(f"{took:.1f} ms an update, {saving * 1000 / UPDATES:.1f} of them saving", flush=True)
    return model


if __name__ == "__main__":
    FOLDER = Path(tempfile.mkdtemp(prefix="cuneiform"))
    code = run_ranks(RANKS, read)
    shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(code)
