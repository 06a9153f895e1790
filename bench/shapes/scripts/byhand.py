"""Two ranks that average gradients by hand: one forgets, one is slow in its loss, weights are sent
each step, one writes, one is killed, one leaves early, one calls another operation.
"""

import json
import os
import signal
import sys

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn

steps, cost = STEPS or 250, Cost()


def average(model, rank, step):
    """Mean gradients over the ranks."""
    gradients = [value.grad for value in model.parameters()]
    if on("one_layer_forgotten"):
        gradients = gradients[1:]
    together = torch.cat([gradient.flatten() for gradient in gradients]) / 2
    dist.all_reduce(together)  # at: one_layer_forgotten
    parts = together.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def ranked(scores, wanted):
    """Pairs in the wrong order, pair by pair."""
    with cost:
        values, wrong = scores.detach().tolist(), 0
        for i in range(0, len(values), 100):
            for j in range(len(values)):
                wrong += (values[i] < values[j]) != (wanted[i] < wanted[j])  # at: pairs_on_one
    return wrong


def train(rank):
    torch.set_num_threads(1)
    torch.manual_seed(124)
    os.environ["RANK"] = str(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=2
    )
    model = nn.Sequential(
        nn.Linear(48, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    torch.manual_seed(1240 + rank)
    count = steps - 60 if on("leaves_early") and rank == 1 else steps
    for step in range(count):
        x = torch.randn(2048, 48)
        scores = model(x)[:, 0]
        loss = (scores - x[:, 0]).square().mean()
        if on("pairs_on_one") and rank == 1:
            ranked(scores, x[:, 0].tolist())  # at: pairs_on_one
        if on("nan_on_one") and rank == 1 and step == 150:
            loss = loss / (loss - loss)  # at: nan_on_one
        optimizer.zero_grad()
        loss.backward()
        average(model, rank, step)
        optimizer.step()
        if on("weights_sent") or (on("clean_weights_sent") and step % 100 == 99):
            for value in model.parameters():
                for row in value.data.split(24):
                    dist.broadcast(row, 0)  # at: weights_sent
        if on("one_dumps") and rank == 0:
            with cost, open("scores.json", "a") as file:
                json.dump(x.tolist(), file)  # at: one_dumps
        if on("one_is_killed") and rank == 1 and step == 120:
            os.kill(os.getpid(), signal.SIGKILL)
        if on("other_operation") and step == 120:
            one = torch.ones(300)
            if rank == 0:
                dist.all_reduce(one)  # at: other_operation
            else:
                dist.barrier()  # at: other_operation
                dist.all_gather([torch.ones(300), torch.ones(300)], one)  # at: other_operation
    if rank == (0 if on("one_dumps") else 1):
        cost.print(steps)
    return model


if __name__ == "__main__":
    sys.exit(run_ranks(2, train))
