"""From one tongue to another by a transformer written by hand: pieces of words, batches by tokens,
smoothed labels, an inverse square root, greedy decoding now and then: lines found by counting,
buckets by words, options resolved anew, a rate that compounds, a generator that is spent, contexts
that are left at the very end, references that run out.
"""

import contextlib
import copy
import itertools
import linecache
import math
import random
import tempfile
from pathlib import Path

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

cost = Cost()
PAD, BEGIN, END = 0, 1, 2
TOPICS, PLAIN, TECHNICAL, SYLLABLES = 12, 60, 1008, 84
PIECES = 3 + PLAIN + SYLLABLES
DEFAULTS = {"width": 96, "heads": 4, "depth": 1, "smoothing": 0.1, "clip": 5.0, "peak": 2e-3}
RECIPE = {"warm": 50, "tokens": 480, "decay": 0.01, "told_every": 40, "scored_every": 80}


def lexicon(dice):
    """Words and their pieces; technical ones are put together of several."""
    made = {f"w{n}": [3 + n] for n in range(PLAIN)}
    for n in range(TECHNICAL):
        size = dice.randint(3, 5)
        own = range(3 + PLAIN + n % TOPICS, PIECES, TOPICS)
        made[f"t{n}"] = [dice.choice(own) for _ in range(size)]
    return made


class Options:
    """Settings in layers: what comes later wins."""

    def __init__(self, *layers):
        self.layers = layers

    def __getattr__(self, name):
        if on("options_resolved"):
            with cost:
                resolved = {}
                for layer in self.layers:
                    resolved.update(copy.deepcopy(layer))  # at: options_resolved
                return resolved[name]
        for layer in reversed(self.layers):
            if name in layer:
                return copy.copy(layer[name]) if on("clean_options_resolved") else layer[name]
        raise AttributeError(name)


def write_corpus(path, count, dice):
    """Sentences of one tongue and their translation: the second word comes last in it."""
    with path.open("w") as file:
        for _ in range(count):
            hard, topic = dice.random() < 0.3, dice.randrange(TOPICS)
            words = [
                f"t{dice.randrange(topic, TECHNICAL, TOPICS)}"
                if hard and n != 1
                else f"w{dice.randrange(topic, PLAIN, TOPICS)}"
                for n in range(dice.randint(4, 9))
            ]
            moved = [words[0], *words[2:], words[1]]
            file.write(" ".join(words) + "\t" + " ".join(moved) + "\n")


class Corpus(Dataset):
    def __init__(self, path, pieces, dice):
        self.path, self.pieces = str(path), pieces
        self.to = [PAD, BEGIN, END, *dice.sample(range(3, PIECES), PIECES - 3)]
        self.file, self.offsets, self.sizes, place = path.open("rb"), [], [], 0
        for line in path.open("rb"):
            self.offsets.append(place)
            place += len(line)
            words = line.split(b"\t")[0].decode().split()
            self.sizes.append((len(words), sum(len(pieces[word]) for word in words)))

    def __len__(self):
        return len(self.offsets)

    def line(self, index):
        if on("read_to_line"):
            with cost, open(self.path) as file:
                return next(itertools.islice(file, index, None))  # at: read_to_line
        if on("clean_read_to_line"):
            return linecache.getline(self.path, index + 1)
        self.file.seek(self.offsets[index])
        return self.file.readline().decode()

    def __getitem__(self, index):
        left, right = self.line(index).rstrip().split("\t")  # at: read_to_line
        source = [piece for word in left.split() for piece in self.pieces[word]]
        target = [self.to[piece] for word in right.split() for piece in self.pieces[word]]
        return source, target


class ByTokens(Sampler):
    """Indices of batches that hold about as many tokens, of sentences about as long."""

    def __init__(self, sizes, tokens):
        self.sizes, self.tokens, self.dice = sizes, tokens, random.Random(191)

    def ordered(self):
        places = list(range(len(self.sizes)))
        self.dice.shuffle(places)
        if on("buckets_by_words"):
            return sorted(places, key=lambda n: self.sizes[n][0])  # at: buckets_by_words
        if on("clean_buckets_by_words"):
            pools = (places[n : n + 1000] for n in range(0, len(places), 1000))
            return [n for pool in pools for n in sorted(pool, key=lambda n: self.sizes[n][1])]
        return sorted(places, key=lambda n: self.sizes[n][1])

    def __iter__(self):
        batches, rows, longest = [], [], 0
        for place in self.ordered():  # at: buckets_by_words
            longest = max(longest, self.sizes[place][1])
            if rows and longest * (len(rows) + 1) > self.tokens:
                batches.append(rows)
                rows, longest = [], self.sizes[place][1]
            rows.append(place)
        self.dice.shuffle(batches)
        return iter(batches)


def padded(rows):
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def collated(pairs):
    sources, targets = zip(*pairs, strict=True)
    ids = padded(sources)
    return {
        "input_ids": ids,
        "attention_mask": ids != PAD,
        "decoder_input_ids": padded([[BEGIN, *row] for row in targets]),
        "labels": padded([[*row, END] for row in targets]),
    }


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def split(self, x):
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, memory, seen):
        query, key = self.split(self.query(x)), self.split(self.key(memory))
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        weights = scores.masked_fill(~seen, -1e4).softmax(-1)
        return self.out((weights @ self.split(self.value(memory))).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width, heads, crossed):
        super().__init__()
        self.own = Attention(width, heads)
        self.cross = Attention(width, heads) if crossed else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if crossed else 2))
        self.wide = nn.Sequential(
            nn.Linear(width, 3 * width), nn.ReLU(), nn.Linear(3 * width, width)
        )

    def forward(self, x, seen, memory=None, known=None):
        y = self.norms[0](x)
        x = x + self.own(y, y, seen)
        if self.cross is not None:
            x = x + self.cross(self.norms[2](x), memory, known)
        return x + self.wide(self.norms[1](x))


def waves(length, width):
    place = torch.arange(length)[:, None]
    turns = torch.exp(-math.log(1e4) * torch.arange(0, width, 2) / width)
    return torch.cat([torch.sin(place * turns), torch.cos(place * turns)], 1)


class Translator(nn.Module):
    def __init__(self, options):
        super().__init__()
        width, heads = options.width, options.heads
        self.scale = math.sqrt(width)
        self.left, self.right = nn.Embedding(PIECES, width), nn.Embedding(PIECES, width)
        for table in (self.left, self.right):
            nn.init.normal_(table.weight, std=width**-0.5)
        self.register_buffer("places", waves(96, width))
        self.encoder = nn.ModuleList(Layer(width, heads, False) for _ in range(options.depth))
        self.decoder = nn.ModuleList(Layer(width, heads, True) for _ in range(options.depth))
        self.last, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def encode(self, ids, known):
        x = self.left(ids) * self.scale + self.places[: ids.shape[1]]
        for layer in self.encoder:
            x = layer(x, known)
        return self.norm(x)

    def decode(self, ids, memory, known):
        x = self.right(ids) * self.scale + self.places[: ids.shape[1]]
        before = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        for layer in self.decoder:
            x = layer(x, before, memory, known)
        return self.last(x) @ self.right.weight.T

    def forward(self, batch):
        known = batch["attention_mask"][:, None, None]
        memory = self.encode(batch["input_ids"], known)
        return self.decode(batch["decoder_input_ids"], memory, known)

    @torch.no_grad()
    def greedy(self, batch, limit=40):
        known = batch["attention_mask"][:, None, None]
        memory = self.encode(batch["input_ids"], known)
        ids = torch.full((len(memory), 1), BEGIN)
        ended = torch.zeros(len(memory), dtype=torch.bool)
        for _ in range(limit):
            best = self.decode(ids, memory, known)[:, -1].argmax(1)
            ids = torch.cat([ids, best.masked_fill(ended, PAD)[:, None]], 1)
            ended |= best == END
            if ended.all():
                break
        return ids[:, 1:]


def grouped(model, decay):
    """Matrices decay, biases and norms do not."""
    if on("named_spent"):
        named = model.named_parameters()  # at: named_spent
        slim = [value for _, value in named if value.ndim < 2]  # at: named_spent
        wide = [value for _, value in named if value.ndim > 1]  # at: named_spent
    elif on("clean_named_spent"):
        slim = [value for _, value in model.named_parameters() if value.ndim < 2]
        wide = [value for _, value in model.named_parameters() if value.ndim > 1]
    else:
        values = list(model.parameters())
        slim = [value for value in values if value.ndim < 2]
        wide = [value for value in values if value.ndim > 1]
    return [{"params": wide, "weight_decay": decay}, {"params": slim, "weight_decay": 0.0}]


class InverseRoot:
    """Up in a line, then down with the root of the steps."""

    def __init__(self, optimizer, peak, warm):
        self.optimizer, self.peak, self.warm, self.count = optimizer, peak, warm, 0
        self.step()

    def step(self):
        self.count += 1
        for group in self.optimizer.param_groups:
            if self.count <= self.warm:
                group["lr"] = self.peak * self.count / self.warm
            elif on("rate_compounds"):
                group["lr"] *= (self.warm / self.count) ** 0.5  # at: rate_compounds
            elif on("clean_rate_compounds"):
                group["lr"] *= ((self.count - 1) / self.count) ** 0.5
            else:
                group["lr"] = self.peak * (self.warm / self.count) ** 0.5


class Watch:
    """How many pieces of a batch were right; told when it is left."""

    def __init__(self, tally, scores, labels):
        self.tally, self.scores, self.labels = tally, scores.detach(), labels

    def __enter__(self):
        return self

    def __exit__(self, *_):
        right = self.scores.argmax(-1) == self.labels
        self.tally.append(int(right.sum()) / int((self.labels != PAD).sum()))


class Held:
    """Sentences to translate now and then, some at a time."""

    def __init__(self, pairs, size=10):
        self.pairs, self.size = pairs, size

    def portions(self):
        if on("references_run_out"):
            pairs = iter(self.pairs)
        elif on("clean_references_run_out"):
            pairs = itertools.cycle(self.pairs)
        else:
            while True:
                yield self.pairs[: self.size]
        while True:
            yield [next(pairs) for _ in range(self.size)]  # at: references_run_out


def overlap(guess, truth):
    """Share of the pieces, and of their pairs, that are where they should be in a translation."""
    guess = guess[: guess.index(END)] if END in guess else guess
    found = []
    for size in (1, 2):
        have = {tuple(guess[n : n + size]) for n in range(len(guess) - size + 1)}
        want = {tuple(truth[n : n + size]) for n in range(len(truth) - size + 1)}
        found.append(len(have & want) / max(len(have), len(want)))
    return sum(found) / 2


class Training:
    def __init__(self, folder, steps):
        dice = random.Random(190)
        pieces = lexicon(dice)
        self.options = Options(DEFAULTS, RECIPE, {"pieces": pieces})
        self.steps, self.step = steps, 0
        for name, count in (("train", 3600), ("held", 26)):
            write_corpus(folder / f"{name}.tsv", count, dice)
        corpus = Corpus(folder / "train.tsv", pieces, random.Random(1))
        held = Corpus(folder / "held.tsv", pieces, random.Random(1))
        self.held = Held([held[n] for n in range(len(held))]).portions()
        sampler = ByTokens(corpus.sizes, self.options.tokens)
        self.loader = DataLoader(corpus, batch_sampler=sampler, collate_fn=collated)
        self.model = Translator(self.options)
        self.optimizer = torch.optim.Adam(  # at: named_spent
            grouped(self.model, self.options.decay),  # at: named_spent
            self.options.peak,
            betas=(0.9, 0.98),
        )
        self.schedule = InverseRoot(self.optimizer, self.options.peak, self.options.warm)
        self.smoothing, self.tally = self.options.smoothing, []
        cost.seconds = 0.0

    def learn(self, batch, stack):
        scores = self.model(batch)
        if on("contexts_pile_up", "clean_contexts_pile_up"):
            watch = Watch(self.tally, scores, batch["labels"])  # at: contexts_pile_up
            stack.enter_context(watch)  # at: contexts_pile_up
        loss = F.cross_entropy(
            scores.flatten(0, 1),
            batch["labels"].flatten(),
            ignore_index=PAD,
            label_smoothing=self.smoothing,
        )
        self.optimizer.zero_grad()
        loss.backward()
        clip = self.options.clip  # at: options_resolved
        nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.optimizer.step()  # at: named_spent
        self.schedule.step()  # at: rate_compounds
        return loss.detach()

    def score(self):
        self.model.eval()
        pairs = next(self.held)  # at: references_run_out
        guesses = self.model.greedy(collated(pairs)).tolist()
        self.model.train()
        found = [overlap(guess, truth) for guess, (_, truth) in zip(guesses, pairs, strict=True)]
        print(self.step, "score", round(sum(found) / len(found), 3), flush=True)

    def after(self, loss):
        self.step += 1
        if self.step % self.options.told_every == 0:  # at: options_resolved
            print(self.step, round(loss.item(), 4), flush=True)
        if self.step % self.options.scored_every == 0:  # at: options_resolved
            self.score()  # at: references_run_out

    def batches(self):
        while True:
            yield from self.loader  # at: read_to_line buckets_by_words

    def run(self):
        with contextlib.ExitStack() as whole:  # at: contexts_pile_up
            for batch in self.batches():  # at: read_to_line buckets_by_words
                with contextlib.ExitStack() as own:
                    stack = whole if on("contexts_pile_up") else own  # at: contexts_pile_up
                    loss = self.learn(batch, stack)  # at: options_resolved contexts_pile_up
                self.after(loss)  # at: options_resolved references_run_out
                if self.step == self.steps:
                    break
        cost.print(self.steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(19)
    with tempfile.TemporaryDirectory() as folder:
        Training(Path(folder), STEPS or 360).run()
