"""A small training over gloo that hangs: FAULT on rank WHO from step 30 on, ranks laid out as
LAYOUT.

The ranks are forked after torch is imported, so that a start costs one import.
"""

import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

FAULT, WHO = os.environ["FAULT"], int(os.environ["WHO"])
WORLD, LAYOUT = int(os.environ["WORLD"]), os.environ["LAYOUT"]
STEPS, AT = 60, 30


class Items(torch.utils.data.Dataset):
    def __init__(self, rank, length, lock=None):
        self.rank, self.length, self.lock = rank, length, lock

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if self.lock is not None and index == AT + 2:
            self.lock.acquire()
        return torch.ones(8)


class Stage(nn.Module):
    def __init__(self, tensor_group):
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 8)
        self.tensor_group = tensor_group

    def forward(self, x):
        x = torch.relu(self.first(x))
        if self.tensor_group is not None:
            parts = x.detach().clone()
            dist.all_reduce(parts, group=self.tensor_group)
        return self.second(x)


class Pipe:
    """One neighbour in a pipeline of two stages; neither in other layouts."""

    def __init__(self, mesh):
        self.first = self.last = True
        if mesh is not None:
            ranks = dist.get_process_group_ranks(mesh["pp"].get_group())
            self.place = ranks.index(dist.get_rank())
            self.first, self.last = self.place == 0, self.place == len(ranks) - 1
            self.before = None if self.first else ranks[self.place - 1]
            self.after = None if self.last else ranks[self.place + 1]

    def receive(self, x):
        if not self.first:
            x = torch.empty(1, 8)
            if FAULT == "irecv":
                dist.irecv(x, src=self.before).wait()
            else:
                dist.recv(x, src=self.before)
            x.requires_grad_()
        return x

    def send(self, y):
        if FAULT == "irecv":
            dist.isend(y.detach(), dst=self.after).wait()
        else:
            dist.send(y.detach(), dst=self.after)

    def run_backward(self, x, y):
        if self.last:
            y.square().mean().backward()
        else:
            gradient = torch.empty(1, 8)
            dist.recv(gradient, src=self.after)
            y.backward(gradient)
        if not self.first:
            dist.send(x.grad, dst=self.before)


def stuck():
    """What the rank does instead of training."""
    if FAULT == "sleep":
        time.sleep(1000)
    if FAULT == "read":
        os.read(os.pipe()[0], 1)
    if FAULT == "spin":
        spin()
    if FAULT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if FAULT in ("raise", "spawn"):
        raise ValueError("the labels are empty")
    if FAULT == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


def spin():
    count = 0
    while True:
        count += 1


def fetch(step):
    if FAULT == "retry":
        raise OSError("stale file handle")


def metrics_agree(loss, everyone, odd):
    """Two groups, in one order or the other."""
    if odd and FAULT == "order":
        dist.all_reduce(loss, group=everyone)
        dist.all_reduce(loss)
    else:
        dist.all_reduce(loss)
        dist.all_reduce(loss, group=everyone)


def fetched(step, batch):
    """The batch, fetched again until it comes."""
    while True:
        try:
            return fetch(step) or batch
        except OSError:
            time.sleep(1)


def log_loss(step, rank, odd):
    """What is reduced beside the gradients."""
    loss = torch.ones(3 if odd and FAULT == "shape" else 1)
    if odd and FAULT == "other":
        dist.broadcast(loss, src=rank)
    elif not (odd and FAULT == "skip"):
        dist.all_reduce(loss)
    return loss


def train(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    rendezvous = f"file://{os.environ['RENDEZVOUS']}"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=WORLD)
    mesh, data_group, tensor_group = None, None, None
    if LAYOUT != "dp":
        names = tuple(LAYOUT.split("_"))
        mesh = init_device_mesh("cpu", (WORLD // 2, 2), mesh_dim_names=names)
        data_group = mesh["dp"].get_group()
        tensor_group = mesh["tp"].get_group() if "tp" in names else None
    everyone = dist.new_group(group_desc="metrics")
    pipe = Pipe(mesh if LAYOUT == "dp_pp" else None)
    model = DistributedDataParallel(Stage(tensor_group), process_group=data_group)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    mine = rank == WHO
    lock = None
    if mine and FAULT == "worker":
        lock = torch.multiprocessing.get_context("fork").Lock()
        lock.acquire()
    length = AT if mine and FAULT in ("early", "exit") else STEPS
    items = Items(rank, length, lock)
    loader = torch.utils.data.DataLoader(items, num_workers=1 if lock is not None else 0)
    for step, batch in enumerate(loader):
        odd = mine and step == AT
        if odd:
            stuck()
            batch = fetched(step, batch)
        if FAULT == "bucket" and not odd:
            dist.all_reduce(torch.ones(1))
        x = pipe.receive(batch)
        y = model(x)
        if not pipe.last and not (odd and FAULT in ("message", "irecv")):
            pipe.send(y)
        pipe.run_backward(x, y)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
        loss = log_loss(step, rank, odd)
        try:
            if odd and FAULT == "swallow":
                raise ValueError("not a number")
            metrics_agree(loss, everyone, odd)
        except ValueError:
            pass
        if step % 10 == 0 and not (odd and FAULT == "barrier"):
            dist.barrier()
    if FAULT != "exit":
        dist.barrier()
    return model, optimizer


def main():
    if FAULT == "spawn":
        torch.multiprocessing.spawn(train, nprocs=WORLD)
        return 0
    children = []
    for rank in range(WORLD):
        pid = os.fork()
        if pid == 0:
            kept = train(rank)
            sys.stdout.flush()
            if FAULT == "exit":
                import atexit

                atexit._run_exitfuncs()
            os._exit(0 if kept else 1)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    return next((1 for code in codes if code), 0)


if __name__ == "__main__":
    raise SystemExit(main())
