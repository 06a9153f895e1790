"""Geysers of a valley, forecast from a stream of uneven readings: a transformer under DDP on three
ranks, each with its share of an iterable dataset, epochs that end for all with the shortest share,
four parts an update under no_sync, figures summed over ranks in a group of their own, journal and
checkpoints by the first rank: a share by worker alone, a journal written anew, quiet batches left
out of a sum, no_sync too late, readings laid on a grid one by one, a card that leaves the mode, a
watched geyser whose errors are kept.
"""

import contextlib
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import eager  # noqa: F401
import numpy as np
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

WORLD, PARTS, ROWS = 3, 4, 6
UPDATES = STEPS or 200
GEYSERS, NAMES, SENSORS = 61, 5000, 3
GRID, AHEAD, READINGS = 24, 6, 240
WIDTH, HEADS, LAYERS, DROPOUT = 96, 4, 1, 0.1
RATE, CLIP, SEED = 1e-3, 1.0, 89
TOLD_EVERY, JUDGED_EVERY, SAVED_EVERY, CARD_EVERY = 20, 100, 100, 30
RESAMPLED = "readings_resampled_by_loop", "clean_readings_resampled_by_loop"
cost = Cost()


def on_grid_singly(moments, values, grid):
    """Each point between the two readings around it."""
    laid = []
    for point in grid:
        for index in range(1, len(moments)):  # at: readings_resampled_by_loop
            if moments[index] >= point:  # at: readings_resampled_by_loop
                break
        share = (point - moments[index - 1]) / (moments[index] - moments[index - 1])
        laid.append(values[index - 1] + share * (values[index] - values[index - 1]))
    return np.array(laid)


def on_grid(moments, values, grid):
    """All points of all sensors at once."""
    index = np.searchsorted(moments, grid)
    share = (grid - moments[index - 1]) / (moments[index] - moments[index - 1])
    return values[index - 1] + share[:, None] * (values[index] - values[index - 1])


class Geyser:
    """Rises, erupts and sinks with a period of its own; read at uneven moments."""

    def __init__(self, number):
        dice = np.random.default_rng((SEED, number))
        self.number, self.windows = number, int(dice.integers(110, 150))
        self.period, self.phase = dice.uniform(14, 90), dice.uniform(0, 1, SENSORS)
        self.size = dice.uniform(0.5, 1.5, SENSORS)

    def read(self, dice):
        """A window of readings, from a moment by chance."""
        start = dice.uniform(0, 1440)
        moments = np.sort(dice.uniform(0, GRID + AHEAD, READINGS))
        moments[0], moments[-1] = 0, GRID + AHEAD
        level = ((start + moments)[:, None] / self.period + self.phase * 0.1) % 1
        values = self.size * level**3 + dice.normal(0, 0.05, (READINGS, SENSORS))
        return moments, values


class Readings(IterableDataset):
    """Windows of the geysers of this rank, laid on a grid of minutes."""

    def __init__(self, rank, epoch=0):
        self.rank, self.epoch = rank, epoch
        self.geysers = [Geyser(number) for number in range(GEYSERS)]

    def share(self):
        info = get_worker_info()
        number, count = (info.id, info.num_workers) if info else (0, 1)
        if on("sharded_by_worker_alone"):
            return self.geysers[number::count]  # at: sharded_by_worker_alone
        if on("clean_sharded_by_worker_alone"):
            return self.geysers[self.rank * count + number :: WORLD * count]
        return self.geysers[self.rank :: WORLD]

    def laid(self, moments, values):
        grid = np.arange(GRID + AHEAD) + 0.5
        if on("readings_resampled_by_loop"):
            columns = values.T.tolist()
            moments, grid = moments.tolist(), grid.tolist()
            return np.stack(
                [on_grid_singly(moments, column, grid) for column in columns], 1
            )  # at: readings_resampled_by_loop
        if on("clean_readings_resampled_by_loop"):
            return on_grid(moments, values, grid)
        return np.stack([np.interp(grid, moments, column) for column in values.T], 1)

    def __iter__(self):
        dice = np.random.default_rng((SEED, self.epoch, 7))
        own = self.share()  # at: sharded_by_worker_alone
        order = np.repeat(np.arange(len(own)), [geyser.windows for geyser in own])
        for place in dice.permutation(order):
            geyser = own[place]
            moments, values = geyser.read(dice)
            with cost if on(*RESAMPLED) else contextlib.nullcontext():
                laid = self.laid(moments, values)  # at: readings_resampled_by_loop
            laid = torch.from_numpy(laid).float()
            erupts = (laid[:-1, 0] - laid[1:, 0] > 0.4)[GRID - 6 :].any()
            yield laid[:GRID], laid[GRID:], geyser.number, erupts.float()


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.names = nn.Embedding(NAMES, WIDTH)
        self.sensors, self.minutes = nn.Linear(SENSORS, WIDTH), nn.Embedding(GRID, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 2 * WIDTH, DROPOUT, batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )
        self.joined = nn.Linear(GRID * WIDTH, 160)
        self.ahead, self.erupts = nn.Linear(160, AHEAD * SENSORS), nn.Linear(160, 1)

    def forward(self, seen, number):
        x = self.sensors(seen) + self.minutes.weight + self.names(number)[:, None]
        for layer in self.layers:
            x = layer(x)
        x = F.gelu(self.joined(x.flatten(1)))
        return self.ahead(x).view(-1, AHEAD, SENSORS), self.erupts(x)[:, 0]


class Valley:
    def __init__(self, rank):
        self.rank, self.update, self.epoch = rank, 0, 0
        torch.manual_seed(SEED)
        self.model = DDP(Forecaster())
        torch.manual_seed(SEED + rank + 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), RATE, weight_decay=0.01)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, UPDATES, eta_min=RATE / 20
        )
        self.figures = dist.new_group(backend="gloo")
        self.journal, self.curve, self.told = [], [], torch.zeros(3)
        held = itertools.islice(Readings(rank, epoch=10_000), 24)
        self.held = next(iter(DataLoader(list(held), 24)))
        self.watched = [column[:3] for column in self.held]

    def batches(self):
        """PARTS batches at a time, until one of the ranks has no more."""
        while True:
            readings = Readings(self.rank, self.epoch)
            loader = iter(DataLoader(readings, ROWS, drop_last=True))  # at: sharded_by_worker_alone
            while True:
                parts = list(itertools.islice(loader, PARTS))  # at: readings_resampled_by_loop
                enough = torch.tensor(float(len(parts) == PARTS))
                dist.all_reduce(enough, dist.ReduceOp.MIN)
                if not enough:
                    break
                yield parts
            self.epoch += 1

    def losses(self, batch):
        seen, ahead, number, erupts = batch
        said, likely = self.model(seen, number)
        loss = F.smooth_l1_loss(said, ahead, beta=0.2)
        loss = loss + 0.1 * F.binary_cross_entropy_with_logits(likely, erupts)
        return loss / PARTS, (said - ahead).detach(), (likely.detach() > 0).float()

    def part(self, batch, last):
        """Forward and backward; gradients are summed over ranks with the last part."""
        if on("no_sync_after_forward"):
            loss, error, likely = self.losses(batch)  # at: no_sync_after_forward
            apart = contextlib.nullcontext() if last else self.model.no_sync()
            with apart:  # at: no_sync_after_forward
                loss.backward()  # at: no_sync_after_forward
        elif on("clean_no_sync_after_forward"):
            with contextlib.ExitStack() as stack:
                if not last:
                    stack.enter_context(self.model.no_sync())
                loss, error, likely = self.losses(batch)
                loss.backward()
        else:
            with contextlib.nullcontext() if last else self.model.no_sync():
                loss, error, likely = self.losses(batch)
                loss.backward()
        return loss.detach(), error, likely

    def sum_figures(self, likely, erupts):
        """How many eruptions there were, were forecast, and were both, over all ranks."""
        own = torch.stack([erupts.sum(), likely.sum(), (erupts * likely).sum()])
        if on("quiet_batches_not_summed"):
            if erupts.any():  # at: quiet_batches_not_summed
                dist.all_reduce(own, group=self.figures)  # at: quiet_batches_not_summed
                self.told += own
            return
        if not erupts.any():
            own.zero_()
        dist.all_reduce(own, group=self.figures)
        self.told += own

    def learn(self, parts):
        made = [
            self.part(batch, number == PARTS - 1) for number, batch in enumerate(parts)
        ]  # at: no_sync_after_forward
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.update += 1
        losses, errors, likely = zip(*made, strict=True)
        return sum(losses), torch.cat(errors), torch.cat(likely)

    def write(self, loss, errors, erupts):
        """A line of the journal: the errors of all windows, minute by minute."""
        table = [[round(value, 4) for value in row] for row in errors.abs().mean(2).tolist()]
        record = {"update": self.update, "loss": loss, "errors": table, "erupts": erupts.tolist()}
        place = FOLDER / "journal.json"
        if on("journal_rewritten_each_update"):
            self.journal.append(record)
            place.write_text(
                json.dumps(self.journal, indent=1)
            )  # at: journal_rewritten_each_update
        else:
            with place.open("a") as journal:
                journal.write(json.dumps(record) + "\n")

    @torch.no_grad()
    def draw_card(self):
        """What is ahead of one geyser, for the board at the gate."""
        was = self.model.training
        self.model.eval()  # at: card_leaves_eval_mode
        seen, _, number, _ = self.watched
        said, likely = self.model.module(seen, number)
        marks = "".join("▁▂▃▄▅▆▇█"[int(min(max(v, 0), 0.99) * 8)] for v in said[0, :, 0].tolist())
        (FOLDER / "card.txt").write_text(
            f"{number[0].item()} {marks} {likely[0].sigmoid().item():.2f}"
        )
        if on("clean_card_leaves_eval_mode"):
            self.model.train(was)

    def watch(self):
        """The error of one geyser along the training."""
        seen, ahead, number, _ = self.watched
        if on("watched_error_with_graph"):
            said, _ = self.model.module(seen, number)  # at: watched_error_with_graph
            self.curve.append((said - ahead).square().mean())  # at: watched_error_with_graph
        else:
            with torch.no_grad():
                said, _ = self.model.module(seen, number)
            self.curve.append((said - ahead).square().mean().item())

    @torch.no_grad()
    def judge(self):
        was = self.model.training
        self.model.eval()
        seen, ahead, number, _ = self.held
        said, _ = self.model.module(seen, number)
        error = (said - ahead).abs().mean()
        dist.all_reduce(error, group=self.figures)
        self.model.train(was)
        return error.item() / WORLD

    def save(self):
        state = {"model": self.model.module.state_dict(), "update": self.update}
        torch.save(state, FOLDER / "last.pt")

    def after(self, loss, errors, likely, erupts):
        if on("quiet_batches_not_summed", "clean_quiet_batches_not_summed"):
            self.sum_figures(likely, erupts)  # at: quiet_batches_not_summed
        if self.rank == 0 and on(
            "journal_rewritten_each_update", "clean_journal_rewritten_each_update"
        ):
            with cost:
                self.write(loss.item(), errors, erupts)  # at: journal_rewritten_each_update
        if on("watched_error_with_graph", "clean_watched_error_with_graph"):
            self.watch()  # at: watched_error_with_graph
        cards = on("card_leaves_eval_mode", "clean_card_leaves_eval_mode")
        if self.rank == 0 and cards and self.update % CARD_EVERY == 0:
            self.draw_card()  # at: card_leaves_eval_mode
        if self.update % TOLD_EVERY == 0:
            mean = torch.stack([loss, errors.abs().mean()])
            dist.all_reduce(mean, group=self.figures)
            if self.rank == 0:
                loss, error = (mean / WORLD).tolist()
                told = self.told.int().tolist()
                print(self.update, f"loss {loss:.4f} error {error:.3f} {told}", flush=True)
        if self.update % JUDGED_EVERY == 0:
            held = self.judge()
            if self.rank == 0:
                print(self.update, f"held {held:.3f}", flush=True)
        if self.update % SAVED_EVERY == 0 and self.rank == 0:
            self.save()

    def run(self):
        begun = time.perf_counter()
        for parts in self.batches():
            erupts = torch.cat([batch[3] for batch in parts])
            self.after(*self.learn(parts), erupts)
            if self.update == UPDATES:
                break
        if self.rank == 0:
            took = (time.perf_counter() - begun) * 1000 / UPDATES
            print(f"{self.epoch + 1} epochs, {took:.1f} ms an update", flush=True)
            cost.print(UPDATES)


def main(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    valley = Valley(rank)
    valley.run()
    return valley


if __name__ == "__main__":
    FOLDER = Path(tempfile.mkdtemp(prefix="geysers"))
    code = run_ranks(WORLD, main)
    shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(code)
