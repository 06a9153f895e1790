"""A small training that ends badly or does not end at all (environment variable FAULT), or a clean
one.
"""

import contextlib
import ctypes
import json
import os
import threading
import time
from pathlib import Path

import eager  # noqa: F401
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FAULT = os.environ.get("FAULT", "none")
STEPS, STOPS_AT = 60, 40
CLONE_VM, CLONE_VFORK, CLONE_NEWNS = 0x100, 0x4000, 0x20000
held = threading.Lock()


class Items(Dataset):
    def __len__(self):
        return STEPS * 4

    def __getitem__(self, index):
        late = index >= STOPS_AT * 4
        if FAULT == "loader" and late:
            held.acquire()
        if FAULT == "storage" and late:
            sleep_in_the_kernel()
        if FAULT == "shared_memory" and late:
            return torch.ones(1_000_000)
        return torch.randn(64)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, x):
        time.sleep(0.03)
        return self.layers(x)


def sleep_in_the_kernel():
    """Uninterruptible sleep (state D): the caller of vfork waits in the kernel for its child, which
    sleeps in libc.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    stack = ctypes.create_string_buffer(1 << 16)
    top = ctypes.c_void_p((ctypes.addressof(stack) + (1 << 16)) & ~15)
    libc.clone(
        ctypes.cast(libc.sleep, ctypes.c_void_p),
        top,
        CLONE_VM | CLONE_VFORK | 17,
        ctypes.c_void_p(60),
    )


def shrink_shared_memory():
    """A mount namespace of our own with 2 MiB in /dev/shm."""
    libc = ctypes.CDLL(None, use_errno=True)
    private = 1 << 18 | 1 << 14  # MS_PRIVATE | MS_REC
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, private, None):
        raise OSError(ctypes.get_errno(), "cannot make a mount namespace")
    if libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=2m"):
        raise OSError(ctypes.get_errno(), "cannot mount a small /dev/shm")


def limit_memory():
    """A memory cgroup (version 1 or 2) with room for 200 MB more than is in use."""
    root = Path("/sys/fs/cgroup")
    version_1 = (root / "memory").is_dir()
    parent = root / "memory" if version_1 else root
    for old in parent.glob("gputop-test-*"):  # of runs before: whoever is killed cannot tidy up
        with contextlib.suppress(OSError):
            old.rmdir()
    group = parent / f"gputop-test-{os.getpid()}"
    group.mkdir()
    room = 200_000_000 + (
        0 if version_1 else 400_000_000
    )  # version 1 charges only what is touched after the move
    (group / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(str(room))
    (group / "cgroup.procs").write_text(str(os.getpid()))


def spin_forever():
    while True:
        pass


def main():
    torch.set_num_threads(1)
    if FAULT == "shared_memory":
        shrink_shared_memory()
    workers = 1 if FAULT in ("loader", "shared_memory", "clean_workers") else 0
    if FAULT == "loader":
        held.acquire()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    kept = []
    for step, batch in enumerate(
        DataLoader(Items(), batch_size=4, num_workers=workers, prefetch_factor=None)
    ):
        model(batch[:, :64]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == STOPS_AT and FAULT == "spin":
            spin_forever()
        if step == STOPS_AT and FAULT == "host_memory":
            limit_memory()
            kept.append(torch.ones(250_000_000))
    print(json.dumps({"truth_ms_per_step": 0.0, "steps": STEPS}), flush=True)


if __name__ == "__main__":
    main()
