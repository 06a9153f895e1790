"""A small training fed by a DataLoader, with one fault of choice in its input (environment variable
FAULT) or none.

The training keeps its own clock around each fetch; the last line printed is what the fault cost.
"""

import atexit
import json
import mmap
import os
import resource
import time

import eager  # noqa: F401
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FAULT = os.environ.get("FAULT", "none")
STEPS = int(os.environ.get("STEPS", "120"))
BATCH = 4
EPOCH_STEPS = 30
STEP_S = 0.010

torch.set_num_threads(1)
torch.manual_seed(0)


class Items(Dataset):
    """Rows of 64 numbers, made the way that FAULT says."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if FAULT == "busy_workers":
            spin(0.007)
        elif FAULT == "one_slow_worker" and torch.utils.data.get_worker_info().id == 1:
            time.sleep(0.012)
        return torch.randn(64)


def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def many_tensors(rows):
    """A batch in so many pieces that taking it over is work: each is a file handed from process to
    process.
    """
    return [torch.stack(rows)] + [torch.zeros(1) for _ in range(100)]


class Stored(Items):
    """The same from a file on a disk that this process may read at 4 MB/s, past the page cache."""

    ROW_BYTES = 32_768

    def __init__(self, length):
        super().__init__(length)
        self.path = os.path.abspath("rows.bin")
        with open(self.path, "wb") as file:
            file.write(os.urandom(self.ROW_BYTES) * length)
            os.fsync(file.fileno())
        slow_down_reads(self.path, 4_000_000)

    def __getitem__(self, index):
        place = mmap.mmap(-1, self.ROW_BYTES)  # O_DIRECT wants whole pages
        row = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        os.preadv(row, [place], index * self.ROW_BYTES)
        os.close(row)
        return torch.frombuffer(place, dtype=torch.uint8)[:64].float()


def slow_down_reads(path, bytes_per_s):
    """Put this process and the workers to come into a control group with a limit on reading."""
    group = f"/sys/fs/cgroup/blkio/gputop-fault-{os.getpid()}"
    os.mkdir(group)
    device = os.stat(path).st_dev
    with open(f"{group}/blkio.throttle.read_bps_device", "w") as file:
        file.write(f"{os.major(device)}:{os.minor(device)} {bytes_per_s}")
    join("/sys/fs/cgroup/blkio", group)


def join(root, group):
    with open(f"{group}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))

    atexit.register(leave, root, group)


def leave(root, group):
    with open(f"{root}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
    for _ in range(50):
        try:
            os.rmdir(group)
            break
        except OSError:  # the workers are still on their way out
            time.sleep(0.02)


def open_an_index(worker):
    """What each worker does first."""
    time.sleep(0.25)


def make_loader():
    if FAULT == "storage":
        return DataLoader(Stored(STEPS * BATCH), BATCH, num_workers=1)
    if FAULT == "busy_workers":
        return DataLoader(Items(STEPS * BATCH), BATCH, num_workers=1)
    if FAULT == "one_slow_worker":
        return DataLoader(Items(STEPS * BATCH), BATCH, num_workers=2)
    if FAULT == "many_tensors":
        return DataLoader(Items(STEPS * BATCH), BATCH, num_workers=1, collate_fn=many_tensors)
    if FAULT == "epochs":
        return DataLoader(
            Items(EPOCH_STEPS * BATCH), BATCH, num_workers=1, worker_init_fn=open_an_index
        )
    return DataLoader(Items(STEPS * BATCH), BATCH, num_workers=1)


def epochs(loader):
    """Batches of as many epochs as STEPS need, and how long the training waited for each, epoch's
    first one marked.
    """
    done = 0
    while done < STEPS:
        begin = time.perf_counter()
        batches = iter(loader)
        first = True
        while (batch := next(batches, None)) is not None and done < STEPS:
            yield batch, time.perf_counter() - begin, first
            done += 1
            begin, first = time.perf_counter(), False


class Net(nn.Module):
    """Takes ten milliseconds, mostly without a core, as if a device computed."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x):
        time.sleep(STEP_S)
        return self.layers(x)


def main():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = make_loader()
    kept = []
    if FAULT == "open_files":
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )
        kept = [
            os.open(os.devnull, os.O_RDONLY) for _ in range(180 - len(os.listdir("/proc/self/fd")))
        ]
    waits, starts = [], []
    ended = time.perf_counter()
    for batch, _, first in epochs(loader):
        waited = time.perf_counter() - ended
        (starts if first else waits).append(waited)
        inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ended = time.perf_counter()
    lost_s = sum(waits)
    if FAULT == "epochs":
        lost_s = sum(starts[1:]) - (len(starts) - 1) * sum(waits) / len(waits)
    truth = (
        lost_s / STEPS * 1e3
        if FAULT in ("busy_workers", "one_slow_worker", "many_tensors", "epochs", "storage")
        else 0.0
    )
    print(json.dumps({"truth_ms_per_step": truth, "steps": STEPS, "open": len(kept)}))


if __name__ == "__main__":
    main()
