"""Two ranks that tune a small encoder on pairs of sayings, padded to the longest of their batch,
four micro-batches an update, and a validation now and then: an aid of one rank left on, a silence
around half of a micro-batch, messages by the labels that were seen, a rank that is read too early,
weights loaded into a model that is wrapped.
"""

import contextlib
import os
import random
import sys

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, on
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler

RANK = int(os.environ.get("RANK", "0"))  # at: rank_read_early
WORLD = 2
STEPS_ALL = STEPS or 200
PARTS, ROWS = 4, 8
TOPICS, EACH, NOT = 60, 100, 1
WORDS = 2 + TOPICS * EACH
LABELS = ("same", "other", "opposite", "unsure")
CHECKED_EVERY, TOLD_EVERY = 40, 20


class Sayings(Dataset):
    """Pairs of sayings: of the same thing, of another, or of the opposite."""

    def __init__(self, count, seed, unsure):
        dice = random.Random(seed)
        self.pairs = [self.pair(dice, dice.choice((0, 0, 1, 1, 2, 2))) for _ in range(count)]
        for place in unsure:
            self.pairs[place] = self.pair(dice, 3)

    def saying(self, dice, topic, length):
        common = [dice.randrange(2, WORDS) for _ in range(length // 3)]
        own = [2 + topic * EACH + dice.randrange(EACH) for _ in range(length - len(common))]
        words = common + own
        dice.shuffle(words)
        return words

    def pair(self, dice, label):
        length = min(36, 6 + int(dice.expovariate(1 / 8)))
        topic = dice.randrange(TOPICS)
        other = (topic + dice.randrange(1, TOPICS)) % TOPICS if label == 1 else topic
        first, second = self.saying(dice, topic, length), self.saying(dice, other, length)
        if label == 2:
            second[dice.randrange(length)] = NOT
        if label == 3:
            second[:] = [NOT] * length
        if label < 3 and dice.random() < 0.08:
            label = dice.randrange(3)
        return first, second, label

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, place):
        return self.pairs[place]


def padded(rows):
    """First sayings, then second ones, as long as the longest."""
    first, second, labels = zip(*rows, strict=True)
    texts = first + second
    longest = max(map(len, texts))
    ids = torch.zeros(len(texts), longest, dtype=torch.long)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text)
    return {"ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor(labels)}


def my_share():
    """Which of the ranks this one is, to pick its part of the data."""
    if on("rank_read_early"):
        return RANK  # at: rank_read_early
    if on("clean_rank_read_early"):
        return int(os.environ.get("RANK", "0"))
    return dist.get_rank()


class Grouped(Sampler):
    """Batches of like lengths, each of which the ranks share out among them."""

    def __init__(self, lengths, seed):
        self.lengths, self.seed, self.epoch = lengths, seed, 0
        self.share = my_share()  # at: rank_read_early

    def __len__(self):
        return len(self.lengths) // (ROWS * WORLD)

    def __iter__(self):
        dice = random.Random(self.seed + self.epoch)
        places = list(range(len(self.lengths)))
        dice.shuffle(places)
        places.sort(key=lambda place: self.lengths[place])
        size = ROWS * WORLD
        chunks = [places[start : start + size] for start in range(0, len(places), size)]
        chunks = [chunk for chunk in chunks if len(chunk) == size]
        dice.shuffle(chunks)
        for chunk in chunks:
            yield chunk[self.share :: WORLD]  # at: rank_read_early


class Encoder(nn.Module):
    def __init__(self, width=96, heads=4, layers=2):
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, 0.1, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.last = nn.LayerNorm(width)

    def forward(self, ids, mask):
        x = self.layers(self.words(ids), src_key_padding_mask=mask == 0)
        x = self.last(x) * mask[:, :, None]
        return x.sum(1) / mask.sum(1, keepdim=True)


class Judge(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.encoder = Encoder(width)
        self.scores = nn.Sequential(
            nn.Linear(4 * width, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, len(LABELS))
        )

    def forward(self, ids, mask):
        first, second = self.encoder(ids, mask).chunk(2)
        compared = [first, second, (first - second).abs(), first * second]
        return self.scores(torch.cat(compared, 1))


def pretrained(width=96):
    """An encoder's weights, which know of topics."""
    with torch.random.fork_rng():
        torch.manual_seed(185)
        state = Encoder(width).state_dict()
        topics = torch.randn(TOPICS, width).repeat_interleave(EACH, 0)
        state["words.weight"][2:] = topics + 1.0 * torch.randn(WORDS - 2, width)
    return state


def prepared(rank):
    """The model on this rank, which begins with the encoder that is there."""
    judge = Judge()
    if on("loaded_after_wrap"):
        model = DDP(judge)
        if rank == 0:
            judge.encoder.load_state_dict(pretrained())  # at: loaded_after_wrap
        return model
    if rank == 0 or not on("clean_loaded_after_wrap"):
        judge.encoder.load_state_dict(pretrained())
    return DDP(judge)


class Tuning:
    def __init__(self, rank):
        self.rank, self.step, self.epoch = rank, 0, 0
        self.model = prepared(rank)  # at: loaded_after_wrap
        self.judge = self.model.module
        self.optimizer = torch.optim.AdamW(self.judge.parameters(), 1e-3, weight_decay=0.01)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)
        given = Sayings(4800, 186, range(0, 4800, 60))
        lengths = [len(first) for first, *_ in given.pairs]
        self.sampler = Grouped(lengths, 187)  # at: rank_read_early
        drawn = {"batch_sampler": self.sampler, "collate_fn": padded}
        self.given = DataLoader(given, **drawn)  # at: rank_read_early
        held_out = Sayings(128, 188, (77,))
        mine = sorted(range(rank, 128, WORLD), key=lambda place: len(held_out[place][0]))
        mine = torch.utils.data.Subset(held_out, mine)
        self.held_out = DataLoader(mine, 16, collate_fn=padded)
        self.told = torch.zeros(3)

    def rate(self, step):
        return min((step + 1) / 15, 0.1 + 0.9 * max(0.0, 1 - step / STEPS_ALL))

    def loss_of(self, batch):
        scores = self.model(batch["ids"], batch["attention_mask"])
        loss = F.cross_entropy(scores, batch["labels"])
        known = (scores.detach().argmax(1) == batch["labels"]).sum()
        self.told += torch.stack([loss.detach(), known.float(), torch.tensor(float(len(scores)))])
        return loss / PARTS

    def quiet(self, last):
        return contextlib.nullcontext() if last else self.model.no_sync()

    def micro(self, batch, last):
        if on("no_sync_backward_only"):
            loss = self.loss_of(batch)  # at: no_sync_backward_only
            with self.quiet(last):  # at: no_sync_backward_only
                loss.backward()  # at: no_sync_backward_only
        elif on("clean_no_sync_backward_only"):
            self.model.require_backward_grad_sync = last
            self.loss_of(batch).backward()
        else:
            with self.quiet(last):
                self.loss_of(batch).backward()  # at: anomaly_on_one

    def look_for_nan(self):
        """Where a NaN comes from, on the machine that had one last week."""
        if self.rank == 1 and on("anomaly_on_one"):
            torch.autograd.set_detect_anomaly(True)  # at: anomaly_on_one
        elif self.rank == 1 and on("clean_anomaly_on_one"):
            torch.autograd.set_detect_anomaly(self.step < 2)

    def update(self):
        nn.utils.clip_grad_norm_(self.judge.parameters(), 5.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.step += 1
        if self.step % TOLD_EVERY == 0:
            dist.all_reduce(self.told)
            loss = self.told[0] / (WORLD * PARTS * TOLD_EVERY)
            if self.rank == 0:
                known = float(self.told[1] / self.told[2])
                print(self.step, round(float(loss), 4), round(known, 3), flush=True)
            self.told.zero_()

    def add_up(self, seen):
        """By label, how many pairs all ranks have had, and how many were known."""
        if on("keys_of_own_labels"):
            for label in sorted(seen):  # at: keys_of_own_labels
                dist.all_reduce(seen[label])  # at: keys_of_own_labels
            return seen
        if on("clean_keys_of_own_labels"):
            for label in range(len(LABELS)):
                dist.all_reduce(seen.setdefault(label, torch.zeros(2)))
            return seen
        table = torch.zeros(len(LABELS), 2)
        for label, counts in seen.items():
            table[label] = counts
        dist.all_reduce(table)
        return dict(enumerate(table))

    @torch.no_grad()
    def validate(self):
        self.judge.eval()
        seen = {}
        for batch in self.held_out:
            found = self.judge(batch["ids"], batch["attention_mask"]).argmax(1)
            for label, known in zip(batch["labels"].tolist(), found.tolist(), strict=True):
                counts = seen.setdefault(label, torch.zeros(2))  # at: keys_of_own_labels
                counts += torch.tensor([1.0, float(label == known)])
        self.judge.train()
        seen = self.add_up(seen)  # at: keys_of_own_labels
        if self.rank == 0:
            told = {LABELS[key]: counts.tolist() for key, counts in seen.items()}
            print(self.step, "held out", told, flush=True)

    def run(self):
        while self.step < STEPS_ALL:
            self.sampler.epoch = self.epoch
            for number, batch in enumerate(self.given, 1):  # at: rank_read_early
                last = number % PARTS == 0
                self.look_for_nan()  # at: anomaly_on_one
                self.micro(batch, last)  # at: no_sync_backward_only anomaly_on_one
                if not last:
                    continue
                self.update()
                if self.step % CHECKED_EVERY == 0:
                    self.validate()  # at: keys_of_own_labels
                if self.step == STEPS_ALL:
                    break
            self.epoch += 1


def train(rank):
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    torch.manual_seed(189)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    tuning = Tuning(rank)
    torch.manual_seed(1890 + rank)
    tuning.run()
    return tuning.model


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
