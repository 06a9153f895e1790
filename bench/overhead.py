"""What the guest costs a training step, printed as one line of JSON.

    python bench/overhead.py [--rounds 30] [--processes 2]

In one process, blocks of steps with the guest's hooks and blocks without them alternate, each pair in the other order
than the pair before; between them the hooks are taken out and put back, so "off" is torch as it is. The loop has a
DataLoader, a forward, a loss, a backward and an optimizer step; a repeated matrix product sets its length. A recorder
that reads and throws away listens at the other end.

A busy machine only ever makes code slower, so the quiet moments tell what it costs, and both kinds of blocks have
them: ``step_us`` and ``added_step_us`` compare the 10th percentiles of all steps without and with the hooks. A step's
time is CPU time of its thread, since a core that was taken away is no cost of ours; ``wall_added_step_us`` is the same
in wall time. One step in 20 to 100 ms also books and sends what the hooks have noted, and no low percentile shows it:
that is timed by itself, ``booking_us`` a step. ``added_us`` is both; ``ratio`` compares it with the bare step.

``processes`` adds whole runs, with and without injection, interleaved.

Rows for pytscope's AutoProfiler and TraceML (``traceml_ai``) are added where they are installed, on the same loop.
TraceML wants ``with trace_step(model)`` around each step; its block without it still has its patches in place.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

PROBES = Path(__file__).resolve().parents[1] / "probes"
_patched: dict = {}  # what take_in_and_out took out
AGENT_DIR = PROBES / "gputop_agent"
STEP_MS = (0.1, 1.0, 20.0)
LOW = 0.1  # quantile of step times that a busy machine does not reach
BLOCK_MS, MIN_BLOCK_STEPS, MAX_BLOCK_STEPS = 120, 10, 400  # the guest books every 100 ms
PRODUCTS_OF_WHOLE, STEPS_OF_WHOLE = 40, 4000  # the same work in every process, about 1 ms a step


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--processes", type=int, default=0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(one_process(options.child, options.rounds)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = listen(Path(folder) / "sock")
        result = {"bench": "overhead", "unit": "us a step", **child("interleaved", options.rounds, path)}
        if options.processes:
            result["processes"] = whole_runs(options.processes, path)
        for name in ("pytscope", "traceml_ai"):
            if importlib.util.find_spec(name):
                result[name] = child(name, options.rounds, None)
    print(json.dumps(result))


def listen(path: Path) -> Path:
    """A reader that drains every connection twenty times a second, as the recorder does."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen(8)

    def drain(connection: socket.socket) -> None:
        while True:
            time.sleep(0.05)
            try:
                while connection.recv(1 << 18, socket.MSG_DONTWAIT):
                    pass
                return
            except BlockingIOError:
                continue
            except OSError:
                return

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=drain, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return path


def child(what: str, rounds: int, path: Path | None) -> dict[str, object]:
    """Run ``one_process`` in a Python of its own, injected if there is a socket."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUTOP_")}
    env["OMP_NUM_THREADS"] = "1"
    if path is not None:
        env |= {"PYTHONPATH": str(AGENT_DIR / "inject"), "GPUTOP_AGENT_DIR": str(AGENT_DIR), "GPUTOP_SOCKET": str(path)}
    mine = ["--child", what, "--rounds", str(rounds)]
    with tempfile.TemporaryDirectory() as logs:
        command = [*(_traceml(logs) if what == "traceml_ai" else [sys.executable, __file__]), *mine]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    return json.loads(lines[-1])


def _traceml(logs: str) -> list[str]:
    """Its launcher, without which it measures nothing."""
    start = "from traceml_ai.launcher.cli import main; main()"
    return [sys.executable, "-c", start, "run", "--logs-dir", logs, "--run-name", "bench", __file__, "--args"]


def one_process(what: str, rounds: int) -> dict[str, object]:
    """Measure the loop at every step length."""
    import torch
    import torch.utils.data

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = {}
    if what == "whole":
        taken = make_steps(torch)(rounds, PRODUCTS_OF_WHOLE)[rounds // 4 :]
        return {"step_us": low([cpu for cpu, _ in taken]) * 1e6}
    for step_ms in STEP_MS:
        steps = make_steps(torch)
        loop = make_loop(steps, step_ms)
        loop(20)
        rows[f"{step_ms:g}ms"] = compare(loop, step_ms, rounds, switch(what, steps))
    return rows


def make_steps(torch):
    """``steps(n, products)`` runs n steps and returns ``(CPU time, wall time)`` of each in seconds."""
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    filler = torch.randn(64, 64)

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            row = torch.ones(4, 8)
            while True:
                yield row

    source = iter(torch.utils.data.DataLoader(Rows(), batch_size=None))

    def steps(n: int, products: int) -> list[tuple[float, float]]:
        if steps.around is not None:  # type: ignore[attr-defined]
            return wrapped(n, products, steps.around)  # type: ignore[attr-defined]
        took = []
        for _ in range(n):
            began, began_cpu = time.perf_counter(), time.thread_time()
            loss = net(next(source)).sum()
            for _ in range(products):
                torch.mm(filler, filler)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            took.append((time.thread_time() - began_cpu, time.perf_counter() - began))
        return took

    def wrapped(n: int, products: int, around) -> list[tuple[float, float]]:
        took = []
        for _ in range(n):
            began, began_cpu = time.perf_counter(), time.thread_time()
            with around(net):
                loss = net(next(source)).sum()
                for _ in range(products):
                    torch.mm(filler, filler)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            took.append((time.thread_time() - began_cpu, time.perf_counter() - began))
        return took

    steps.around, steps.net, steps.optimizer = None, net, optimizer  # type: ignore[attr-defined]
    return steps


def make_loop(steps, step_ms: float):
    """``loop(n)`` runs n steps of about ``step_ms``."""
    bare = low([cpu for cpu, _ in steps(300, 0)])
    one = (low([cpu for cpu, _ in steps(200, 20)]) - bare) / 20
    products = max(0, round((step_ms / 1e3 - bare) / max(one, 1e-7)))
    return lambda n: steps(n, products)


def low(times: list[float]) -> float:
    """The ``LOW`` quantile."""
    return sorted(times)[int(LOW * len(times))]


def switch(what: str, steps):
    """``switch(on)`` of the tool that is measured."""
    if what == "interleaved":
        return take_in_and_out
    return pytscope_switch(steps) if what == "pytscope" else traceml_switch(steps)


def pytscope_switch(steps):
    """Start and finish an AutoProfiler of the loop's model and optimizer."""
    from pytscope import AutoProfiler  # type: ignore[import-not-found]

    folder, running = tempfile.mkdtemp(), []

    def turn(on: bool) -> None:
        for profiler in running:
            profiler.finish()
        running.clear()
        if on:
            running.append(AutoProfiler(folder, steps.net, steps.optimizer).start())

    return turn


def traceml_switch(steps):
    """Its patches once, and its step boundary around each step or none."""
    import traceml_ai  # type: ignore[import-not-found]

    traceml_ai.init()

    def turn(on: bool) -> None:
        steps.around = traceml_ai.trace_step if on else None

    return turn


def take_in_and_out(on: bool) -> None:
    """Put the guest's patches in, or torch's own functions back."""
    import torch

    hooks = sys.modules["torch.optim.optimizer"]  # the attribute of the package is deleted
    for table in (hooks._global_optimizer_pre_hooks, hooks._global_optimizer_post_hooks):
        _swap(table, list(table), on)
    owners = [(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__"), (torch.autograd, "backward")]
    for owner, name in owners:
        patched = _patched.setdefault(name, getattr(owner, name))
        setattr(owner, name, patched if on else patched.__wrapped__)
    for reference in sys.modules["gputop_agent.state"].S.roots:
        module = reference()
        if module is not None:
            _swap(module.__dict__, ["_compiled_call_impl"], on)


def _swap(table, keys, on: bool) -> None:
    kept = _patched.setdefault(id(table), {})
    if on:
        table.update(kept)
        kept.clear()
    else:
        kept.update((key, table.pop(key)) for key in keys if key in table)


def compare(loop, step_ms: float, rounds: int, set_on) -> dict[str, float]:
    """Alternate blocks with and without; see the module's page for what is compared."""
    steps = max(MIN_BLOCK_STEPS, min(MAX_BLOCK_STEPS, round(BLOCK_MS / step_ms)))
    cpu: dict[bool, list[float]] = {False: [], True: []}
    wall: dict[bool, list[float]] = {False: [], True: []}
    with timed_booking() as booking:
        for i in range(rounds):
            for state in ((False, True), (True, False))[i % 2]:
                set_on(state)
                loop(2)
                for one_cpu, one_wall in loop(steps):
                    cpu[state].append(one_cpu)
                    wall[state].append(one_wall)
        set_on(True)
    base, added = low(cpu[False]), low(cpu[True]) - low(cpu[False])
    booked = low(booking) if booking else 0.0
    return {
        "step_us": round(base * 1e6, 1),
        "added_us": round((added + booked) * 1e6, 2),
        "added_step_us": round(added * 1e6, 2),
        "booking_us": round(booked * 1e6, 2),
        "wall_added_step_us": round((low(wall[True]) - low(wall[False])) * 1e6, 2),
        "ratio": round(1 + (added + booked) / base, 4),
    }


@contextlib.contextmanager
def timed_booking():
    """A list that fills with the CPU seconds a step of each booking of noted steps; empty without the guest."""
    lane: Any = sys.modules.get("gputop_agent.lane")
    took: list[float] = []
    if lane is None:
        yield took
        return
    settle = lane.settle

    def timed(end_ns: int = 0) -> None:
        steps, began = len(lane.marks) // 8, time.thread_time()
        settle(end_ns)
        if steps:
            took.append((time.thread_time() - began) / steps)

    lane.settle = timed
    try:
        yield took
    finally:
        lane.settle = settle


def whole_runs(n: int, path: Path) -> dict[str, object]:
    """Whole processes of 4000 steps, injected and not, interleaved: the medians of their fast steps."""
    times: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(n):
        for name, where in (("without", None), ("with", path)):
            times[name].append(float(str(child("whole", STEPS_OF_WHOLE, where)["step_us"])))
    middle = {name: statistics.median(values) for name, values in times.items()}
    ratio = round(middle["with"] / middle["without"], 4)
    return {**{f"step_us_{k}": round(v, 1) for k, v in middle.items()}, "ratio": ratio, "runs": n}


if __name__ == "__main__":
    main()
