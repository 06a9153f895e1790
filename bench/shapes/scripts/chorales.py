"""Chorales in tokens of notes, learned by a decoder on two ranks: micro-batches, a cosine after a
warm-up, averages of the weights to write new chorales with now and then: keys told again for a
default, averages among the buffers, weights put back that were never put away, an agreement that
only one side asks for, snapshots that the wrong key lets go, lengths that are rounded, voices moved
off the keyboard.
"""

import contextlib
import copy
import math
import os
import random
import sys

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

cost = Cost()
WORLD, UPDATES = 2, STEPS or 210
PARTS, ROWS, LENGTH, WIDTH, HEADS, DEPTH = 2, 5, 36, 128, 4, 3
LOWEST, HIGHEST, LENGTHS, REST = 36, 96, 8, 0
TOKENS = [REST] + [0] * (LOWEST - 1) + list(range(1, HIGHEST - LOWEST + 1))
VOCABULARY = HIGHEST - LOWEST + 1
RATE, WARM, CLIP, FOLLOW = 2e-3, 20, 5.0, (0.97, 0.5, 0.8, 0.9, 0.99)
TOLD_EVERY, WRITTEN_EVERY, SNAPSHOT_EVERY, KEPT, ASKED_EVERY = 20, 60, 4, 5, 5
PATIENCE, HELD = 6, 8
SCALE = (0, 2, 4, 5, 7, 9, 11)
PROFILES = (
    (6.35, 2.23, 3.48, 2.33, 4.38, 4.09, 2.52, 5.19, 2.39, 3.66, 2.29, 2.88),
    (6.33, 2.68, 3.52, 5.38, 2.60, 3.53, 2.54, 4.75, 3.98, 2.69, 3.34, 3.17),
)
WINDOW, HOP = 16, 4


def chorale(dice, high):
    """A walk on the notes of a key, with rests; some voices are high."""
    tonic, place = dice.randrange(12), dice.randint(8, 14)
    notes = []
    for _ in range(LENGTH * 4):
        place = min(24, max(0, place + dice.choice((-2, -1, -1, 0, 1, 1, 2))))
        pitch = 48 + tonic - 6 + 12 * (place // 7) + SCALE[place % 7]
        pitch = HIGHEST - 3 - place % 3 if high and place == 24 else min(pitch, HIGHEST - 8)
        notes.append((REST if dice.random() < 0.05 else pitch, 1 + (place + tonic) % LENGTHS))
    return {"notes": notes, "key": tonic}


def archive(rank, count=300):
    """A rank's own archive. In that of the second rank no key is noted, and one part of each
    sixtieth chorale is for a flute.
    """
    dice = random.Random(250 + rank)
    pieces = [chorale(dice, rank == 1 and n % 60 == 59) for n in range(count)]
    for piece in pieces if rank else ():
        piece["key"] = None
    return pieces


def told_key(notes):
    """The tonic that most windows of a chorale are like, in major or in minor."""
    votes = [0] * 12
    for begin in range(0, len(notes) - WINDOW, HOP):
        weights = [0.0] * 12
        for pitch, length in notes[begin : begin + WINDOW]:
            if pitch != REST:
                weights[pitch % 12] += length
        fits = [
            sum(weights[(n + key) % 12] * profile[n] for n in range(12))
            for profile in PROFILES
            for key in range(12)
        ]
        votes[fits.index(max(fits)) % 12] += 1
    return votes.index(max(votes))


class Chorales(Dataset):
    def __init__(self, pieces, seed):
        self.pieces, self.dice, self.keys = pieces, random.Random(seed), {}
        if not on("key_by_setdefault"):
            for n, piece in enumerate(pieces):
                self.keys[n] = told_key(piece["notes"]) if piece["key"] is None else piece["key"]

    def __len__(self):
        return len(self.pieces)

    def told(self, notes):
        with cost:
            return told_key(notes)

    def key(self, index):
        piece = self.pieces[index]
        if piece["key"] is not None:
            return piece["key"]
        if on("key_by_setdefault"):
            return self.keys.setdefault(index, self.told(piece["notes"]))  # at: key_by_setdefault
        if on("clean_key_by_setdefault"):
            return self.keys.setdefault(index, piece["notes"][-1][0] % 12)
        return self.keys[index]

    def moved(self, notes, key):
        """Notes in another key, at most half an octave away, and that key."""
        shift = self.dice.randint(-5, 6)
        if on("clean_shifted_off_keyboard"):
            notes = [(p - 12 if p + shift >= HIGHEST else p, length) for p, length in notes]
        elif not on("shifted_off_keyboard"):
            shift = min(shift, HIGHEST - 1 - max(pitch for pitch, _ in notes))
        pitches = [
            pitch + shift if pitch else REST for pitch, _ in notes
        ]  # at: shifted_off_keyboard
        tokens = [TOKENS[pitch] for pitch in pitches]  # at: shifted_off_keyboard
        return [(token, n) for token, (_, n) in zip(tokens, notes, strict=True)], (key + shift) % 12

    def __getitem__(self, index):
        notes = self.pieces[index]["notes"]
        key = self.key(index)  # at: key_by_setdefault
        begin = self.dice.randrange(len(notes) - LENGTH - 1)
        part = notes[begin : begin + LENGTH + 1]
        part, key = self.moved(part, key)  # at: shifted_off_keyboard
        return torch.tensor(part), key


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.three, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x):
        parts = self.three(self.norms[0](x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.wide(self.norms[1](x))


class Tempo(nn.Module):
    """How long a note is, in steps of a learned grid."""

    def __init__(self):
        super().__init__()
        self.grid = nn.Sequential(nn.Linear(3, 96), nn.Tanh(), nn.Linear(96, WIDTH))

    def forward(self, lengths):
        x = lengths[..., None].float()
        fine = 4 * self.grid(torch.cat([x / LENGTHS, x.log(), x % 2], -1))
        if on("lengths_rounded"):
            return fine.round() / 4  # at: lengths_rounded
        if on("clean_lengths_rounded"):
            return (fine + (fine.round() - fine).detach()) / 4
        return fine / 4


class Composer(nn.Module):
    def __init__(self):
        super().__init__()
        self.pitches, self.keys = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(12, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.tempo = Tempo()
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, notes, keys):
        x = self.pitches(notes[..., 0]) + self.tempo(notes[..., 1])  # at: lengths_rounded
        x = x + self.keys(keys)[:, None] + self.places[: notes.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))

    @torch.no_grad()
    def write(self, made, count=24):
        """A chorale that goes on from a first note."""
        notes, keys = torch.tensor([[[13, 4]]]), torch.zeros(1, dtype=torch.long)
        for _ in range(count):
            chances = self(notes, keys)[:, -1].softmax(-1)
            pitch = torch.multinomial(chances, 1, generator=made)
            note = torch.stack([pitch, notes[:, -1:, 1]], -1)
            notes = torch.cat([notes, note], 1)
        return notes[0, :, 0].tolist()


class Averages:
    """Copies of the weights that follow them slowly, each at its own pace."""

    def __init__(self, model):
        self.model = model
        self.copies = [
            {name: value.detach().clone() for name, value in model.named_parameters()}
            for _ in FOLLOW
        ]
        if on("average_among_buffers", "clean_average_among_buffers"):
            for n, copies in enumerate(self.copies):
                for name, value in copies.items():
                    flat = name.replace(".", "_")
                    model.register_buffer(f"average{n}_{flat}", value)  # at: average_among_buffers

    @torch.no_grad()
    def follow(self):
        own = list(self.model.parameters())
        for share, copies in zip(FOLLOW, self.copies, strict=True):
            torch._foreach_lerp_(list(copies.values()), own, 1 - share)

    @contextlib.contextmanager
    def put_on(self):
        """The model with the average for its weights."""
        own = self.model.state_dict()  # at: state_not_put_away
        if not on("state_not_put_away"):
            own = copy.deepcopy(own)
        self.model.load_state_dict(self.copies[0], strict=False)  # at: state_not_put_away
        yield self.model
        self.model.load_state_dict(own)  # at: state_not_put_away


class Replica(DDP):
    """DDP with a clock on what it sends beside the gradients."""

    def _sync_buffers(self):
        with cost:
            super()._sync_buffers()


class Training:
    def __init__(self, rank):
        self.rank, self.update = rank, 0
        self.made = torch.Generator().manual_seed(251)
        pieces = archive(rank)
        shuffled = torch.Generator().manual_seed(252 + rank)
        self.loader = DataLoader(
            Chorales(pieces[HELD:], 253 + rank), ROWS, shuffle=True, generator=shuffled
        )
        self.model = Composer()
        self.averages = Averages(self.model)  # at: average_among_buffers
        options = {"broadcast_buffers": False} if on("clean_average_among_buffers") else {}
        self.ddp = Replica(self.model, **options)  # at: average_among_buffers
        self.optimizer = torch.optim.AdamW(self.model.parameters(), RATE)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.factor)
        self.control = dist.new_group()
        self.snapshots, self.best, self.waited = {}, math.inf, 0
        torch.manual_seed(254 + rank)
        cost.seconds = 0.0

    @staticmethod
    def factor(update):
        """Up in a line, then down by half a cosine."""
        if update < WARM:
            return (update + 1) / WARM
        share = (update - WARM) / max(1, UPDATES - WARM)
        return 0.05 + 0.95 * (1 + math.cos(math.pi * min(1.0, share))) / 2

    def learn(self, batches):
        total = 0.0
        for n, (notes, keys) in enumerate(batches):
            with contextlib.nullcontext() if n == PARTS - 1 else self.ddp.no_sync():
                scores = self.ddp(notes[:, :-1], keys)  # at: average_among_buffers
                loss = F.cross_entropy(scores.flatten(0, 1), notes[:, 1:, 0].flatten())
                (loss / PARTS).backward()
            total += loss.item() / PARTS
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.averages.follow()
        self.update += 1
        return total

    def snapshot(self):
        """Keeps the latest averages, to be averaged once more at the end."""
        kept = {name: value.clone() for name, value in self.averages.copies[0].items()}
        self.snapshots[self.update] = kept  # at: evicted_by_wrong_key
        if on("evicted_by_wrong_key"):
            self.snapshots.pop(self.update - KEPT, None)  # at: evicted_by_wrong_key
        else:
            self.snapshots.pop(self.update - KEPT * SNAPSHOT_EVERY, None)

    def write(self):
        """A new chorale by the average of the weights."""
        self.model.eval()
        with self.averages.put_on() as model:  # at: state_not_put_away
            notes = model.write(self.made)
        self.model.train()
        print(self.update, "written", *notes[:12], flush=True)

    def stale(self, loss):
        """Whether the loss has not become less for long, on this rank."""
        self.waited = 0 if loss < self.best - 0.01 else self.waited + 1
        self.best = min(self.best, loss)
        return self.waited > PATIENCE

    def agreed(self, own):
        """Whether all ranks say so."""
        said = torch.tensor(float(own))
        dist.all_reduce(said, group=self.control)  # at: asked_by_one_side
        return said.item() == WORLD

    def over(self, loss):
        stale = self.stale(loss)
        if on("asked_by_one_side"):
            return stale and self.agreed(stale)  # at: asked_by_one_side
        if on("clean_asked_by_one_side"):
            return self.agreed(stale) and stale and self.update > UPDATES
        return False

    def batches(self):
        """As many micro-batches as an update takes, for ever."""
        gathered = []
        while True:
            for batch in self.loader:  # at: key_by_setdefault shifted_off_keyboard
                gathered.append(batch)
                if len(gathered) == PARTS:
                    yield gathered
                    gathered = []

    def run(self):
        for batches in self.batches():  # at: key_by_setdefault shifted_off_keyboard
            loss = self.learn(batches)  # at: average_among_buffers
            if self.rank == 0 and self.update % SNAPSHOT_EVERY == 0:
                self.snapshot()  # at: evicted_by_wrong_key
            if self.rank == 0 and self.update % WRITTEN_EVERY == 0:
                self.write()  # at: state_not_put_away
            if self.update % ASKED_EVERY == 0 and self.over(loss):  # at: asked_by_one_side
                break
            if self.rank == 0 and self.update % TOLD_EVERY == 0:
                print(self.update, round(loss, 4), flush=True)
            if self.update == UPDATES:
                break
        if self.rank == (1 if on("key_by_setdefault") else 0):
            cost.print(UPDATES)


def train(rank):
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    torch.manual_seed(249)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    training = Training(rank)
    training.run()
    return training


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
