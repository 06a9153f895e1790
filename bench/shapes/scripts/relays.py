"""Three processes that pass readings of relays on to each other, a stage of a network each, by send
and recv: one counts, rows are sent one by one, a batch is masked whole, the first keeps what it
sent, one is killed, the last waits for a file.
"""

import os
import signal
import sys
import time

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn

WORLD, PARTS, ROWS, WIDTH, KINDS = 3, 4, 32, 384, 20
steps, cost = STEPS or 260, Cost()


def stage_of(rank):
    layers = [nn.Linear(40, WIDTH), nn.GELU()] if rank == 0 else []
    for _ in range(2):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
    if rank == WORLD - 1:
        layers.append(nn.Linear(WIDTH, KINDS))
    return nn.Sequential(*layers)


def pass_on(tensor, to):
    if on("rows_sent"):
        for row in tensor.split(8):
            dist.send(row.contiguous(), to)  # at: rows_sent
    else:
        dist.send(tensor.contiguous(), to)


def take(source):
    tensor = torch.empty(ROWS, WIDTH)
    if on("rows_sent"):
        for row in tensor.split(8):
            dist.recv(row, source)  # at: rows_sent
    else:
        dist.recv(tensor, source)
    return tensor


def counted(bins, y):
    """Adds how often each size of value occurs."""
    with cost:
        for value in y.detach()[::2].flatten().tolist():  # at: middle_counts
            key = round(value, 1)  # at: middle_counts
            bins[key] = bins.get(key, 0) + 1  # at: middle_counts


def loss_of(scores, wanted, known):
    each = nn.functional.cross_entropy(scores, wanted, reduction="none")
    there = known.sum()
    if not on("masked_whole"):
        there = there.clamp(min=1)
    return (each * known).sum() / there / PARTS  # at: masked_whole


def readings(step):
    """The micro-batches of a step, the same wherever they are drawn."""
    numbers = torch.Generator().manual_seed(1600 + step)
    for part in range(PARTS):
        x = torch.randn(ROWS, 40, generator=numbers)
        known = (torch.rand(ROWS, generator=numbers) > 0.2).float()
        if on("masked_whole", "clean_masked_whole") and step == 130 and part == 2:
            known = torch.zeros(ROWS)
        yield x, x[:, :KINDS].argmax(1), known


def forwards(rank, stage, step, held, bins):
    """Each micro-batch through this stage, on to the next."""
    total = 0.0
    for x, wanted, known in readings(step):
        if rank > 0:
            x = take(rank - 1).requires_grad_()  # at: rows_sent
        y = stage(x)
        if rank == 1 and (on("middle_counts") or (on("clean_middle_counts") and step % 50 == 0)):
            counted(bins, y)  # at: middle_counts
        if rank < WORLD - 1:
            pass_on(y.detach(), rank + 1)  # at: rows_sent
        else:
            y = loss_of(y, wanted, known)  # at: masked_whole
            total += y.item()
        held.append((x, y))
    return total


def backwards(rank, held):
    if rank == 0 and on("activations_kept"):
        pairs = held[-PARTS:]  # at: activations_kept
    else:
        pairs = [held.pop(0) for _ in range(PARTS)]
    for x, y in pairs:
        if rank == WORLD - 1:
            y.backward()  # at: masked_whole
        else:
            y.backward(take(rank + 1))  # at: rows_sent
        if rank > 0:
            pass_on(x.grad, rank - 1)  # at: rows_sent


def befalls(rank, step):
    if on("stage_killed") and rank == 1 and step == 90:
        os.kill(os.getpid(), signal.SIGKILL)
    if on("last_waits") and rank == 2 and step == 80:
        while not os.path.exists("first_is_ready"):  # at: last_waits
            time.sleep(0.2)  # at: last_waits


def train(rank):
    torch.set_num_threads(1)
    torch.manual_seed(160 + rank)
    os.environ["RANK"] = str(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    stage, held, bins = stage_of(rank), [], {}
    optimizer = torch.optim.AdamW(stage.parameters(), 5e-4)
    for step in range(steps):
        optimizer.zero_grad()
        loss = forwards(rank, stage, step, held, bins)  # at: rows_sent
        backwards(rank, held)  # at: rows_sent
        optimizer.step()
        befalls(rank, step)  # at: last_waits
        if step % 50 == 0 and rank == WORLD - 1:
            print(step, loss, flush=True)
    if rank == 1:
        cost.print(steps)
    return stage


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
