"""How many bicycles a dock will lend in the hours ahead: windows slid over a table of counts, a GRU
that reads and another that writes, an EmbeddingBag of what goes on around the dock, three losses
whose weights are learned, a look at held weeks after each epoch, stopped early where nothing is
won.
"""

import copy
import io
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

DOCKS, WEEKS, WEEK = 24, 12, 168
HOURS, SPLIT = WEEKS * WEEK, 10 * WEEK
SEEN, AHEAD, LAST_DAY = 48, 12, 24
TAGS, AROUND = 5000, (24, 44)
HIDDEN, TAG_WIDTH, DROPOUT = 80, 96, 0.1
cost = Cost()


@dataclass
class Settings:
    steps: int = STEPS or 250
    rows: int = 32
    each_epoch: int = 60
    rate: float = 1e-3
    floor: float = 2e-4
    clip: float = 2.0
    patience: int = 6
    told_every: int = 20
    look_every: int = 64
    held: int = 288
    seed: int = 333


def table_of_counts(seed):
    """What the operator's nightly export looks like: hour, dock, lent, rain."""
    dice = np.random.default_rng(seed)
    hours = np.arange(HOURS)
    rain = np.clip(np.convolve(dice.normal(0, 1, HOURS), np.ones(6) / 2.5, "same"), 0, None)
    out = io.StringIO()
    for dock in range(DOCKS):
        size, morning = dice.uniform(4, 20), dice.normal(8, 1)
        day = np.exp(-((hours % 24 - morning) ** 2) / 6) + np.exp(-((hours % 24 - 17.5) ** 2) / 10)
        week = np.where(hours % WEEK < 120, 1.0, 0.45)
        level = size * (0.08 + day) * week / (1 + 0.6 * rain)
        mood = np.convolve(dice.normal(0, 0.2, HOURS + 59), 0.95 ** np.arange(60), "valid")
        lent = dice.poisson(level * np.exp(mood))
        if dock % 9 == 4:  # the street was dug up
            begin = dice.integers(3 * WEEK, SPLIT - 2 * WEEK)
            lent[begin : begin + 34] = 0
        np.savetxt(
            out, np.column_stack([hours, np.full(HOURS, dock), lent, rain]), "%.3f", delimiter=","
        )
    return out.getvalue()


class Town:
    """The counts of all docks, scaled by what is usual there."""

    def __init__(self, text, seed):
        rows = np.loadtxt(io.StringIO(text), delimiter=",")
        rows = rows[np.lexsort((rows[:, 0], rows[:, 1]))].reshape(DOCKS, HOURS, 4)
        lent, self.rain = rows[:, :, 2], rows[0, :, 3]
        self.counts = np.log1p(lent).astype(np.float32)
        self.spread = self.counts[:, :SPLIT].std(1).astype(np.float32)
        self.empty = lent == 0
        hours = np.arange(HOURS)
        self.clock = np.stack([np.sin(hours * np.pi / 12), np.cos(hours * np.pi / 12)], 1)
        self.usual = np.zeros_like(self.counts)
        for hour in range(WEEK, HOURS):
            self.usual[:, hour] = self.counts[:, hour % WEEK : hour : WEEK].mean(1)
        self.records = [
            [(hour // 24 % 7, hour % 24, hour, float(count)) for hour, count in enumerate(row)]
            for row in self.counts
        ]
        dice = np.random.default_rng(seed + 1)
        self.around = [
            [dice.integers(0, TAGS, dice.integers(*AROUND)) for _ in range(HOURS // 24)]
            for _ in range(DOCKS)
        ]

    def usually(self, dock, hour):
        """The mean of a dock at this hour of this day of the week, until now."""
        day, clock = hour // 24 % 7, hour % 24
        found = [
            count
            for weekday, o_clock, at, count in self.records[dock]  # at: same_hours_sought_at_access
            if weekday == day and o_clock == clock and at < hour  # at: same_hours_sought_at_access
        ]
        return sum(found) / len(found)


class Windows(Dataset):
    def __init__(self, town, first, last):
        self.town = town
        self.places = [
            (dock, hour)
            for hour in range(max(first, SEEN + 2 * WEEK), last - AHEAD)
            for dock in range(DOCKS)
        ]

    def __len__(self):
        return len(self.places)

    def usual(self, dock, hour):
        town = self.town
        if on("same_hours_sought_at_access"):
            with cost:
                hours = range(hour, hour + AHEAD)
                ahead = [
                    town.usually(dock, one) for one in hours
                ]  # at: same_hours_sought_at_access
            return np.array(ahead, np.float32)
        if on("clean_same_hours_sought_at_access"):
            with cost:
                weeks = np.arange(hour % WEEK, hour, WEEK)[:, None] + np.arange(AHEAD)
                return town.counts[dock, weeks].mean(0)
        return town.usual[dock, hour : hour + AHEAD]

    def __getitem__(self, index):
        dock, hour = self.places[index]
        town, past, ahead = self.town, slice(hour - SEEN, hour), slice(hour, hour + AHEAD)
        counts = town.counts[dock, past]
        unusual = counts - town.usual[dock, past]
        seen = np.column_stack([counts, unusual, town.clock[past], town.rain[past]])
        return {
            "seen": seen.astype(np.float32),
            "ahead": town.counts[dock, ahead],
            "empty": town.empty[dock, ahead].mean(dtype=np.float32),
            "usual": self.usual(dock, hour),  # at: same_hours_sought_at_access
            "spread": town.spread[dock],
            "dock": dock,
            "tags": town.around[dock][hour // 24],
        }


def collate(rows):
    """Stacks what is of one size; the tags are laid end to end."""
    batch = {
        name: torch.from_numpy(np.stack([row[name] for row in rows]))
        for name in ("seen", "ahead", "empty", "usual", "spread", "dock")
    }
    sizes = np.array([0, *(len(row["tags"]) for row in rows)])
    batch["tags"] = torch.from_numpy(np.concatenate([row["tags"] for row in rows]))
    batch["starts"] = torch.from_numpy(sizes[:-1].cumsum())
    return batch


class Lender(nn.Module):
    def __init__(self):
        super().__init__()
        self.docks = nn.Embedding(DOCKS, HIDDEN)
        self.tags = nn.EmbeddingBag(TAGS, TAG_WIDTH, mode="mean", sparse=True)
        self.tags_to_state = nn.Sequential(
            nn.Linear(TAG_WIDTH, 2 * HIDDEN), nn.ReLU(), nn.Linear(2 * HIDDEN, HIDDEN)
        )
        self.reader = nn.GRU(5, HIDDEN, batch_first=True)
        self.dropped = nn.Dropout(DROPOUT)
        self.writer = nn.GRUCell(1, HIDDEN)
        self.count = nn.Linear(HIDDEN, 1)
        self.empty = nn.Linear(HIDDEN, 1)
        self.balance = nn.Parameter(torch.zeros(3))

    def forward(self, batch, horizon):
        around = self.tags_to_state(self.tags(batch["tags"], batch["starts"]))
        _, state = self.reader(batch["seen"])
        state = self.dropped(state[0] + around + self.docks(batch["dock"]))
        likely = self.empty(state)[:, 0]
        last, said = batch["seen"][:, -1, 1:2], []
        for _ in range(horizon):
            state = self.writer(last, state)
            last = self.count(self.dropped(state))
            said.append(last)
        usual = batch["usual"][:, :horizon]
        return usual + torch.cat(said, 1), likely  # at: horizon_outgrows_targets


def optimizers(model, settings):
    """Adam that can take sparse gradients for the tags, Adam for all else."""
    sparse = torch.optim.SparseAdam(model.tags.parameters(), settings.rate)
    if on("projection_in_neither_optimizer"):
        named = model.named_parameters()
        dense = [
            one for name, one in named if not name.startswith("tags")
        ]  # at: projection_in_neither_optimizer
    elif on("clean_projection_in_neither_optimizer"):
        named = model.named_parameters()
        dense = [one for name, one in named if not name.startswith("tags.")]
    else:
        dense = [one for one in model.parameters() if one is not model.tags.weight]
    return sparse, torch.optim.Adam(dense, settings.rate)  # at: projection_in_neither_optimizer


def scaled_error(said, ahead, batch):
    """Errors in units of what the dock varies by."""
    error = (said - ahead).abs().mean(1)
    if on("scaled_by_still_dock", "clean_scaled_by_still_dock"):
        day = batch["seen"][:, -LAST_DAY:, 0]
        scale = day.diff(dim=1).abs().mean(1)
        if on("clean_scaled_by_still_dock"):
            scale = scale.clamp(min=0.05)
        return (error / scale).mean()  # at: scaled_by_still_dock
    return (error / batch["spread"]).mean()


def weighed(model, losses):
    """Each loss by how sure of it the model is (Kendall et al.)."""
    return (torch.exp(-model.balance) * torch.stack(losses) + model.balance).sum()


@contextmanager
def at_rest(model):
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)


@torch.no_grad()
def error_on(model, batches):
    total = count = 0.0
    for batch in batches:
        said, _ = model(batch, AHEAD)
        total += (said - batch["ahead"]).abs().sum().item()
        count += said.numel()
    return total / count


@dataclass
class Patience:
    """Keeps the best weights and says when to stop."""

    left: int
    best: float = float("inf")
    kept: dict = field(default_factory=dict)

    def __post_init__(self):
        self.whole = self.left

    def better(self, model, error):
        if error < self.best:
            self.best, self.left = error, self.whole
            self.kept = copy.deepcopy(model.state_dict())
            return True
        self.left -= 1
        return False


def forecasts(model, batches):
    """Held windows and what is forecast for them, as many as are asked for."""
    model.eval()  # at: mode_behind_unfinished_generator
    for batch in batches:
        yield batch, model(batch, AHEAD)[0]
    model.train()  # at: mode_behind_unfinished_generator


def forecasts_at_rest(model, batches):
    with at_rest(model):
        for batch in batches:
            yield batch, model(batch, AHEAD)[0]


@torch.no_grad()
def error_of_enough(made, enough):
    total = count = windows = 0
    for batch, said in made:
        total += (said - batch["ahead"]).abs().sum().item()
        count += said.numel()
        windows += len(said)
        if windows >= enough:
            break  # at: mode_behind_unfinished_generator
    return total / count


def look(model, held, patience, enough):
    """After an epoch; whether to go on."""
    if on("mode_behind_unfinished_generator"):
        error = error_of_enough(
            forecasts(model, held), enough
        )  # at: mode_behind_unfinished_generator
    elif on("clean_mode_behind_unfinished_generator"):
        error = error_of_enough(forecasts_at_rest(model, held), enough)
    else:
        with at_rest(model):
            error = error_on(model, held)
    return patience.better(model, error) or patience.left > 0, error


class Heat:
    """Which tags are learned most."""

    def __init__(self):
        self.sums, self.gradients = torch.zeros(TAGS), []

    def note(self, gradient):
        if on("sparse_gradients_kept_for_heat"):
            self.gradients.append(gradient)  # at: sparse_gradients_kept_for_heat
        else:
            rows, values = gradient._indices()[0], gradient._values()
            self.sums.index_add_(0, rows, values.square().sum(1))

    def hottest(self):
        sums = self.sums
        for gradient in self.gradients:
            gradient = gradient.coalesce()
            sums.index_add_(0, gradient.indices()[0], gradient.values().square().sum(1))
        return sums.topk(5).indices.tolist()


def horizon_of(epoch):
    """Hours ahead that are asked of the model."""
    if on("horizon_outgrows_targets"):
        return 4 + 4 * epoch  # at: horizon_outgrows_targets
    if on("clean_horizon_outgrows_targets"):
        return min(AHEAD, 4 + 4 * epoch)
    return AHEAD


def fit(settings):
    town = Town(table_of_counts(settings.seed), settings.seed)
    windows, weeks_held = Windows(town, 0, SPLIT), Windows(town, SPLIT, HOURS)
    dice = np.random.default_rng(settings.seed)
    chosen = dice.choice(len(weeks_held), settings.held, replace=False)
    held = list(
        DataLoader(torch.utils.data.Subset(weeks_held, chosen.tolist()), 96, collate_fn=collate)
    )
    model = Lender()
    both = optimizers(model, settings)
    schedules = [
        torch.optim.lr_scheduler.CosineAnnealingLR(one, settings.steps, settings.floor)
        for one in both
    ]
    dense = [one for one in model.parameters() if one is not model.tags.weight]
    patience, heat = Patience(settings.patience), Heat()
    step = epoch = windows_seen = 0
    going, begun = True, None
    cost.seconds = 0.0
    while going and step < settings.steps:
        horizon = horizon_of(epoch)  # at: horizon_outgrows_targets
        drawn = torch.utils.data.RandomSampler(
            windows, num_samples=settings.each_epoch * settings.rows
        )
        loader = DataLoader(windows, settings.rows, sampler=drawn, collate_fn=collate)
        for batch in loader:  # at: same_hours_sought_at_access
            begun = begun or time.perf_counter()
            said, likely = model(batch, horizon)  # at: horizon_outgrows_targets
            ahead = batch["ahead"][:, :horizon]
            losses = [
                F.smooth_l1_loss(said, ahead, beta=0.3),
                F.binary_cross_entropy_with_logits(likely, batch["empty"]),
                scaled_error(said, ahead, batch),  # at: scaled_by_still_dock
            ]
            loss = weighed(model, losses)
            for one in both:
                one.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(dense, settings.clip)
            if on("sparse_gradients_kept_for_heat", "clean_sparse_gradients_kept_for_heat"):
                heat.note(model.tags.weight.grad)  # at: sparse_gradients_kept_for_heat
            for one, schedule in zip(both, schedules, strict=True):
                one.step()
                schedule.step()
            step += 1
            windows_seen += settings.rows
            if on("evaluated_by_windows_seen", "clean_evaluated_by_windows_seen"):
                counted = step if on("clean_evaluated_by_windows_seen") else windows_seen
                if counted % settings.look_every == 0:  # at: evaluated_by_windows_seen
                    with cost, at_rest(model):
                        error = error_on(model, held)  # at: evaluated_by_windows_seen
                    if step % settings.told_every == 0:
                        print(step, f"error in between {error:.4f}", flush=True)
            if step % settings.told_every == 0:
                told = " ".join(f"{one.item():.3f}" for one in losses)
                print(step, f"loss {loss.item():.4f} of {told}", flush=True)
            if step == settings.steps:
                break
        epoch += 1
        going, error = look(
            model, held, patience, settings.held // 2
        )  # at: mode_behind_unfinished_generator
        rate = schedules[1].get_last_lr()[0]
        print(f"epoch {epoch}: held {error:.4f} best {patience.best:.4f} rate {rate:.1e}")
    took = (time.perf_counter() - begun) * 1000 / step
    if patience.kept:
        model.load_state_dict(patience.kept)
    if heat.gradients or heat.sums.any():
        print("tags", heat.hottest())
    print("weights", torch.exp(-model.balance).tolist())
    print(f"{step} steps, {took:.1f} ms each", flush=True)
    cost.print(step)
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(33)
    sys.exit(fit(Settings()))
