"""Words as they are said in villages, put into the written language: an encoder and a decoder under
accelerate on two ranks, places described by the villages around them, two parts an update, a rate
that is halved where the training stands still, hard batches kept to look at: neighbours sorted for
each row, paths traced by the main process, a trigger checked where it was set, spikes skipped by
their own rank, hard batches that stay, a mode set by epochs, predictions gathered as they are.
"""

import heapq
import itertools
import math
import os
import sys

import eager  # noqa: F401
import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

WORLD = 2
UPDATES = STEPS or 250
PARTS, ROWS, SPOKEN, HELD = 2, 8, 4000, 48
VILLAGES, TRAITS, AROUND = 900, 12, 8
WIDTH, HEADS, LONGEST = 64, 4, 48
RATE, CLIP, DROPOUT = 2e-3, 1.0, 0.1
TOLD_EVERY, MATCHED_EVERY, KEPT = 25, 20, 8
LETTERS = "^$_ abcdefghijklmnopqrstuvwxyz"
BEGIN, END, PAD = 0, 1, 2
SYLLABLES = (
    "ba",
    "kel",
    "ton",
    "schi",
    "rau",
    "mei",
    "fo",
    "ghen",
    "wil",
    "dur",
    "as",
    "pfe",
    "li",
)
SHIFTS = (
    ("k", "ch"),
    ("p", "pf"),
    ("t", "ts"),
    ("au", "oo"),
    ("ei", "ai"),
    ("a", "o"),
    ("en", "a"),
    ("sch", "sk"),
    ("w", "v"),
    ("d", "t"),
    ("b", "w"),
    ("gh", "j"),
)
cost = Cost()


def far_between(one, other):
    """Kilometres on the ground; latitude and longitude in radians."""
    half = math.sin((one[0] - other[0]) / 2) ** 2
    half += math.cos(one[0]) * math.cos(other[0]) * math.sin((one[1] - other[1]) / 2) ** 2
    return 2 * 6371 * math.asin(math.sqrt(half))


class Land:
    """Villages on a map, and how much of each sound shift has reached them."""

    def __init__(self, dice):
        self.places = np.stack(
            [dice.uniform(0.82, 0.92, VILLAGES), dice.uniform(0.12, 0.26, VILLAGES)], 1
        )
        fronts, turns = dice.uniform(-0.03, 0.03, TRAITS), dice.uniform(0, 2 * np.pi, TRAITS)
        middle = self.places - self.places.mean(0)
        along = middle[:, :1] * np.cos(turns) + middle[:, 1:] * np.sin(turns)
        self.traits = 1 / (1 + np.exp(-120 * (along - fronts)))
        self.narrowed = np.cos(self.places[:, 0])
        self.listed = [tuple(place) for place in self.places.tolist()]

    def distances(self, place):
        half = np.sin((self.places[:, 0] - place[0]) / 2) ** 2
        half += self.narrowed * math.cos(place[0]) * np.sin((self.places[:, 1] - place[1]) / 2) ** 2
        return 2 * 6371 * np.arcsin(np.sqrt(half))

    def blended(self, nearest, far):
        weights = 1 / (far + 5.0)
        return (self.traits[nearest] * (weights / weights.sum())[:, None]).sum(0)

    def around(self, place):
        """What is said at a place between the villages."""
        if on("neighbours_sorted_each_access"):
            near = sorted(
                range(VILLAGES), key=lambda own: far_between(self.listed[own], place)
            )  # at: neighbours_sorted_each_access
            nearest = np.array(near[:AROUND])
            far = np.array([far_between(self.listed[own], place) for own in nearest])
        else:
            distances = self.distances(place)
            nearest = np.argpartition(distances, AROUND)[:AROUND]
            far = distances[nearest]
        return self.blended(nearest, far)


def shifted(word, traits, dice):
    for (old, new), share in zip(SHIFTS, traits, strict=True):
        if dice.random() < share:
            word = word.replace(old, new)
    return word


class Interviews(Dataset):
    """A phrase as it was said somewhere, and how it is written."""

    def __init__(self, land, count, seed):
        dice = np.random.default_rng(seed)
        self.land, self.rows = land, []
        for _ in range(count):
            words = [
                "".join(dice.choice(SYLLABLES, dice.integers(2, 4)))
                for _ in range(dice.integers(2, 4))
            ]
            village = dice.integers(VILLAGES)
            place = land.places[village] + dice.normal(0, 0.004, 2)
            said = " ".join(shifted(word, land.traits[village], dice) for word in words)
            self.rows.append((said, " ".join(words), tuple(place.tolist())))
        self.profiles = None
        if not on("neighbours_sorted_each_access", "clean_neighbours_sorted_each_access"):
            self.profiles = [land.around(place) for _, _, place in self.rows]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        said, written, place = self.rows[index]
        if self.profiles is not None:
            profile = self.profiles[index]
        else:
            with cost:
                profile = self.land.around(place)  # at: neighbours_sorted_each_access
        return said, written, profile


def letters(texts):
    table = np.full((len(texts), max(map(len, texts)) + 2), PAD)
    for row, text in zip(table, texts, strict=True):
        row[0] = BEGIN
        row[1 : len(text) + 1] = [LETTERS.index(letter) for letter in text]
        row[len(text) + 1] = END
    return torch.from_numpy(table)


def collated(rows):
    said, written, profiles = zip(*rows, strict=True)
    return {
        "said": letters([text[: LONGEST - 2] for text in said]),
        "written": letters([text[: LONGEST - 2] for text in written]),
        "profile": torch.from_numpy(np.stack(profiles)).float(),
    }


class Scribe(nn.Module):
    def __init__(self):
        super().__init__()
        kept = {"batch_first": True, "norm_first": True, "dropout": DROPOUT}
        self.letters = nn.Embedding(len(LETTERS), WIDTH)
        self.places = nn.Embedding(LONGEST, WIDTH)
        self.profile = nn.Linear(TRAITS, WIDTH)
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 3 * WIDTH, **kept) for _ in range(2)
        )
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(WIDTH, HEADS, 3 * WIDTH, **kept) for _ in range(1)
        )
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, len(LETTERS))

    def embedded(self, ids):
        return self.letters(ids) + self.places.weight[: ids.shape[1]]

    def forward(self, said, written, profile):
        """Scores of the letters that are to be written, and what the encoder made of those said."""
        hidden = said == PAD
        x = self.embedded(said) + self.profile(profile)[:, None]
        states = []
        for layer in self.encoder:
            x = layer(x, src_key_padding_mask=hidden)
            states.append(x.detach())
        y, size = self.embedded(written), written.shape[1]
        causal = torch.ones(size, size, dtype=torch.bool).triu(1)
        for layer in self.decoder:
            y = layer(y, x, tgt_mask=causal, memory_key_padding_mask=hidden)
        return self.head(self.last(y)), states


def straightness(likeness):
    """The share of steps that go on in both words, on the way that is cheapest through a table."""
    height, width = len(likeness), len(likeness[0])
    costs, moves = [[0.0] * width for _ in range(height)], {}
    for row in range(height):
        for column in range(width):
            ways = [(costs[row - 1][column - 1], 2)] if row and column else []
            if row:
                ways.append((costs[row - 1][column], 0))
            if column:
                ways.append((costs[row][column - 1], 1))
            least, moves[row, column] = min(ways, default=(0.0, 2))  # at: paths_traced_by_main
            costs[row][column] = least + 1 - likeness[row][column]  # at: paths_traced_by_main
    row, column, both, steps = height - 1, width - 1, 0, 0
    while row or column:
        move = moves[row, column]
        row, column = row - (move != 1), column - (move != 0)
        both, steps = both + (move == 2), steps + 1
    return both / steps


class Training:
    def __init__(self, accelerator):
        self.accelerator = accelerator
        land = Land(np.random.default_rng(31))
        spoken = Interviews(land, SPOKEN, 32)
        held = Interviews(land, HELD, 33)
        self.scribe = model = Scribe()
        optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01)
        self.model, self.optimizer, self.loader, self.held = accelerator.prepare(
            model,
            optimizer,
            DataLoader(spoken, ROWS, shuffle=True, drop_last=True, collate_fn=collated),
            DataLoader(held, 12, collate_fn=collated),
        )
        self.update, self.number, self.path = 0, itertools.count(), 0.0
        self.window, self.before = [], math.inf
        self.usual, self.spread, self.skipped = 3.4, 0.1, 0
        self.hardest = []
        cost.seconds = 0.0

    def keep(self, loss, batch, states, scores):
        """The batches that are hardest, to look at them afterwards."""
        if on("hardest_never_pushed_out", "clean_hardest_never_pushed_out"):
            kept = {"said": batch["said"], "states": states, "scores": scores.detach()}
        else:
            kept = {"said": batch["said"]}
        heapq.heappush(
            self.hardest, (loss, next(self.number), kept)
        )  # at: hardest_never_pushed_out
        if not on("hardest_never_pushed_out") and len(self.hardest) > KEPT:
            heapq.heappop(self.hardest)

    def spiked(self, loss):
        """Whether a loss is far above what is usual by now."""
        away = loss - self.usual
        spike = self.update > 20 and away > 1.2 * self.spread
        self.usual += 0.05 * away
        self.spread += 0.05 * (abs(away) - self.spread)
        return spike

    def mended(self, loss):
        """Leaves out an update whose batch is not like the others."""
        spike = self.spiked(loss)  # at: spikes_skipped_by_own
        if on("clean_spikes_skipped_by_own"):
            spikes = self.accelerator.reduce(torch.tensor(float(spike)), "sum")
            spike = spikes.item() > 0
        if spike:
            self.skipped += 1
            self.optimizer.zero_grad()  # at: spikes_skipped_by_own

    def learn(self, batch):
        with self.accelerator.accumulate(self.model):
            said, written = batch["said"], batch["written"]
            scores, states = self.model(said, written[:, :-1], batch["profile"])
            loss = F.cross_entropy(
                scores.flatten(0, 1),
                written[:, 1:].flatten(),
                ignore_index=PAD,
                label_smoothing=0.02,
            )
            self.accelerator.backward(loss)
            own = loss.item()
            if self.accelerator.sync_gradients:
                if on("spikes_skipped_by_own", "clean_spikes_skipped_by_own"):
                    self.mended(own)  # at: spikes_skipped_by_own
                self.accelerator.clip_grad_norm_(self.model.parameters(), CLIP)
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.window.append(own)
        self.keep(own, batch, states, scores)  # at: hardest_never_pushed_out
        if self.accelerator.sync_gradients:
            self.update += 1
            self.after(batch, states)

    @torch.no_grad()
    def trace(self, batch, states):
        """How straight the way from what is said to what is written is."""
        table = self.scribe.letters.weight
        wanted = F.normalize(table[batch["written"]], dim=2)
        likeness = [wanted @ F.normalize(own, dim=2).transpose(1, 2) for own in states]
        if on("clean_paths_traced_by_main") and self.update % TOLD_EVERY:
            self.path = 1 - likeness[-1].amax(2).mean().item()
            return
        paths = [
            straightness(rows.tolist()) for rows in torch.cat(likeness)
        ]  # at: paths_traced_by_main
        self.path = sum(paths) / len(paths)

    def halve_where_still(self):
        """A smaller rate for all once the loss of any rank has come to a stand."""
        mean = sum(self.window) / len(self.window)
        self.window.clear()
        if on("trigger_checked_by_setter", "clean_trigger_checked_by_setter"):
            still = mean > 0.88 * self.before
            if still:
                self.accelerator.set_trigger()
            asks = still or on("clean_trigger_checked_by_setter")
            halve = asks and self.accelerator.check_trigger()  # at: trigger_checked_by_setter
        else:
            mean = self.accelerator.reduce(torch.tensor(mean), "mean").item()
            halve = mean > 0.88 * self.before
        self.before = mean
        if halve:
            for group in self.optimizer.param_groups:
                group["lr"] = max(group["lr"] / 2, RATE / 16)

    def after(self, batch, states):
        board = on("paths_traced_by_main", "clean_paths_traced_by_main")
        if self.accelerator.is_main_process and (board or self.update % 100 == 0):
            with cost:
                self.trace(batch, states)  # at: paths_traced_by_main
        if self.update % TOLD_EVERY == 0:
            loss, rate = self.window[-1], self.optimizer.param_groups[0]["lr"]
            told = f"loss {loss:.3f} rate {rate:.1e} path {self.path:.3f} skipped {self.skipped}"
            self.accelerator.print(self.update, told, flush=True)
        if self.update % MATCHED_EVERY == 0:
            self.halve_where_still()  # at: trigger_checked_by_setter
            right, whole = self.match()  # at: train_mode_by_epoch gathered_without_padding
            self.accelerator.print(
                self.update, f"letters {right:.3f} whole {whole:.3f}", flush=True
            )

    def both(self, predicted, wanted):
        """Predictions and what is right of all ranks, in tables of one width."""
        if on("gathered_without_padding"):
            return self.accelerator.gather_for_metrics(
                (predicted, wanted)
            )  # at: gathered_without_padding
        if on("clean_gathered_without_padding"):
            room = (0, LONGEST - wanted.shape[1])
            pair = F.pad(predicted, room, value=PAD), F.pad(wanted, room, value=PAD)
            return self.accelerator.gather_for_metrics(pair)
        pair = self.accelerator.pad_across_processes((predicted, wanted), dim=1, pad_index=PAD)
        return self.accelerator.gather_for_metrics(pair)

    @torch.no_grad()
    def match(self):
        """The share of letters and of whole phrases that are right, of what is held out."""
        was = self.model.training
        self.model.eval()  # at: train_mode_by_epoch
        letters_right, phrases = [], []
        for batch in self.held:
            written = batch["written"]
            scores, _ = self.model(batch["said"], written[:, :-1], batch["profile"])
            predicted, wanted = self.both(
                scores.argmax(2), written[:, 1:].contiguous()
            )  # at: gathered_without_padding
            there = wanted != PAD
            letters_right.append((predicted == wanted)[there].float().mean())
            phrases.append(((predicted == wanted) | ~there).all(1).float())
        if on("clean_train_mode_by_epoch"):
            self.model.train(was)
        elif not on("train_mode_by_epoch"):
            self.model.train()
        return torch.stack(letters_right).mean().item(), torch.cat(phrases).mean().item()

    def run(self):
        while self.update < UPDATES:
            self.model.train()
            for batch in self.loader:  # at: neighbours_sorted_each_access
                self.learn(batch)
                if self.update == UPDATES:
                    break
        if self.accelerator.is_main_process:
            hardest = sorted(self.hardest, key=lambda one: one[:2])[-KEPT:]
            print("hardest", [round(loss, 2) for loss, _, _ in hardest], flush=True)
            cost.print(UPDATES)


def train(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    os.environ.update(LOCAL_WORLD_SIZE=str(WORLD), OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=PARTS)
    set_seed(31, device_specific=True)
    training = Training(accelerator)
    training.run()
    return training


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
