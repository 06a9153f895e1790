"""Runs that end or stand still: a lock that is held, a reply that never comes, a worker that sleeps
for good, a loop without end, a fault in native code, an exit in the middle, a key that is missing.
"""

import ctypes
import os
import queue
import socket
import sys
import threading
import time

import eager  # noqa: F401
import torch
from shape import STEPS, on
from torch import nn
from torch.utils.data import DataLoader, Dataset

steps = STEPS or 400
torch.set_num_threads(1)
torch.manual_seed(117)


class Rows(Dataset):
    def __len__(self):
        return steps * 16

    def __getitem__(self, index):
        if on("worker_sleeps") and index == 1600:
            threading.Event().wait()  # at: worker_sleeps
        row = torch.randn(32)
        if on("worker_key") and index == 1600:
            return {"x": row}["y"], 1  # at: worker_key
        if on("sizes_differ") and index == 1600:
            row = torch.randn(31)
        return row, int(row[0] > 0)


def hold(lock):
    """Take the lock and keep it."""
    lock.acquire()
    threading.Event().wait()


model = nn.Sequential(
    nn.Linear(32, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 2)
)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
workers = 1 if on("worker_sleeps", "worker_key") else 0
loader = DataLoader(Rows(), batch_size=16, num_workers=workers)  # at: worker_sleeps
for step, (x, y) in enumerate(loader):  # at: worker_sleeps sizes_differ worker_key
    if on("label_range") and step == 120:
        y[3] = 7
    loss = nn.functional.cross_entropy(model(x), y)  # at: label_range
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 100:
        if on("lock_held"):
            lock = threading.Lock()
            threading.Thread(target=hold, args=(lock,), daemon=True).start()
            time.sleep(0.2)
            with lock:  # at: lock_held
                print("mine", flush=True)
        if on("no_reply"):
            here, there = socket.socketpair()
            here.recv(8)  # at: no_reply
        if on("nothing_queued"):
            queue.Queue().get()  # at: nothing_queued
        if on("loops_for_ever"):
            value = 0.5
            while abs(value * value - 2) > 0:  # at: loops_for_ever
                value = (value + 2 / value) / 2 + 1e-9  # at: loops_for_ever
        if on("native_fault"):
            ctypes.string_at(0)
        if on("exit_seven"):
            sys.exit(7)
        if on("key_missing"):
            settings = {"rate": 0.1}
            rate = settings["warmup"]  # at: key_missing
        if on("aborted"):
            os.abort()
        if on("file_missing"):
            torch.load("best_model.pt")  # at: file_missing
        if on("backward_twice"):
            loss.backward()  # at: backward_twice
    if step % 100 == 0:
        print(step, loss.item(), flush=True)
