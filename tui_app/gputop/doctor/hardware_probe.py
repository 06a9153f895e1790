"""Measures one host, or its links as one rank of several; runs in the interpreter that trains,
alone or through ssh.

Prints one line of JSON. Standard library and torch only: it is sent to hosts where gputop is not
installed.
"""

import json
import os
import socket
import statistics
import sys
import tempfile
import time

GEMM_CPU, GEMM_CUDA = 768, 8192
COPY_BYTES_CPU, COPY_BYTES_CUDA = 64 << 20, 1 << 30
HOST_COPY_BYTES = 256 << 20
DISK_BYTES = 64 << 20
LINK_BYTES = 4 << 20
GPU_LINK_BYTES = 256 << 20
REPEATS = 7


def seconds(work, finish):
    """Median time of one call in seconds, after one call to warm up."""
    work()
    finish()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        finish()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure_device(torch, name):
    """GEMM in TFLOP/s, copies in memory and from the host in GB/s."""
    cuda = name != "cpu"
    finish = (lambda: torch.cuda.synchronize(name)) if cuda else (lambda: None)
    size = GEMM_CUDA if cuda else GEMM_CPU
    dtype = torch.bfloat16 if cuda else torch.float32
    a, b = (torch.randn(size, size, dtype=dtype, device=name) for _ in range(2))
    figures = {"gemm_tflops": 2 * size**3 / seconds(lambda: torch.mm(a, b), finish) / 1e12}
    count = COPY_BYTES_CUDA if cuda else COPY_BYTES_CPU
    source = torch.ones(count, dtype=torch.uint8, device=name)
    target = torch.empty_like(source)
    figures["memory_gbs"] = 2 * count / seconds(lambda: target.copy_(source), finish) / 1e9
    if cuda:
        pinned = torch.ones(HOST_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(HOST_COPY_BYTES, dtype=torch.uint8, device=name)
        spent = seconds(lambda: there.copy_(pinned, non_blocking=True), finish)
        figures["host_to_device_gbs"] = HOST_COPY_BYTES / spent / 1e9
        figures["gpu"] = torch.cuda.get_device_name(name)
    return figures


def measure_disk(folder):
    """Write (to the disk) and read (past the cache where the system lets us) of a file, in GB/s."""
    data = os.urandom(1 << 20)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        began = time.perf_counter()
        for _ in range(DISK_BYTES // len(data)):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
        written = time.perf_counter() - began
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.perf_counter()
        with open(file.name, "rb", buffering=0) as reopened:
            while reopened.read(1 << 20):
                pass
        read = time.perf_counter() - began
    return {"disk_write_gbs": DISK_BYTES / written / 1e9, "disk_read_gbs": DISK_BYTES / read / 1e9}


def measure_loader(torch):
    """Batches a second of a DataLoader with two workers that makes 1 MB batches."""

    source = torch.utils.data.DataLoader(
        torch.zeros(1280, 32768, dtype=torch.uint8), batch_size=32, num_workers=2
    )
    batches = iter(source)
    next(batches)
    began = time.perf_counter()
    count = sum(1 for _ in batches)
    return {"loader_batches_s": count / (time.perf_counter() - began)}


def measure_host(folder):
    """All of this host, device by device."""
    import torch

    names = [f"cuda:{i}" for i in range(torch.cuda.device_count())] or ["cpu"]
    devices = {}
    for name in names:
        devices[name] = measure_device(torch, name)
    host = dict(measure_disk(folder), **measure_loader(torch))
    return {"host": socket.gethostname(), "devices": devices, "figures": host}


def measure_gpu_links(rank, world, where):
    """Bus bandwidth of an all-reduce of the GPUs of this host by NCCL, in GB/s."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=where, rank=rank, world_size=world)
    data = torch.ones(GPU_LINK_BYTES, dtype=torch.uint8, device="cuda")
    spent = seconds(lambda: dist.all_reduce(data), torch.cuda.synchronize)
    dist.destroy_process_group()
    return {"all_reduce_gbs": 2 * GPU_LINK_BYTES * (world - 1) / world / spent / 1e9}


def measure_links(rank, world, where):
    """All-reduce of all ranks, then sends between pairs, in GB/s; the first rank's are printed."""
    import datetime as dt

    import torch
    import torch.distributed as dist

    patience = dt.timedelta(seconds=60)
    dist.init_process_group(
        "gloo", init_method=where, rank=rank, world_size=world, timeout=patience
    )
    data = torch.ones(LINK_BYTES, dtype=torch.uint8)
    spent = seconds(lambda: dist.all_reduce(data), dist.barrier)
    pairs = []
    for first in range(world):
        for second in range(first + 1, world):
            dist.barrier()
            if rank in (first, second):
                pairs.append(
                    [first, second, LINK_BYTES / one_way(dist, data, rank, first, second) / 1e9]
                )
    gathered = [None] * world
    dist.all_gather_object(gathered, pairs)
    dist.destroy_process_group()
    unique = {(a, b): speed for part in gathered for a, b, speed in part}
    figures = {"all_reduce_gbs": LINK_BYTES * 2 * (world - 1) / world / spent / 1e9}
    figures["pairs"] = [[a, b, speed] for (a, b), speed in sorted(unique.items())]
    return figures


def one_way(dist, data, rank, first, second):
    """Seconds of a send, as half of the way there and back."""

    def there_and_back():
        if rank == first:
            dist.send(data, second)
            dist.recv(data, second)
        else:
            dist.recv(data, first)
            dist.send(data, first)

    return seconds(there_and_back, lambda: None) / 2


def main(words):
    """``host FOLDER``, or ``links`` or ``gpu-links`` with ``RANK WORLD WHERE``."""
    if words[0] == "host":
        figures = measure_host(words[1] if len(words) > 1 else None)
    else:
        measure = measure_gpu_links if words[0] == "gpu-links" else measure_links
        figures = measure(int(words[1]), int(words[2]), words[3])
    print("GPUTOP " + json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
