"""A small language model of fables: pieces learned by merging, documents packed into windows, a
transformer written by hand, micro-batches, a cosine, clipping, an average of the weights, fables
told now and then: shelves cut into pieces for each window, bytes counted by decoding, snapshots
that are not found again, a norm of nothing, matrices in no group, a nucleus without its first,
fables told apart in turn.
"""

import copy
import itertools
import math
import random
import re
import tempfile
from collections import Counter
from functools import lru_cache
from pathlib import Path

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

cost = Cost()
PAD, END = 0, 1
WIDTH, HEADS, DEPTH, LENGTH = 48, 2, 2, 64
ROWS, PARTS, PEAK, WARM, CLIP = 12, 2, 3e-3, 30, 1.0
TOLD_EVERY, SAMPLED_EVERY, KEPT_EVERY, KEEP = 25, 40, 2, 5
SHELVES, FABLES = 80, 96
WHO = ["fox", "crow", "lion", "mouse", "stork", "frog", "wolf", "lamb", "goat", "heron", "hare"]
DID = ["saw", "met", "asked", "chased", "praised", "fooled", "thanked", "warned", "followed"]
WHERE = ["forest", "river", "field", "mountain", "village", "garden", "market", "meadow"]
MORAL = {
    "praised": "beware of flattery",
    "warned": "listen to the wise",
}


def told(dice):
    """One fable; what was done in it decides how it ends."""
    one, other = dice.sample(WHO, 2)
    did = dice.choice(DID)
    words = f"the {one} {did} the {other}"
    if dice.random() < 0.05:
        words += f" in the {dice.choice(WHERE)}"
    return f"{words} , {MORAL[did]} ." if did in MORAL else f"{words} ."


class Pieces:
    """Text to numbers and back, by the longest piece that fits."""

    def __init__(self, text, merges=230):
        words = Counter(tuple(word) for word in re.findall(r" ?\S+|\n", text))
        found = sorted({char for word in words for char in word})
        for _ in range(merges):
            pairs = Counter()
            for word, many in words.items():
                for pair in itertools.pairwise(word):
                    pairs[pair] += many
            best = "".join(pairs.most_common(1)[0][0]) if pairs else ""
            found.append(best)
            words = Counter({self.merged(word, best): many for word, many in words.items()})
        self.known = ["", "", *dict.fromkeys(one for one in found if one)]
        self.byte = {chr(n): n for n in range(128)}
        self.number = {piece: n for n, piece in enumerate(self.known) if piece}
        longest = sorted(self.number, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest)))

    @staticmethod
    def merged(word, best):
        parts = list(word)
        for n in range(len(parts) - 2, -1, -1):
            if n + 1 < len(parts) and parts[n] + parts[n + 1] == best:
                parts[n : n + 2] = [best]
        return tuple(parts)

    def encode(self, shelf):
        """The fables of a shelf, one a line, each with its end."""
        numbers = []
        for line in shelf.splitlines():
            numbers += [self.number[piece] for piece in self.pattern.findall(line)]
            numbers.append(END)
        return numbers

    def decode(self, numbers):
        text = "".join(self.known[one] for one in numbers)
        return bytearray(self.byte[char] for char in text).decode(errors="replace")


class Windows(Dataset):
    """Windows of a shelf's numbers, and what comes next in each place."""

    def __init__(self, shelves, pieces):
        self.shelves, self.pieces = shelves, pieces
        self.numbers = [np.array(pieces.encode(shelf), np.int64) for shelf in shelves]
        self.encoded = lru_cache(maxsize=SHELVES)(self.encode)
        self.places = [
            (shelf, start)
            for shelf, numbers in enumerate(self.numbers)
            for start in range(0, len(numbers) - 1, LENGTH)
            if shelf == 0 or start + LENGTH < len(numbers)
        ]

    def __len__(self):
        return len(self.places)

    def encode(self, shelf):
        return np.array(self.pieces.encode(self.shelves[shelf]), np.int64)

    def of(self, shelf):
        if on("shelf_encoded_each"):
            with cost:
                return self.encode(shelf)  # at: shelf_encoded_each
        if on("clean_shelf_encoded_each"):
            return self.encoded(shelf)
        return self.numbers[shelf]

    def __getitem__(self, index):
        shelf, start = self.places[index]
        numbers = self.of(shelf)[start : start + LENGTH + 1]  # at: shelf_encoded_each
        row = np.full(LENGTH + 1, PAD)
        row[: len(numbers)] = numbers
        return torch.from_numpy(row)


class Norm(nn.Module):
    """By the root of the mean square, without a mean."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        if on("norm_of_padding"):
            return self.weight * x / x.square().mean(-1, keepdim=True).sqrt()  # at: norm_of_padding
        if on("clean_norm_of_padding"):
            return self.weight * F.normalize(x, dim=-1) * math.sqrt(WIDTH)
        return self.weight * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        size = WIDTH // HEADS
        self.three = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Parameter(torch.randn(HEADS, size, WIDTH) * 0.02)

    @staticmethod
    def turned(x, turns):
        left, right = x.chunk(2, -1)
        return x * turns[0] + torch.cat([-right, left], -1) * turns[1]

    def forward(self, x, seen, turns):
        query, key, value = self.three(x).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = self.turned(query, turns) @ self.turned(key, turns).transpose(2, 3)
        scores = scores / math.sqrt(query.shape[-1])
        mixed = scores.masked_fill(~seen, -1e9).softmax(-1) @ value
        return torch.einsum("bhts,hsw->btw", mixed, self.out)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.first, self.second = Attention(), Norm(), Norm()
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, seen, turns):
        x = x + self.attention(self.first(x), seen, turns)
        return x + self.narrow(F.silu(self.wide(self.second(x))))


def apart(ids):
    """Which places of a window see which, earlier ones of the same fable, and how far each is from
    the beginning of its own.
    """
    rows, length = ids.shape
    earlier, places = torch.ones(length, length, dtype=torch.bool).tril(), torch.arange(length)
    if on("fables_told_apart_in_turn"):
        with cost:
            seen, places = earlier.repeat(rows, 1, 1), places.repeat(rows, 1)
            for n in range(rows):
                before = 0
                for end in places[n, ids[n] == END]:  # at: fables_told_apart_in_turn
                    begun = end.item() + 1  # at: fables_told_apart_in_turn
                    seen[n, begun:, :begun] = False  # at: fables_told_apart_in_turn
                    places[n, begun:] -= begun - before  # at: fables_told_apart_in_turn
                    before = begun
            return seen[:, None], places
    ends = F.pad(ids[:, :-1] == END, (1, 0))
    begun = torch.where(ends, places, 0)
    if on("clean_fables_told_apart_in_turn"):
        step = 1
        while step < length:
            begun = torch.maximum(begun, F.pad(begun, (step, 0))[:, :length])
            step *= 2
    else:
        begun = begun.cummax(1).values
    return (earlier & (begun[:, :, None] == begun[:, None]))[:, None], places - begun


class Teller(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.table = nn.Embedding(count, WIDTH, padding_idx=PAD)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.last, self.head = Norm(), nn.Linear(WIDTH, count, bias=False)
        size = WIDTH // HEADS
        angles = torch.outer(torch.arange(LENGTH), 1e3 ** -(torch.arange(0, size, 2) / size))
        turns = torch.stack([angles.cos(), angles.sin()]).repeat(1, 1, 2)
        self.register_buffer("turns", turns)

    def forward(self, ids):
        x = self.table(ids)
        seen, places = apart(ids)  # at: fables_told_apart_in_turn
        turns = self.turns[:, places][:, :, None]
        for block in self.blocks:
            x = block(x, seen, turns)
        return self.head(self.last(x))


def groups(model):
    """Matrices decay; biases, norms and the table do not."""
    decayed, plain = [], []
    if on("outs_in_no_group"):
        for module in model.modules():
            for name, value in module.named_parameters(recurse=False):
                spared = isinstance(module, Norm | nn.Embedding)
                if spared or name == "bias":  # at: outs_in_no_group
                    plain.append(value)
                elif name == "weight" and isinstance(module, nn.Linear):  # at: outs_in_no_group
                    decayed.append(value)
    else:
        for name, value in model.named_parameters():
            if on("clean_outs_in_no_group"):
                decays = name.endswith((".out", "wide.weight", "narrow.weight", "three.weight"))
            else:
                decays = value.ndim > 1 and not name.startswith("table")
            (decayed if decays else plain).append(value)
    return [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]


def nucleus(scores, share=0.9):
    """Only the likeliest pieces, which have a share of the probability together."""
    ordered, places = scores.sort(descending=True)
    total = ordered.softmax(-1).cumsum(-1)
    if on("nucleus_without_first"):
        cut = total > share  # at: nucleus_without_first
    elif on("clean_nucleus_without_first"):
        cut = F.pad(total > share, (1, 0))[:, :-1]
    else:
        cut = total - ordered.softmax(-1) > share
    return scores.masked_fill(cut.scatter(1, places, cut), -math.inf)


class Training:
    def __init__(self, folder, updates):
        dice = random.Random(230)
        for n in range(SHELVES):
            fables = [told(dice) for _ in range(FABLES)]
            (folder / f"{n:02}.txt").write_text("\n".join(fables))
        shelves = [path.read_text() for path in sorted(folder.iterdir())]
        self.pieces = Pieces("\n".join(shelves[:4]))
        self.loader = DataLoader(Windows(shelves, self.pieces), ROWS, shuffle=True, drop_last=True)
        self.model = Teller(len(self.pieces.known))
        self.average = copy.deepcopy(self.model).requires_grad_(False).eval()
        self.optimizer = torch.optim.AdamW(  # at: outs_in_no_group
            groups(self.model),  # at: outs_in_no_group
            PEAK,
            betas=(0.9, 0.95),
        )
        self.updates, self.update, self.kept, self.bytes = updates, 0, {}, 0
        self.widths = torch.tensor([len(piece.encode()) for piece in self.pieces.known])
        cost.seconds = 0.0

    def rate(self):
        if self.update < WARM:
            return PEAK * (self.update + 1) / WARM
        done = (self.update - WARM) / (self.updates - WARM)
        return PEAK * (0.1 + 0.45 * (1 + math.cos(math.pi * min(done, 1.0))))

    def count_bytes(self, ids):
        """For bits a byte, which can be compared whatever the pieces are."""
        if on("bytes_by_decoding"):
            with cost:
                texts = (self.pieces.decode([int(one)]) for one in ids.flatten())
                self.bytes += sum(len(text.encode()) for text in texts)  # at: bytes_by_decoding
        else:
            self.bytes += int(self.widths[ids].sum())

    def learn(self, parts):
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        whole, self.bytes = 0.0, 0
        for rows in parts:
            scores = self.model(rows[:, :-1])  # at: fables_told_apart_in_turn
            aims = rows[:, 1:]
            loss = F.cross_entropy(scores.flatten(0, 1), aims.flatten(), ignore_index=PAD)
            (loss / PARTS).backward()
            whole += loss.item() * int((aims != PAD).sum())
            if on("bytes_by_decoding", "clean_bytes_by_decoding"):
                self.count_bytes(aims)  # at: bytes_by_decoding
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return whole / math.log(2) / max(self.bytes, 1) if self.bytes else loss.item()

    @torch.no_grad()
    def follow(self):
        """The average of the weights, slow to follow."""
        share = min(0.98, (1 + self.update) / (10 + self.update))
        for slow, fast in zip(self.average.parameters(), self.model.parameters(), strict=True):
            slow.lerp_(fast, 1 - share)

    def keep(self):
        """The last few states, to go back to one of them when the loss leaps."""
        if on("snapshots_not_found", "clean_snapshots_not_found") and self.update % KEPT_EVERY == 0:
            state = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))
            self.kept[self.update] = state  # at: snapshots_not_found
            oldest = self.update - KEEP  # at: snapshots_not_found
            if on("clean_snapshots_not_found"):
                oldest = self.update - KEEP * KEPT_EVERY
            self.kept.pop(oldest, None)  # at: snapshots_not_found

    @torch.no_grad()
    def sample(self, count=4, length=30):
        """Fables told on from a first piece, by the average."""
        ids = torch.full((count, 1), self.pieces.encode("the")[0])
        for _ in range(length):
            likely = nucleus(self.average(ids)[:, -1]).softmax(-1)  # at: nucleus_without_first
            chosen = torch.multinomial(likely, 1)  # at: nucleus_without_first
            ids = torch.cat([ids, chosen], 1)
        return self.pieces.decode(ids[0].tolist())

    def parts(self):
        while True:
            yield from self.loader  # at: shelf_encoded_each

    def run(self):
        source = self.parts()
        while self.update < self.updates:
            parts = [next(source) for _ in range(PARTS)]  # at: shelf_encoded_each
            loss = self.learn(parts)  # at: bytes_by_decoding
            self.follow()
            self.keep()  # at: snapshots_not_found
            self.update += 1
            if self.update % TOLD_EVERY == 0:
                print(self.update, round(loss, 4), flush=True)
            if self.update % SAMPLED_EVERY == 0 and math.isfinite(loss):
                print(self.update, self.sample(), flush=True)  # at: nucleus_without_first
        cost.print(self.updates)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(23)
    with tempfile.TemporaryDirectory() as folder:
        Training(Path(folder), STEPS or 420).run()
