"""Phases of real loops against the loops' own clocks, printed as one line of JSON.

    python bench/phases.py [--steps 4000] [--loop plain] [--loop dqn] ...

Each loop trains under ``gputop run --headless`` and reads ``perf_counter`` around its own phases.
Compared are the means of a step over the same steps, past the first ``SKIPPED``: ``worst_percent``
is the largest difference of a phase, relative to that phase, among phases that take at least
``NOTABLE`` of the step.

``plain``: a loader, one model. ``accumulation``: four micro-batches and gradient clipping a step.
``gan``: two models, two optimizers. ``dqn``: one to seven actions of a policy between two updates,
a target network that is copied now and then: no two steps are alike.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("data", "forward", "backward", "optimizer", "other")
SKIPPED = 400
NOTABLE = 0.05
BATCH, WIDTH = 64, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument(
        "--loop", action="append", choices=sorted(LOOPS), help="may be repeated; default: all"
    )
    parser.add_argument("--child", nargs=2, metavar=("LOOP", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        loop, path = options.child
        Path(path).write_text(json.dumps(train(loop, options.steps)))
        return
    result = {name: compare(name, options.steps) for name in options.loop or LOOPS}
    print(json.dumps({"bench": "phases", "unit": "ms a step"} | result))


class Clock:
    """Seconds by phase of each step; what lies in no phase is "other"."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.spent = dict.fromkeys(NAMES, 0.0)
        self.began = time.perf_counter()

    def optimizer(self, kind: Any, *args: Any) -> Any:
        """An optimizer whose ``step`` is timed inside: torch's record function around it comes
        before its hooks.
        """
        clock = self

        class Timed(kind):
            def step(self, closure: Any = None) -> Any:
                return clock.timed("optimizer", super().step, closure)

        return Timed(*args)

    def timed(self, phase: str, call: Callable[..., Any], *args: Any) -> Any:
        """``call(*args)``, booked to a phase."""
        began = time.perf_counter()
        result = call(*args)
        self.spent[phase] += time.perf_counter() - began
        return result

    def end_step(self) -> None:
        """The update is done."""
        now = time.perf_counter()
        self.spent["other"] = now - self.began - sum(self.spent.values())
        self.steps.append(self.spent)
        self.spent, self.began = dict.fromkeys(NAMES, 0.0), now


def train(loop: str, steps: int) -> list[dict[str, float]]:
    """Run a loop; returns the seconds of each step by phase."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    clock = Clock()
    LOOPS[loop](torch, clock, steps)
    return clock.steps


def make_net(torch, outputs: int, inputs: int = WIDTH):
    """A small perceptron."""
    nn = torch.nn
    return nn.Sequential(
        nn.Linear(inputs, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, outputs),
    )


def make_batches(torch):
    """An endless loader in this process."""

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            while True:
                yield torch.randn(WIDTH)

    return iter(torch.utils.data.DataLoader(Rows(), batch_size=BATCH))


def plain(torch, clock: Clock, steps: int, micro_batches: int = 1) -> None:
    """A classifier; with several micro-batches gradients are accumulated and clipped."""
    net, batches = make_net(torch, 10), make_batches(torch)
    optimizer, criterion = (
        clock.optimizer(torch.optim.AdamW, net.parameters(), 1e-4),
        torch.nn.CrossEntropyLoss(),
    )
    targets = torch.randint(0, 10, (BATCH,))
    for _ in range(steps):
        for _ in range(micro_batches):
            x = clock.timed("data", next, batches)
            loss = clock.timed("forward", lambda batch: criterion(net(batch), targets), x)
            clock.timed("backward", loss.backward)
        if micro_batches > 1:
            clock.timed("optimizer", torch.nn.utils.clip_grad_norm_, net.parameters(), 1.0)
        optimizer.step()
        clock.end_step()
        optimizer.zero_grad()


def accumulation(torch, clock: Clock, steps: int) -> None:
    """Four micro-batches a step."""
    plain(torch, clock, steps, micro_batches=4)


def gan(torch, clock: Clock, steps: int) -> None:
    """A discriminator's and a generator's update a step."""
    generator, critic, batches = make_net(torch, WIDTH), make_net(torch, 1), make_batches(torch)
    of_critic = clock.optimizer(torch.optim.Adam, critic.parameters(), 1e-4)
    of_generator = clock.optimizer(torch.optim.Adam, generator.parameters(), 1e-4)
    criterion, ones, zeros = (
        torch.nn.BCEWithLogitsLoss(),
        torch.ones(BATCH, 1),
        torch.zeros(BATCH, 1),
    )

    def judged(batch, wanted):
        return criterion(critic(batch), wanted)

    for _ in range(steps):
        real, noise = clock.timed("data", next, batches), torch.randn(BATCH, WIDTH)
        fake = clock.timed("forward", generator, noise)
        real_loss = clock.timed("forward", judged, real, ones)
        fake_loss = clock.timed("forward", judged, fake.detach(), zeros)
        loss = real_loss + fake_loss
        of_critic.zero_grad()
        clock.timed("backward", loss.backward)
        of_critic.step()
        loss = clock.timed("forward", judged, fake, ones)
        of_generator.zero_grad()
        clock.timed("backward", loss.backward)
        of_generator.step()
        clock.end_step()


def dqn(torch, clock: Clock, steps: int) -> None:
    """Some actions, then an update from the replay memory; each 50th copies the target network."""
    policy, target = make_net(torch, 4), make_net(torch, 4)
    optimizer = clock.optimizer(torch.optim.Adam, policy.parameters(), 1e-4)
    criterion = torch.nn.SmoothL1Loss()
    memory = torch.randn(2048, WIDTH)
    state = torch.randn(1, WIDTH)

    def act(observation):
        with torch.no_grad():
            return policy(observation).argmax().item()

    def bootstrap(batch):
        with torch.no_grad():
            return target(batch).max(1).values

    def play(action):
        for _ in range(40):
            memory[random.randrange(2048)] = torch.roll(state[0], action)

    for step in range(steps):
        for _ in range(random.randint(1, 7)):
            play(clock.timed("forward", act, state))
        picked = memory[torch.randint(0, 2048, (BATCH,))]
        wanted = clock.timed("forward", bootstrap, picked)
        loss = clock.timed(
            "forward", lambda a, b: criterion(policy(a).max(1).values, b), picked, wanted
        )
        optimizer.zero_grad()
        clock.timed("backward", loss.backward)
        optimizer.step()
        clock.end_step()
        if step % 50 == 0:
            target.load_state_dict(policy.state_dict())


LOOPS: dict[str, Callable[..., None]] = {
    "plain": plain,
    "accumulation": accumulation,
    "gan": gan,
    "dqn": dqn,
}


def compare(loop: str, steps: int) -> dict[str, Any]:
    """Both clocks' means of a step by phase."""
    with tempfile.TemporaryDirectory() as folder:
        told, record = Path(folder) / "own.json", Path(folder) / "record"
        child = [sys.executable, __file__, "--steps", str(steps), "--child", loop, str(told)]
        command = [
            sys.executable,
            "-m",
            "gputop",
            "run",
            "--headless",
            "--run-dir",
            str(record),
            "--",
            *child,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
        return against(record, json.loads(told.read_text()))


def against(record: Path, own: list[dict[str, float]]) -> dict[str, Any]:
    """The record's phases beside the loop's own, over the same steps."""
    from gputop_agent import wire
    from gputop_analysis.sampled import own_cost, sampled
    from gputop_analysis.view import RunView
    from gputop_probes.record.reader import RunRecord

    read = RunRecord.open(record)
    rows = read.steps(read.ranks()[0])
    first = int((rows["step"].astype(int) - rows["n_steps"] + 1 >= SKIPPED).argmax())
    rows, counted = rows[first:], int(rows[first:]["n_steps"].sum())
    began = int(rows["step"][0]) - int(rows["n_steps"][0]) + 1
    own = own[began : began + counted]
    booked = {name: float(rows[f"{name}_ns"].sum()) / 1e6 / counted for name in wire.PHASES}
    booked = {"other": booked["other"] + booked["eval"]} | {
        name: booked[name] for name in NAMES[:4]
    }
    clocked = {name: 1e3 * sum(step[name] for step in own) / len(own) for name in NAMES}
    step_ms = sum(clocked.values())
    notable = [name for name in NAMES if clocked[name] > NOTABLE * step_ms]
    percent = {name: round(100 * (booked[name] / clocked[name] - 1), 1) for name in notable}
    view = RunView(read)
    sampling, cost = sampled(view), own_cost(view)
    return {
        "step_ms": round(step_ms, 3),
        "steps": [len(own), counted],
        "gputop": {name: round(booked[name], 4) for name in NAMES},
        "own": {name: round(clocked[name], 4) for name in NAMES},
        "percent": percent,
        "worst_percent": max(map(abs, percent.values())),
        "sampled": sampling.words if sampling else "all measured",
        "own_cost": cost.words if cost else None,
    }


if __name__ == "__main__":
    main()
