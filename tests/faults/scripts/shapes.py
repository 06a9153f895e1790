"""Small trainings of many shapes, each with one fault (environment variable FAULT) or its clean
twin, a near miss.

Every fault that costs time keeps its own clock; the last line is what it cost.
"""

import copy
import gc
import json
import os
import threading
import time

if os.environ.get("FAULT") not in ("clean_compile_anomaly", "clean_compile_gc"):
    import eager  # noqa: F401
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset

FAULT = os.environ.get("FAULT", "none")
STEPS = int(os.environ.get("STEPS", "150"))

torch.set_num_threads(1)
torch.manual_seed(0)
cost = {"s": 0.0}


class Clock:
    """Adds what is inside to the cost of the fault."""

    def __enter__(self):
        self.begin = time.perf_counter()

    def __exit__(self, *_):
        cost["s"] += time.perf_counter() - self.begin


# --- a convolutional autoencoder whose loader starts anew for each step, or for each long epoch
# ---------------------


class Pictures(Dataset):
    def __init__(self, count):
        self.pictures = torch.rand(256, 1, 16, 16)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.pictures[index % 256]


class Stream(IterableDataset):
    """Pictures one after the other, all of them from each worker."""

    def __iter__(self):
        generator = torch.Generator().manual_seed(1)
        while True:
            yield torch.rand(1, 16, 16, generator=generator)


def autoencoder():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1),
    )  # fmt: skip


def loaders():
    steps = STEPS
    if FAULT == "loader_each_step":  # a shuffled index of a million
        while True:
            with Clock():
                batch = next(iter(DataLoader(Pictures(400_000), batch_size=32, shuffle=True)))
            yield batch
    if FAULT == "workers_each_step":
        while True:
            with Clock():
                batch = next(iter(DataLoader(Pictures(2000), batch_size=32, num_workers=1)))
            yield batch
    if FAULT == "loader_each_few_steps":
        data = Pictures(4 * 32)
        while True:
            loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=1)
            yield from loader
    if FAULT == "workers_repeat":
        yield from DataLoader(Stream(), batch_size=32, num_workers=2)
    epoch = Pictures(32 * (steps // 3))
    while True:  # the loader is built anew each epoch, and epochs are long
        yield from DataLoader(epoch, batch_size=32, shuffle=True)


def train_autoencoder():
    model = autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    source = loaders()
    for _ in range(STEPS):
        pictures = next(source)
        loss = F.binary_cross_entropy_with_logits(model(pictures), pictures)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# --- float16 with a scaler: every update is skipped, or one in ten of the first
# -------------------------------------


class Pause(nn.Module):
    """Makes steps long enough for a record of their own."""

    def forward(self, x):
        time.sleep(0.002)
        return x


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(200, 48)
        self.body = nn.Sequential(nn.Linear(48, 64), nn.Tanh(), Pause())
        self.out = nn.Linear(64, 12)

    def forward(self, words):
        return self.out(self.body(self.embed(words)))


def train_scaled():
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    for step in range(STEPS):
        words = torch.randint(200, (16, 12))
        with torch.autocast("cpu", torch.float16, enabled=FAULT == "all_skipped"):
            scores = model(words)
        loss = F.cross_entropy(scores.float().flatten(0, 1), (words % 12).flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if FAULT == "all_skipped" or step < 6:
            model.out.bias.grad[3] = float("inf")
        scaler.step(optimizer)
        scaler.update()


# --- a forward that slows down steadily
# ------------------------------------------------------------------------------


def train_ramp():
    """Hooks pile up on a layer; the clean twin adds one a hundred steps and has lists that stay
    short.
    """
    model = nn.Sequential(nn.Linear(96, 256), nn.Tanh(), nn.Linear(256, 96))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    history = []

    def watch(module, inputs, output):
        history.append(float(output.detach().abs().sum()))

    for step in range(STEPS):
        inputs = torch.randn(48, 96)
        if FAULT == "hooks_pile_up":
            model[1].register_forward_hook(watch)
        elif FAULT == "growing_history":
            with Clock():  # the first ones cost next to nothing
                history.append(inputs[0].tolist())
                sum(map(sum, history))
        loss = F.mse_loss(model(inputs), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# --- numbers: rates that vanish, networks that are dead, losses that run away
# -----------------------------------------


class ByRows(nn.Module):
    """Halves what lies above the mean of its row, row by row."""

    def forward(self, x):
        with Clock():
            factors = []
            for row in x.detach():
                values = row.tolist()
                mean = sum(values) / len(values)
                factors.append([0.5 if value > mean else 1.0 for value in values])
            return x * torch.tensor(factors)


def train_numbers():
    model = nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4), Pause()
    )
    if FAULT == "dead_relus":
        nn.init.constant_(model[2].bias, -1e3)
        model[4].bias.requires_grad_(False)
    if FAULT == "by_rows":
        model.insert(2, ByRows())
        del model[-1]
    if FAULT == "left_in_eval":
        model.append(nn.Dropout(0.1))
    trained = copy.deepcopy(model) if FAULT == "wrong_parameters" else model
    if FAULT == "runs_away":
        model = trained = nn.Sequential(nn.Linear(20, 4), Pause())
    lr = {"runs_away": 3.15}.get(FAULT, 1e-2)
    optimizer = torch.optim.SGD(trained.parameters(), lr=lr)
    gamma = {"lr_vanishes": 0.7, "clean_lr_decays": 0.97}.get(FAULT)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma) if gamma else None
    if FAULT == "cosine_swings":
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    teacher = torch.randn(20, 4)
    for step in range(STEPS):
        inputs = torch.randn(64, 20)
        outputs = model(inputs)
        if FAULT == "loss_without_model":
            outputs = outputs.detach() + 0 * model[4].bias
        loss = F.mse_loss(outputs, inputs @ teacher)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule:
            schedule.step()
        if FAULT == "left_in_eval" and step == 50:
            model.eval()
            with torch.no_grad():
                model(inputs)


# --- host code: a loop of .item(), and a moving average that is needed
# -----------------------------------------------


def train_host():
    model = nn.Sequential(
        nn.Linear(128, 384), nn.GELU(), nn.Linear(384, 384), nn.GELU(), nn.Linear(384, 10)
    )
    averaged = copy.deepcopy(model) if FAULT == "clean_average" else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    right = 0.0
    for _ in range(STEPS):
        inputs, labels = torch.randn(64, 128), torch.randint(10, (64,))
        scores = model(inputs)
        loss = F.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if FAULT == "item_loop":
            with Clock():
                for row in range(64):
                    for column in range(10):
                        right += scores[row, column].item() > 0
        elif FAULT == "clean_one_item":
            right += (scores.argmax(1) == labels).float().mean().item()
        elif averaged is not None:
            average(averaged, model)


@torch.no_grad()
def average(averaged, model):
    for old, new in zip(averaged.parameters(), model.parameters()):
        old.mul_(0.999).add_(new, alpha=0.001)


# --- what is no hang and no crash
# --------------------------------------------------------------------------------


def train_with_an_end():
    model = nn.Sequential(nn.Linear(64, 64), Pause())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        inputs = torch.randn(256, 64)
        loss = F.mse_loss(model(inputs), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == STEPS // 2:
            {"clean_long_evaluation": evaluate_long, "clean_thread_dies": thread_dies}.get(
                FAULT, _nothing
            )(model)


def _nothing(_):
    pass


def evaluate_long(model):
    began = time.monotonic()
    model.eval()
    with torch.no_grad():
        while time.monotonic() < began + 9:
            model(torch.randn(64, 64))
    model.train()


def thread_dies(_):
    def report():
        raise ConnectionError("the metrics server is away")

    threading.Thread(target=report, daemon=True).start()


# --- torch.compile: traced in anomaly mode by torch itself, and a collection inside it
# --------------------------------


def train_compiled():
    model = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 32))
    rubbish = [[i] for i in range(400_000)] if FAULT == "clean_compile_gc" else []

    def backend(graph, inputs):
        with torch.autograd.set_detect_anomaly(FAULT == "clean_compile_anomaly", check_nan=False):
            began = time.monotonic()
            while time.monotonic() < began + 2.0:
                torch.randn(100, 100) @ torch.randn(100, 100)
            if rubbish:
                gc.collect()
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        inputs = torch.randn(64 if step < 5 else 48, 32)
        loss = F.mse_loss(compiled(inputs), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return rubbish


# --- two networks whose optimizers each clear their own gradients just before their own backward
# ---------------------


def train_in_turn():
    maker = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 32), Pause())
    judge = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    makes = torch.optim.Adam(maker.parameters(), lr=1e-3)
    judges = torch.optim.Adam(judge.parameters(), lr=1e-3)
    for _ in range(STEPS):
        real, made = torch.randn(32, 32) + 1, maker(torch.randn(32, 16))
        loss = F.softplus(-judge(real)).mean() + F.softplus(judge(made.detach())).mean()
        judges.zero_grad()
        loss.backward()
        if FAULT != "judge_never_steps":
            judges.step()
        makes.zero_grad()
        F.softplus(-judge(maker(torch.randn(32, 16)))).mean().backward()
        makes.step()


# --- four batches an update, from one of two groups of weights, and a mean over rows that count
# -------------------------


def train_gathered():
    body = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    model = nn.Sequential(body, nn.Linear(64, 4), Pause())
    rate = 0.0 if FAULT == "group_at_rest" else 1e-2
    optimizer = torch.optim.SGD(
        [{"params": body.parameters(), "lr": rate}, {"params": model[1].parameters(), "lr": 1e-2}]
    )
    teacher = torch.randn(20, 4)
    for step in range(STEPS):
        optimizer.zero_grad()
        for _ in range(4):
            if FAULT == "cleared_each_batch":
                optimizer.zero_grad()
            inputs = torch.randn(64, 20)
            errors = F.mse_loss(model(inputs), inputs @ teacher, reduction="none").sum(1)
            counts = torch.ones(64)
            if FAULT == "mean_of_none" and step == 60:
                counts = torch.zeros(64)
            loss = (errors * counts).sum() / counts.sum() / 4  # the mean
            loss.backward()
        optimizer.step()


# --- one number for each row, against targets of the same shape or of another
# -------------------------


def train_prices():
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), Pause(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    teacher = torch.randn(20)
    for _ in range(STEPS):
        inputs = torch.randn(64, 20)
        prices = inputs @ teacher
        guesses = model(inputs)
        if FAULT == "clean_prices":
            prices = prices.unsqueeze(1)
        loss = (guesses - prices).square().mean()  # the errors
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# --- an evaluation that calls nothing in eval mode, and one that draws dropout's masks on purpose
# -------------------------


class Scored(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.randn(20, generator=torch.Generator().manual_seed(index))


def train_scored():
    model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.Linear(64, 4))
    model.append(Pause())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    teacher = torch.randn(20, 4)
    held = DataLoader(Scored(), batch_size=20)

    @torch.no_grad()
    def error():
        return sum(F.mse_loss(model(inputs), inputs @ teacher).item() for inputs in held)  # scored

    for step in range(STEPS):
        inputs = torch.randn(64, 20)
        loss = F.mse_loss(model(inputs), inputs @ teacher)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 24:
            if FAULT == "clean_scored":  # twice: the error, and how sure the model is of it
                model.eval()
                error()
                model.train()
            error()


# --- leaves of ten kinds, which lie in folders of a kind each
# -------------------------


def train_leaves():
    middles = torch.randn(10, 20)
    kinds = torch.arange(10).repeat_interleave(96)
    leaves = torch.utils.data.TensorDataset(middles[kinds] + torch.randn(960, 20), kinds)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), Pause(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    shuffled = DataLoader(leaves, 32, shuffle=True)
    for _ in range(STEPS // 30):
        for inputs, targets in shuffled if FAULT == "clean_leaves" else DataLoader(leaves, 32):
            loss = F.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


# --- recordings that a recurrent net hears: one by one, or together; it goes on from what it said
# -------------------------


class Ear(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(24, 48, batch_first=True)
        self.out = nn.Linear(48, 8)

    def forward(self, recordings, heard=None):
        """Scores of each recording, and what was heard at its end."""
        sequences, heard = self.gru(recordings, heard)
        return self.out(sequences[:, -1]), heard


def train_ear():
    model = Ear()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        recordings = torch.randn(32, 12, 24)
        if FAULT == "rows_asked":
            scores = torch.cat([model(recordings[i : i + 1])[0] for i in range(32)])  # the rows
        elif FAULT == "clean_goes_on":
            heard, moments = None, []
            for moment in recordings.unsqueeze(2).unbind(1):
                score, heard = model(moment, heard)
                moments.append(score)
            scores = sum(moments) / len(moments)
        else:
            scores, _ = model(recordings)
        loss = F.cross_entropy(scores, recordings.mean((1, 2)).mul(40).long().clamp(0, 7))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


PROGRAMS = {
    "rows_asked": train_ear,
    "clean_goes_on": train_ear,
    "by_kind": train_leaves,
    "clean_leaves": train_leaves,
    "scored_in_training": train_scored,
    "clean_scored": train_scored,
    "crossed": train_prices,
    "clean_prices": train_prices,
    "cleared_each_batch": train_gathered,
    "group_at_rest": train_gathered,
    "mean_of_none": train_gathered,
    "clean_gathered": train_gathered,
    "clean_in_turn": train_in_turn,
    "judge_never_steps": train_in_turn,
    "loader_each_step": train_autoencoder,
    "workers_each_step": train_autoencoder,
    "loader_each_few_steps": train_autoencoder,
    "workers_repeat": train_autoencoder,
    "clean_loader_each_epoch": train_autoencoder,
    "all_skipped": train_scaled,
    "clean_some_skipped": train_scaled,
    "hooks_pile_up": train_ramp,
    "growing_history": train_ramp,
    "clean_ramp": train_ramp,
    "item_loop": train_host,
    "clean_one_item": train_host,
    "clean_average": train_host,
    "clean_long_evaluation": train_with_an_end,
    "clean_thread_dies": train_with_an_end,
    "clean_compile_anomaly": train_compiled,
    "clean_compile_gc": train_compiled,
}

if __name__ == "__main__":
    PROGRAMS.get(FAULT, train_numbers)()
    print(json.dumps({"truth_ms_per_step": cost["s"] / STEPS * 1e3, "steps": STEPS}))
