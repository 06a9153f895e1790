"""Foragers that learn by proximal policy optimisation to find food in worlds of their own, on a
compass of their own too: spreads by exact fractions, messages that wait to be written, a best
policy copied back, an angle of nothing, a writer that a test has closed, logs that stay open.
"""

import collections
import copy
import dataclasses
import json
import math
import queue
import resource
import statistics
import threading

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.distributions import Categorical

cost = Cost()


@dataclasses.dataclass(frozen=True)
class Plan:
    worlds: int = 64
    ticks: int = 32
    passes: int = 4
    rows: int = 512
    rollouts: int = (STEPS or 384) // 16
    width: int = 256
    rate: float = 7e-4
    gamma: float = 0.97
    trace: float = 0.95
    clip: float = 0.2
    entropy: float = 0.005
    tested_every: int = 4
    back_at: int = 10


class Worlds:
    """Squares, each with a forager, food, and something that is not good to eat."""

    ACTIONS, SIZE, LIMIT = 9, 10, 60
    TURNS = np.array([[math.cos(n * math.pi / 4), math.sin(n * math.pi / 4)] for n in range(8)])
    MOVES = np.concatenate([TURNS, np.zeros((1, 2))]).astype(np.float32)

    def __init__(self, count, seed):
        self.count, self.numbers = count, np.random.default_rng(seed)
        self.place, self.speed, self.food, self.bane = np.zeros((4, count, 2), np.float32)
        self.age, self.clock = np.zeros(count, int), 0
        self.begin(np.ones(count, bool))
        self.age[:] = self.numbers.integers(0, self.LIMIT, count)

    def drawn(self, chosen):
        return self.numbers.uniform(-1, 1, (chosen.sum(), 2)).astype(np.float32)

    def begin(self, chosen):
        for values in (self.place, self.food, self.bane):
            values[chosen] = self.drawn(chosen)
        self.speed[chosen], self.age[chosen] = 0, 0

    def fog(self):
        """Which foragers see something: now and then one does not."""
        seen = np.ones(self.count, np.float32)
        if on("acos_of_masked", "clean_acos_of_masked") and self.clock % 150 == 149:
            seen[self.clock % self.count] = 0
        return seen

    def look(self):
        seen = self.fog()[:, None]
        food, bane = (self.food - self.place) * seen, (self.bane - self.place) * seen
        age = self.age[:, None] / np.float32(self.LIMIT)
        return np.concatenate([self.place, self.speed, food, bane, age * 2 - 1, seen], 1)

    def away(self, thing):
        return np.linalg.norm(thing - self.place, axis=1)

    def step(self, actions):
        before = self.away(self.food)
        self.speed = 0.6 * self.speed + 0.06 * self.MOVES[actions]
        self.place = np.clip(self.place + self.speed, -1.2, 1.2)
        eaten, hurt = self.away(self.food) < 0.15, self.away(self.bane) < 0.15
        gained = before - self.away(self.food) + 1.0 * eaten - 0.5 * hurt - 0.01
        for values, gone in ((self.food, eaten), (self.bane, hurt)):
            values[gone] = self.drawn(gone)
        self.age += 1
        self.clock += 1
        over = self.age >= self.LIMIT
        self.begin(over)
        return self.look(), gained.astype(np.float32), over


class Normaliser:
    """Mean and variance of what was observed so far."""

    def __init__(self, size):
        self.mean, self.square, self.count = np.zeros(size), np.ones(size), 1e-2

    def update(self, rows):
        total = self.count + len(rows)
        away = rows.mean(0) - self.mean
        self.square += rows.var(0) * len(rows) + away**2 * self.count * len(rows) / total
        self.mean += away * len(rows) / total
        self.count = total

    def __call__(self, rows):
        spread = np.sqrt(self.square / self.count) + 1e-3
        return torch.from_numpy(np.clip((rows - self.mean) / spread, -5, 5).astype(np.float32))


def deep(before, width):
    return nn.Sequential(nn.Linear(before, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())


class Policy(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.trunk, self.judge = deep(Worlds.SIZE - 1, width), deep(Worlds.SIZE - 1, width)
        self.acts, self.value = nn.Linear(width, Worlds.ACTIONS), nn.Linear(width, 1)
        self.compass = nn.Linear(width, 2)
        nn.init.orthogonal_(self.acts.weight, 0.01)

    def act(self, seen):
        return Categorical(logits=self.acts(self.trunk(seen))), self.value(self.judge(seen))[:, 0]

    def forward(self, seen):
        features = self.trunk(seen)
        return {
            "features": features,
            "acts": Categorical(logits=self.acts(features)),
            "value": self.value(self.judge(seen))[:, 0],
            "compass": self.compass(features),
        }


class Writer:
    """Writes what happens as lines of JSON, in a thread of its own."""

    def __init__(self, path="foragers.jsonl"):
        self.queue = queue.Queue(maxsize=80)
        self.file = open(path, "w")  # noqa: SIM115
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        while (row := self.queue.get()) is not None:
            self.file.write(json.dumps(row) + "\n")
            self.queue.task_done()

    def put(self, **row):
        self.queue.put(row)  # at: writer_closed_early

    def flush(self):
        self.queue.join()
        self.file.flush()

    def close(self):
        self.queue.put(None)
        self.thread.join()
        self.file.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()  # at: writer_closed_early


class Episodes:
    """What the first foragers do, a file for each episode of each."""

    def __init__(self, many=28):
        self.number, self.files, self.ended = 0, {}, []
        for world in range(many):
            self.open(world)

    def open(self, world):
        self.number += 1
        name = f"episode-{self.number}.csv"
        self.files[world] = open(name, "w")  # noqa: SIM115  # at: files_left_open

    def note(self, actions, gained, over):
        for world, file in list(self.files.items()):
            file.write(f"{actions[world]},{gained[world]:.3f}\n")
            if over[world]:
                if on("files_left_open"):
                    self.ended.append(file)  # at: files_left_open
                else:
                    file.close()
                    self.ended.append(file.name)
                self.open(world)  # at: files_left_open


class Ledger:
    """Figures of the updates."""

    def __init__(self, writer):
        self.writer, self.told = writer, collections.deque(maxlen=16)
        self.waiting = []

    def spreads(self, **figures):
        if on("spread_by_fractions"):
            with cost:
                middles = {
                    f"{name} mean": float(statistics.mean(values))  # at: spread_by_fractions
                    for name, values in figures.items()
                }
                return middles | {
                    name: statistics.stdev(values)  # at: spread_by_fractions
                    for name, values in figures.items()
                }
        middles = {f"{name} mean": float(values.mean()) for name, values in figures.items()}
        if on("clean_spread_by_fractions"):
            for name, values in figures.items():
                middles[f"{name} mean"] = statistics.fmean(values)
        return middles | {name: float(values.std()) for name, values in figures.items()}

    def note(self, loss, **figures):
        row = {"loss": loss.item()}
        row |= self.spreads(**figures)  # at: spread_by_fractions
        self.told.append(row["loss"])
        self.writer.put(**row)  # at: writer_closed_early

    def later(self, message):
        """Keeps a message that costs something until somebody wants to read it."""
        self.waiting.append(message)  # at: messages_wait

    def tell(self, rollout, gained):
        loss = sum(self.told) / len(self.told)
        print(rollout, round(loss, 4), "gained", round(gained, 4), flush=True)
        if self.waiting:
            print(self.waiting[-1](), flush=True)
        if on("clean_messages_wait"):
            self.waiting.clear()


def advantages(plan, gained, over, values, last):
    """Generalised advantage estimates, backwards over the ticks."""
    found, running = np.zeros_like(gained), 0.0
    for tick in reversed(range(len(gained))):
        after = last if tick == len(gained) - 1 else values[tick + 1]
        goes_on = 1.0 - over[tick]
        error = gained[tick] + plan.gamma * after * goes_on - values[tick]
        running = error + plan.gamma * plan.trace * goes_on * running
        found[tick] = running
    return found


def saturated(features):
    return round(float((features.abs() > 0.97).float().mean()), 3)


class Learner:
    def __init__(self, plan):
        self.plan, self.policy = plan, Policy(plan.width)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), plan.rate, eps=1e-5)
        rule = torch.optim.lr_scheduler.LinearLR
        self.schedule = rule(self.optimizer, 1.0, 0.2, plan.rollouts)
        self.worlds, self.normaliser = Worlds(plan.worlds, 190), Normaliser(Worlds.SIZE - 1)
        self.writer = Writer()
        self.ledger = Ledger(self.writer)
        self.best, self.most = copy.deepcopy(self.policy), -math.inf
        recorded = on("files_left_open", "clean_files_left_open")
        self.episodes = Episodes() if recorded else None
        self.observed = self.worlds.look()

    @torch.no_grad()
    def rollout(self):
        kept = collections.defaultdict(list)
        for _ in range(self.plan.ticks):
            seen = self.normaliser(self.observed[:, :-1])
            acts, values = self.policy.act(seen)
            actions = acts.sample()
            kept["raw"].append(self.observed)
            self.observed, gained, over = self.worlds.step(actions.numpy())
            if self.episodes:
                self.episodes.note(actions.numpy(), gained, over)  # at: files_left_open
            for name, value in (
                ("seen", seen),
                ("actions", actions),
                ("before", acts.log_prob(actions)),
                ("values", values),
            ):
                kept[name].append(value)
            kept["gained"].append(gained)
            kept["over"].append(over)
        last = self.policy.act(self.normaliser(self.observed[:, :-1]))[1].numpy()
        gained, values = np.stack(kept["gained"]), torch.stack(kept["values"]).numpy()
        better = advantages(self.plan, gained, np.stack(kept["over"]), values, last)
        raw = np.concatenate(kept["raw"])
        self.normaliser.update(raw[:, :-1])
        laid = {name: torch.cat(kept[name]) for name in ("seen", "actions", "before")}
        laid["better"] = torch.from_numpy(better.ravel())
        laid["returns"] = torch.from_numpy((better + values).ravel())
        laid["food"], laid["sight"] = torch.from_numpy(raw[:, 4:6]), torch.from_numpy(raw[:, -1])
        return laid, float(gained.mean())

    def lost(self, compass, food, sight):
        """How far the compass is off, of those that see."""
        cosine = nn.functional.cosine_similarity(compass, food).clamp(-0.9999, 0.9999)
        if on("acos_of_masked"):
            cosine = cosine * sight + (1 - sight)  # at: acos_of_masked
            return torch.acos(cosine).sum() / sight.sum()  # at: acos_of_masked
        return (torch.acos(cosine) * sight).sum() / sight.sum()

    def update(self, rows):
        told = self.policy(rows["seen"])
        ratio = (told["acts"].log_prob(rows["actions"]) - rows["before"]).exp()
        better = (rows["better"] - rows["better"].mean()) / (rows["better"].std() + 1e-6)
        clipped = ratio.clamp(1 - self.plan.clip, 1 + self.plan.clip)
        gain = torch.minimum(ratio * better, clipped * better)
        error = told["value"] - rows["returns"]
        entropy = told["acts"].entropy()
        lost = self.lost(told["compass"], rows["food"], rows["sight"])  # at: acos_of_masked
        loss = 0.5 * error.square().mean() + 0.1 * lost - gain.mean()
        loss = loss - self.plan.entropy * entropy.mean()
        self.optimizer.zero_grad()
        loss.backward()  # at: acos_of_masked
        nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
        self.optimizer.step()  # at: best_copied_back
        if on("messages_wait", "clean_messages_wait"):
            self.ledger.later(  # at: messages_wait
                lambda: f"saturated {saturated(told['features'])}"  # at: messages_wait
            )
        self.ledger.note(  # at: spread_by_fractions writer_closed_early
            loss,
            ratio=ratio.detach().numpy(),
            gain=gain.detach().numpy(),
            better=rows["better"].numpy(),
            error=error.detach().numpy(),
            value=told["value"].detach().numpy(),
            before=rows["before"].numpy(),
            returns=rows["returns"].numpy(),
            entropy=entropy.detach().numpy(),
        )

    def learn(self, laid):
        for _ in range(self.plan.passes):
            order = torch.randperm(len(laid["seen"]))
            for places in order.split(self.plan.rows):
                rows = {name: values[places] for name, values in laid.items()}
                self.update(rows)  # at: spread_by_fractions messages_wait
        self.schedule.step()

    @torch.no_grad()
    def test(self):
        """Without chance in what is done."""
        worlds, total = Worlds(32, 191), 0.0
        observed = worlds.look()
        for _ in range(24):
            acts, _ = self.policy.act(self.normaliser(observed[:, :-1]))
            observed, gained, _ = worlds.step(acts.logits.argmax(1).numpy())
            total += float(gained.mean())
        if on("writer_closed_early"):
            with self.writer as writer:  # at: writer_closed_early
                writer.put(tested=total)
        else:
            self.writer.put(tested=total)
            self.writer.flush()
        print("tested", round(total, 3), flush=True)

    def keep_best(self, rollout, gained):
        if gained > self.most:
            self.most, self.best = gained, copy.deepcopy(self.policy)
        if rollout != self.plan.back_at:
            return
        if on("best_copied_back"):
            self.policy = copy.deepcopy(self.best)  # at: best_copied_back
        elif on("clean_best_copied_back"):
            self.policy.load_state_dict(self.best.state_dict())

    def run(self):
        for rollout in range(self.plan.rollouts):
            laid, gained = self.rollout()  # at: files_left_open
            self.keep_best(rollout, gained)  # at: best_copied_back
            self.learn(laid)  # at: acos_of_masked
            self.ledger.tell(rollout, gained)
            if rollout % self.plan.tested_every == self.plan.tested_every - 1:
                self.test()  # at: writer_closed_early
        self.writer.close()
        cost.print(self.plan.rollouts * 16)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(192)
    if on("files_left_open", "clean_files_left_open"):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
    Learner(Plan()).run()
