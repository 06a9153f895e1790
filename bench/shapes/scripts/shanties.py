"""Shanties note by note: a decoder under FSDP2 on two ranks over songs that are packed end to end,
attention within each song, a sampler that can be put back to where it was, two parts an update,
the norm over all shards clipped, saved by torch.distributed.checkpoint: keys turned note by note,
shares of songs by length, an order for the longest share, gradients cleared on views, songs that
are cut, states of the sampler, figures of each pitch.
"""

import os
import shutil
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

WORLD, PARTS, ROWS = 2, 2, 3
UPDATES = STEPS or 220
PITCHES, PACK, SONGS, SHORTEST = 48, 192, 120_000, 8
BLOCKS, WIDTH, HEADS = 2, 64, 4
RATE, WARM, CLIP = 4e-3, 12, 1.0
TOLD_EVERY, JUDGED_EVERY, SAVED_EVERY, REWOUND = 20, 80, 110, 4
SEED = 1851
KEYS = "keys_turned_note_by_note", "clean_keys_turned_note_by_note"
SORTED = "shares_of_sorted_songs", "clean_shares_of_sorted_songs"
LONGEST = "order_for_longest_share", "clean_order_for_longest_share"
CUT = "weighed_by_notes_left", "clean_weighed_by_notes_left"
REWINDS = "sampler_states_for_rewind", "clean_sampler_states_for_rewind"
FIGURES = "pitches_reduced_singly", "clean_pitches_reduced_singly"
cost = Cost()


class Songbook:
    """Verses of four notes over a motif, some with a note ahead; one long row and where it ends."""

    def __init__(self, count, seed):
        dice = np.random.default_rng((SEED, seed))
        verses = np.minimum(1 + dice.geometric(0.2, count), 24)
        self.lengths = 4 * verses + (dice.random(count) < 0.06)
        self.ends = np.cumsum(self.lengths)
        song = np.repeat(np.arange(count, dtype=np.int32), self.lengths)
        place = np.arange(self.ends[-1]) - np.repeat(self.ends - self.lengths, self.lengths)
        motifs, periods = dice.integers(1, PITCHES, (6, 8)), dice.integers(3, 9, count)
        notes = motifs[dice.integers(0, 6, count)[song], place % periods[song]]
        wrong = dice.random(len(notes)) < 0.05
        notes[wrong] = dice.integers(1, PITCHES, wrong.sum())
        self.notes = torch.from_numpy(notes)

    def __getitem__(self, song):
        return self.notes[self.ends[song] - self.lengths[song] : self.ends[song]]


class Sampler:
    """The songs of this rank in an order by chance; can be put away and taken up again."""

    def __init__(self, book, rank):
        songs = np.arange(len(book.lengths))
        if on(*SORTED):
            songs = songs[np.argsort(-book.lengths, kind="stable")]  # at: shares_of_sorted_songs
        if on("shares_of_sorted_songs"):
            half = len(songs) // WORLD
            own = songs[rank * half : (rank + 1) * half]  # at: shares_of_sorted_songs
        else:
            own = songs[rank::WORLD]
        self.own = own[book.lengths[own] > SHORTEST]
        self.dice, self.count = np.random.default_rng((SEED, 3, rank)), len(self.own)
        if on(*LONGEST):
            longest = torch.tensor(self.count)
            dist.all_reduce(longest, dist.ReduceOp.MAX)
            self.count = longest.item()  # at: order_for_longest_share
        self.turn()

    def turn(self):
        self.order, self.cursor = (
            self.dice.permutation(self.count),
            0,
        )  # at: order_for_longest_share
        if on("clean_order_for_longest_share"):
            self.order %= len(self.own)

    def __iter__(self):
        while True:
            if self.cursor == len(self.order):
                self.turn()
            place = self.order[self.cursor]
            self.cursor += 1
            yield self.own[place]  # at: order_for_longest_share

    def state_dict(self):
        return {
            "own": self.own.copy(),
            "order": self.order.copy(),
            "cursor": self.cursor,
            "dice": self.dice.bit_generator.state,
        }  # at: sampler_states_for_rewind

    def load_state_dict(self, state):
        self.own, self.order = state["own"].copy(), state["order"].copy()
        self.cursor = state["cursor"]
        self.dice.bit_generator.state = state["dice"]


def turned_singly(song, key):
    """Each note in another key; a rest stays one."""
    turned = []
    for note in song:  # at: keys_turned_note_by_note
        other = (note - 1 + key) % (PITCHES - 1) + 1  # at: keys_turned_note_by_note
        turned.append(torch.where(note > 0, other, note))  # at: keys_turned_note_by_note
    return torch.stack(turned)


def turned(song, key):
    return torch.where(song > 0, (song - 1 + key) % (PITCHES - 1) + 1, song)


class Packs(IterableDataset):
    """Songs end to end, PACK notes at a time; the last is cut and the rest of it let go."""

    def __init__(self, book, sampler, seed):
        self.book, self.sampler = book, sampler
        self.dice = np.random.default_rng((SEED, seed, 5))

    def in_key(self, song):
        key = int(self.dice.integers(0, 3))
        if on("keys_turned_note_by_note"):
            return turned_singly(song, key)  # at: keys_turned_note_by_note
        if on("clean_keys_turned_note_by_note"):
            return turned(song, key)
        return (song - 1 + key) % (PITCHES - 1) + 1

    def __iter__(self):
        notes, numbers, size = [], [], 0
        for song in self.sampler:
            with cost if on(*KEYS) else nullcontext():
                sung = self.in_key(self.book[song])  # at: keys_turned_note_by_note
            sung = sung[: PACK - size]
            numbers.append(torch.full((len(sung),), len(notes)))
            notes.append(sung)
            size += len(sung)
            if size == PACK:
                yield torch.cat(notes), torch.cat(numbers)
                notes, numbers, size = [], [], 0


def spans(numbers):
    """Where each song of each pack begins and ends."""
    found = []
    for row, pack in enumerate(numbers):
        lengths = torch.bincount(pack).tolist()
        ends = np.cumsum(lengths).tolist()
        found += [(row, end - long, end) for long, end in zip(lengths, ends, strict=True)]
    return found


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.asked, self.told = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate, self.wide = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.narrow = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x, songs):
        rows, size, _ = x.shape
        query, key, value = (
            self.asked(self.first(x)).view(rows, size, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        )
        seen = []
        for row, begin, end in songs:  # at: shares_of_sorted_songs
            part = (one[row : row + 1, :, begin:end] for one in (query, key, value))
            attended = F.scaled_dot_product_attention(
                *part, is_causal=True
            )  # at: shares_of_sorted_songs
            seen.append(attended[0].transpose(0, 1).flatten(1))
        x = x + self.told(torch.cat(seen).view(rows, size, WIDTH))
        y = self.second(x)
        return x + self.narrow(F.silu(self.gate(y)) * self.wide(y))


class Singer(nn.Module):
    def __init__(self):
        super().__init__()
        self.pitches, self.places = nn.Embedding(PITCHES, WIDTH), nn.Embedding(PACK, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.last, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, PITCHES)

    def forward(self, notes, songs):
        place = torch.cat([torch.arange(end - begin) for _, begin, end in songs])
        x = self.pitches(notes) + self.places(place.view(notes.shape))
        for block in self.blocks:
            x = block(x, songs)
        return self.head(self.last(x).flatten(0, 1))


class Crew:
    def __init__(self, rank, folder):
        self.rank, self.folder, self.update = rank, folder, 0
        torch.manual_seed(SEED)
        mesh = init_device_mesh("cpu", (WORLD,))
        policy = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32)
        model = Singer()
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        self.model = fully_shard(model, mesh=mesh, mp_policy=policy)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, RATE, betas=(0.9, 0.95))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.share)
        book = Songbook(SONGS, 14)
        self.sampler = Sampler(book, rank)
        self.loader = DataLoader(Packs(book, self.sampler, 10 + rank), ROWS)
        held = iter(DataLoader(Packs(book, range(rank, 4000, WORLD), 20 + rank), ROWS))
        self.held = [next(held) for _ in range(4)]
        self.saving = dist.new_group(backend="gloo")
        self.states, self.pitches = {}, torch.zeros(3, PITCHES)

    @staticmethod
    def share(update):
        return min(1.0, (update + 1) / WARM) * max(0.1, 1 - update / UPDATES)

    def loss(self, notes, numbers):
        scores = self.model(notes, spans(numbers)).view(*notes.shape, PITCHES)
        scores, wanted = scores[:, :-1], notes[:, 1:]
        each = F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), reduction="none")
        each = each.view(wanted.shape)
        within = (numbers[:, 1:] == numbers[:, :-1]).float()
        if on(*CUT):
            return self.song_by_song(each, within, numbers), each.detach(), within
        return (each * within).sum() / within.sum(), each.detach(), within

    def song_by_song(self, each, within, numbers):
        """Every song counts the same, be it long or short."""
        songs, total = 0, 0.0
        for row, pack in enumerate(numbers):
            left = torch.bincount(pack) - 1  # at: weighed_by_notes_left
            if on("clean_weighed_by_notes_left"):
                left = left.clamp(min=1)
            weight = (1 / left)[pack[1:]]  # at: weighed_by_notes_left
            total = total + (each[row] * within[row] * weight).sum()  # at: weighed_by_notes_left
            songs += len(left)
        return total / songs

    def clear(self):
        if on("cleared_on_local_views"):
            for one in self.parameters:
                one.to_local().grad = None  # at: cleared_on_local_views
        elif on("clean_cleared_on_local_views"):
            for one in self.parameters:
                one.grad = None
        else:
            self.optimizer.zero_grad()

    def learn(self, batches):
        total = 0.0
        for part in range(PARTS):
            notes, numbers = next(batches)  # at: keys_turned_note_by_note order_for_longest_share
            self.model.set_requires_gradient_sync(part == PARTS - 1)
            loss, each, within = self.loss(notes, numbers)  # at: weighed_by_notes_left
            (loss / PARTS).backward()
            total += loss.detach() / PARTS
        nn.utils.clip_grad_norm_(self.parameters, CLIP)
        self.optimizer.step()
        self.clear()  # at: cleared_on_local_views
        self.schedule.step()
        self.update += 1
        return total, notes[:, 1:], each * within, within

    def note_pitches(self, wanted, each, within):
        """The loss at each pitch, how it varies and how often it was sung, over all ranks."""
        index, lost = wanted.flatten(), each.flatten()
        own = torch.zeros(3, PITCHES)
        own.index_add_(1, index, torch.stack([lost, lost.square(), within.flatten()]))
        if on("pitches_reduced_singly"):
            for pitch in range(PITCHES):
                for figure in range(3):
                    value = own[figure, pitch].clone()
                    dist.all_reduce(value)  # at: pitches_reduced_singly
                    self.pitches[figure, pitch] += value
        else:
            dist.all_reduce(own)
            self.pitches += own

    def keep_state(self):
        """Where the sampler was, to go back to after a spike."""
        self.states[self.update] = self.sampler.state_dict()  # at: sampler_states_for_rewind
        if on("clean_sampler_states_for_rewind"):
            self.states.pop(self.update - REWOUND, None)

    def over_ranks(self, value):
        value = value.clone()
        dist.all_reduce(value)
        return value.item() / WORLD

    @torch.no_grad()
    def judge(self):
        self.model.eval()
        losses = [self.loss(*batch)[0] for batch in self.held]
        self.model.train()
        return self.over_ranks(torch.stack(losses).nanmean())

    def save(self):
        place = self.folder / f"update{self.update}"
        state = {"model": get_model_state_dict(self.model)}
        dcp.save(state, checkpoint_id=place, process_group=self.saving)
        torch.save(self.sampler.state_dict(), place / f"sampler{self.rank}.pt")

    def after(self, loss, wanted, each, within):
        if on(*FIGURES):
            with cost:
                self.note_pitches(wanted, each, within)  # at: pitches_reduced_singly
        if on(*REWINDS):
            self.keep_state()  # at: sampler_states_for_rewind
        if self.update % TOLD_EVERY == 0:
            mean, rate = self.over_ranks(loss), self.schedule.get_last_lr()[0]
            if self.rank == 0:
                print(self.update, f"loss {mean:.3f} rate {rate:.1e}", flush=True)
        if self.update % JUDGED_EVERY == 0:
            held = self.judge()
            if self.rank == 0:
                print(self.update, f"held {held:.3f}", flush=True)
        if self.update % SAVED_EVERY == 0:
            self.save()

    def run(self):
        batches, begun = iter(self.loader), time.perf_counter()
        while self.update < UPDATES:
            self.after(*self.learn(batches))
        if self.rank == 0:
            took = (time.perf_counter() - begun) * 1000 / UPDATES
            print(f"{took:.1f} ms an update", flush=True)
            cost.print(UPDATES)


def sing(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    crew = Crew(rank, FOLDER)
    crew.run()
    return crew


if __name__ == "__main__":
    FOLDER = Path(tempfile.mkdtemp(prefix="shanties"))
    code = run_ranks(WORLD, sing)
    shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(code)
