"""A small training in one process, with one fault of choice (environment variable FAULT) or none.

Every fault keeps its own clock; the last line printed is what it cost: {"truth_ms_per_step": ...,
"steps": ...}.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import eager  # noqa: F401
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

FAULT = os.environ.get("FAULT", "none")
STEPS = int(os.environ.get("STEPS", "150"))
WIDTH = int(os.environ.get("WIDTH", "256"))
BATCH = int(os.environ.get("BATCH", "64"))

torch.set_num_threads(1)
torch.manual_seed(0)
lost_s = 0.0


class SlowItems(Dataset):
    def __init__(self, pause_s):
        self.pause_s = pause_s

    def __len__(self):
        return STEPS * 4

    def __getitem__(self, index):
        time.sleep(self.pause_s)
        return torch.randn(WIDTH), torch.randn(WIDTH)


def make_loader():
    if FAULT == "slow_getitem":
        return DataLoader(SlowItems(0.002), batch_size=4)
    if FAULT == "mended_getitem":
        return DataLoader(
            SlowItems(0.002),
            batch_size=4,
            num_workers=2,
            persistent_workers=True,
            prefetch_factor=4,
        )
    if FAULT == "mended_workers":
        return DataLoader(SlowItems(0.005), batch_size=4, num_workers=2)
    if FAULT == "few_workers":
        return DataLoader(SlowItems(0.005), batch_size=4, num_workers=1)
    if FAULT == "clean_workers":
        inputs = torch.randn(STEPS * BATCH, WIDTH)
        return DataLoader(TensorDataset(inputs, inputs), batch_size=BATCH, num_workers=1)
    inputs = torch.randn(STEPS * BATCH, WIDTH)
    return DataLoader(TensorDataset(inputs, inputs.roll(1, 1)), batch_size=BATCH)


def get_batch(data):
    begin = int(torch.randint(len(data) - BATCH, ()))
    return data.tensors[0][begin : begin + BATCH], data.tensors[1][begin : begin + BATCH]


def clocked(work):
    global lost_s
    begin = time.perf_counter()
    result = work()
    lost_s += time.perf_counter() - begin
    return result


def log_metrics():
    time.sleep(0.015)


def evaluate(model, inputs):
    with torch.no_grad():
        for _ in range(12):
            model(inputs)


def run_wait_s():
    with open("/proc/thread-self/schedstat") as file:
        return int(file.read().split()[1]) / 1e9


def busy_thread(stop):
    count = 0
    while not stop.is_set():
        count += 1


def main():
    global lost_s
    model = nn.Sequential(
        nn.Linear(WIDTH, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, WIDTH)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    rubbish = [[i] for i in range(300_000)] if FAULT == "gc" else []
    kept, stop, spinners = [], threading.Event(), []
    folder = tempfile.mkdtemp()
    loader = make_loader()
    source = (
        iter(loader)
        if FAULT != "clean_get_batch"
        else iter(lambda: get_batch(loader.dataset), None)
    )
    walls = []
    waited_s = 0.0
    for step in range(STEPS):
        begin = time.perf_counter()
        batch = (
            clocked(lambda: next(source))
            if FAULT in ("slow_getitem", "few_workers")
            else next(source)
        )
        inputs, targets = batch
        if FAULT == "spike" and 120 <= step < 124:
            targets = targets * 8
        with torch.autocast("cpu", torch.bfloat16, enabled=FAULT == "clean_autocast"):
            loss = nn.functional.mse_loss(model(inputs), targets)
        if FAULT == "nan" and step >= 60:
            loss = loss * float("nan")
        loss.backward()
        if FAULT != "clean_accumulation" or step % 2:
            optimizer.step()
            optimizer.zero_grad()
        walls.append(time.perf_counter() - begin)
        if FAULT == "other_rate" and step == 60:
            optimizer.param_groups[0]["lr"] = 1e-3
        if FAULT == "host_sleep":
            clocked(log_metrics)
        elif FAULT == "gc" and step % 5 == 4:
            clocked(gc.collect)
        elif FAULT == "checkpoint" and step % 10 == 9:
            clocked(
                lambda: torch.save(
                    (model.state_dict(), optimizer.state_dict()), f"{folder}/last.pt"
                )
            )
        elif FAULT == "eval" and step % 5 == 4:
            clocked(lambda: evaluate(model, inputs))
        elif FAULT == "clean_rare_eval" and step == STEPS // 2:
            evaluate(model, inputs)
        elif FAULT == "clean_one_checkpoint" and step == STEPS - 1:
            torch.save(model.state_dict(), f"{folder}/last.pt")
        elif FAULT == "leak":
            kept.append(torch.ones(300_000))
        elif FAULT == "spinners" and step == 10:
            spinners = [
                subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(6)
            ]
            waited_s = run_wait_s()
        elif FAULT == "gil" and step == STEPS // 6:
            sys.setswitchinterval(0.001)
            threading.Thread(target=busy_thread, args=(stop,), daemon=True).start()
        elif FAULT == "exit3" and step == 80:
            sys.exit(3)
        elif FAULT == "kill9" and step == 80:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        elif FAULT == "raise" and step == 80:
            raise ValueError("a shard is missing")
    steps = STEPS
    if FAULT == "spinners":
        lost_s, steps = run_wait_s() - waited_s, STEPS - 10
        for one in spinners:
            one.kill()
    if FAULT == "gil":
        stop.set()
        alone = sorted(walls[10 : STEPS // 6])
        lost_s = sum(walls[STEPS // 6 + 1 :]) - (STEPS - STEPS // 6 - 1) * alone[len(alone) // 2]
    print(
        json.dumps(
            {
                "truth_ms_per_step": lost_s / steps * 1e3,
                "steps": STEPS,
                "rubbish": len(rubbish + kept),
            }
        )
    )


if __name__ == "__main__":
    main()
