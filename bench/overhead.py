"""What the guest costs a training step, printed as one line of JSON.

    python bench/overhead.py [--pairs 150] [--processes 2] [--step-ms 1] [--null]

In one process, blocks of steps with the guest and without it alternate, each pair in the other
order than the pair before: a machine's clock drifts by tens of percent within seconds. Between the
blocks everything of the guest is taken out and put back, so "off" is torch as it is; what the guest
knows of time stands still meanwhile, so that it goes on as in a training that is never interrupted.
Of short steps a block holds several windows (``sampled``: the share of the steps with it that were
only counted). The loop has a DataLoader, a forward, a loss, a backward and an optimizer step; a
repeated matrix product sets its length. A recorder that reads and throws away listens at the other
end.

``added_us`` is the median over the pairs of the difference of their mean steps, in CPU time of the
thread, since a core that was taken away is no cost of ours, ``added_us_ci95`` what its order
statistics leave open; ``wall_added_us`` is the same in wall time; ``ratio`` compares it with the
bare step. ``told_us`` is what the guest says of itself. ``--null`` compares off with off.

``processes`` adds whole runs, with and without injection, interleaved.

Rows for pytscope's AutoProfiler and TraceML (``traceml_ai``) are added where they are installed, on
the same loop. TraceML wants ``with trace_step(model)`` around each step; its block without it still
has its patches in place.
"""

from __future__ import annotations

import argparse
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

PROBES = Path(__file__).resolve().parents[1] / "probes"
_taken: dict = {}  # torch's tables of hooks -> what was in them
AGENT_DIR = PROBES / "gputop_agent"
STEP_MS = (0.1, 1.0, 20.0)
LOW = 0.1  # quantile of step times that a busy machine does not reach
BLOCK_MS = 120  # of steps of 1 ms it holds two windows
MIN_BLOCK_STEPS = 30  # what the switch itself leaves cold is spread over these
WARM_UP_STEPS = (
    1200  # the guest looks closely at gradients up to step 100, and measures each step until then
)
PRODUCTS_OF_WHOLE, STEPS_OF_WHOLE = 40, 4000  # the same work in every process, about 1 ms a step


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=150)
    parser.add_argument("--processes", type=int, default=0)
    parser.add_argument("--step-ms", type=float, action="append", help="may be repeated")
    parser.add_argument("--null", action="store_true", help="compare torch as it is with itself")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    lengths = options.step_ms or STEP_MS
    if options.child:
        print(json.dumps(one_process(options.child, options.pairs, lengths)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = listen(Path(folder) / "sock")
        what = "null" if options.null else "interleaved"
        result: dict[str, object] = {"bench": "overhead", "unit": "us a step"}
        for length in lengths:  # each in a process of its own
            result |= child(what, options.pairs, path, [length])
        if options.processes:
            result["processes"] = whole_runs(options.processes, path)
        for name in ("pytscope", "traceml_ai"):
            if importlib.util.find_spec(name):
                result[name] = child(name, options.pairs // 10, None, lengths)
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


def child(what: str, pairs: int, path: Path | None, lengths=STEP_MS) -> dict[str, object]:
    """Run ``one_process`` in a Python of its own, injected if there is a socket."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUTOP_")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env["OMP_NUM_THREADS"] = "1"
    if path is not None:
        env |= {
            "PYTHONPATH": str(AGENT_DIR / "inject"),
            "GPUTOP_AGENT_DIR": str(AGENT_DIR),
            "GPUTOP_SOCKET": str(path),
        }
    mine = [
        "--child",
        what,
        "--pairs",
        str(pairs),
        *(word for ms in lengths for word in ("--step-ms", str(ms))),
    ]
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
    return [
        sys.executable,
        "-c",
        start,
        "run",
        "--logs-dir",
        logs,
        "--run-name",
        "bench",
        __file__,
        "--args",
    ]


def one_process(what: str, pairs: int, lengths) -> dict[str, object]:
    """Measure the loop at every step length."""
    import torch
    import torch.utils.data  # noqa: F401

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = {}
    if what == "whole":
        steps = make_steps(torch)
        return {
            "step_us": low([steps(1, PRODUCTS_OF_WHOLE)[0] for _ in range(pairs)][pairs // 4 :])
            * 1e6
        }
    for step_ms in lengths:
        steps = make_steps(torch)
        loop = Loop(steps, step_ms)
        loop(WARM_UP_STEPS if step_ms < 5 else WARM_UP_STEPS // 8)
        block = max(MIN_BLOCK_STEPS, round(BLOCK_MS / step_ms))
        rows[f"{step_ms:g}ms"] = compare(loop, block, pairs, switch(what, steps))
    return rows


def make_steps(torch):
    """``steps(n, products)`` runs n steps and returns the CPU and the wall time of one
    in seconds.
    """
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    filler = torch.randn(64, 64)

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            row = torch.ones(4, 8)
            while True:
                yield row

    source = iter(torch.utils.data.DataLoader(Rows(), batch_size=None))

    def steps(n: int, products: int) -> tuple[float, float]:
        if steps.around is not None:  # type: ignore[attr-defined]
            return wrapped(n, products, steps.around)  # type: ignore[attr-defined]
        began, began_cpu = time.perf_counter(), time.thread_time()
        for _ in range(n):
            loss = net(next(source)).sum()
            for _ in range(products):
                torch.mm(filler, filler)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return (time.thread_time() - began_cpu) / n, (time.perf_counter() - began) / n

    def wrapped(n: int, products: int, around) -> tuple[float, float]:
        began, began_cpu = time.perf_counter(), time.thread_time()
        for _ in range(n):
            with around(net):
                loss = net(next(source)).sum()
                for _ in range(products):
                    torch.mm(filler, filler)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        return (time.thread_time() - began_cpu) / n, (time.perf_counter() - began) / n

    steps.around, steps.net, steps.optimizer = None, net, optimizer  # type: ignore[attr-defined]
    return steps


class Loop:
    """``loop(n)`` runs n steps of about ``step_ms``, and returns the CPU and the wall time of one
    in seconds.
    """

    def __init__(self, steps, step_ms: float):
        self.steps, self.step_s = steps, step_ms / 1e3
        bare = low([steps(10, 0)[0] for _ in range(30)])
        self.one = max(1e-7, (low([steps(10, 20)[0] for _ in range(20)]) - bare) / 20)
        self.products = max(0.0, (self.step_s - bare) / self.one)

    def __call__(self, n: int) -> tuple[float, float]:
        return self.steps(n, round(self.products))

    def tune(self, step_s: float) -> None:
        """A bare step took so long: follow the machine's clock, so that the next one takes what it
        should.
        """
        self.products = max(0.0, self.products + (self.step_s - step_s) / self.one / 4)


def low(times: list[float]) -> float:
    """The ``LOW`` quantile."""
    return sorted(times)[int(LOW * len(times))]


def switch(what: str, steps):
    """``switch(on)`` of the tool that is measured."""
    if what == "null":
        take_in_and_out(False)
        return lambda on: None
    if what == "interleaved":
        return Hooks()
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


class Hooks:
    """Takes the guest out and puts it in; its time stands still meanwhile."""

    def __init__(self):
        self.out_since: int | None = None

    def __call__(self, on: bool) -> None:
        if on == (self.out_since is None):
            return
        if self.out_since is None:
            self.out_since = time.monotonic_ns()
            take_in_and_out(False)
        else:
            take_in_and_out(True)
            pass_over(time.monotonic_ns() - self.out_since)
            self.out_since = None


def pass_over(ns: int) -> None:
    """Move all times that the guest has noted."""
    session = sys.modules["gputop_agent.runtime.session"].session
    fold = sys.modules["gputop_agent.timing.steps"].fold
    sampler = sys.modules["gputop_agent.timing.sampling"].sampler
    for owner, names in (
        (session, ("last_ns",)),
        (fold, ("began_ns", "end_ns")),
        (sampler, ("began_ns", "due_ns")),
    ):
        for name in names:
            setattr(owner, name, getattr(owner, name) + ns)
    session.update_times[:] = [noted + ns for noted in session.update_times]
    sampler.window_marks[:] = [noted + ns for noted in sampler.window_marks]
    sampler.marks_before = [noted + ns for noted in sampler.marks_before]


def take_in_and_out(on: bool) -> None:
    """Put the guest's hooks where they were, or torch's own functions back."""
    session = sys.modules["gputop_agent.runtime.session"].session
    optimizer = sys.modules["torch.optim.optimizer"]  # the attribute of the package is deleted
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        table = getattr(optimizer, name)
        if on:
            table.update(_taken.pop(name))
        else:
            _taken[name] = dict(table)
            table.clear()
    if not session.hooks_out:
        for patch in session.removable:
            patch.put_in() if on else patch.take_out()


def compare(loop, block: int, pairs: int, set_on) -> dict[str, object]:
    """Alternate blocks of steps with and without; see the module's page for what is compared."""
    base, added, wall_added = [], [], []
    own = sys.modules.get("gputop_agent.timing.own_cost")
    counted = own.own_cost.counted_steps if own else 0
    for i in range(pairs):
        found = {}
        for state in ((False, True), (True, False))[i % 2]:
            set_on(state)
            loop(1)
            found[state] = loop(block)
        base.append(found[False][0])
        loop.tune(found[False][0])
        added.append(found[True][0] - found[False][0])
        wall_added.append(found[True][1] - found[False][1])
    set_on(True)
    counted = own.own_cost.counted_steps - counted if own else 0
    told = own.own_cost.summary() if own else None
    step, (least, middle, most) = statistics.median(base), median_ci95(added)
    return {
        "step_us": round(step * 1e6, 1),
        "added_us": round(middle * 1e6, 2),
        "added_us_ci95": [round(least * 1e6, 2), round(most * 1e6, 2)],
        "wall_added_us": round(statistics.median(wall_added) * 1e6, 2),
        "ratio": round(1 + middle / step, 4),
        "ratio_ci95": [round(1 + end / step, 4) for end in (least, most)],
        "sampled": round(counted / (pairs * (block + 1)), 3),
        "told_us": told and [told.get("low_us"), told["cost_us"], told.get("high_us")],
    }


def median_ci95(values: list[float]) -> tuple[float, float, float]:
    """The median between the order statistics that hold the true one with 95 % (binomial, as a
    normal).
    """
    ordered, half = sorted(values), 0.98 * len(values) ** 0.5
    last = len(ordered) - 1
    least, most = max(0, int(last / 2 - half)), min(last, round(last / 2 + half + 0.5))
    return ordered[least], statistics.median(ordered), ordered[most]


def whole_runs(n: int, path: Path) -> dict[str, object]:
    """Whole processes of 4000 steps, injected and not, interleaved: the medians of their fast
    steps.
    """
    times: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(n):
        for name, where in (("without", None), ("with", path)):
            times[name].append(float(str(child("whole", STEPS_OF_WHOLE, where)["step_us"])))
    middle = {name: statistics.median(values) for name, values in times.items()}
    ratio = round(middle["with"] / middle["without"], 4)
    return {**{f"step_us_{k}": round(v, 1) for k, v in middle.items()}, "ratio": ratio, "runs": n}


if __name__ == "__main__":
    main()
