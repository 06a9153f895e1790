"""Riddles and their answers, brought together by contrast under accelerate on two ranks: wrong
riddles drawn anew each epoch, micro-batches accumulated, a plateau of the recall, states saved: a
vocabulary turned round for every text, a context of the bare model, a plateau of one's own recall,
a generator that all share, a last batch of one rank, loaders that stay prepared, sides of unlike
length in one block.
"""

import contextlib
import math
import os
import random
import sys
import tempfile

import eager  # noqa: F401
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import DataLoaderConfiguration
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

cost = Cost()
WORLD, UPDATES, PARTS, ROWS = 2, STEPS or 210, 4, 8
PAIRS, HELD, WRONG, LONGEST = 1602, 128, 48, 24
THINGS, HINTS, FILLERS, ARTICLES = 120, 9, 9500, 12
FIRST_HINT = 1 + ARTICLES + THINGS
FIRST_FILLER = FIRST_HINT + THINGS * HINTS
WORDS = FIRST_FILLER + FILLERS
RECALLED_EVERY, TOLD_EVERY, SAVED_AT = 20, 30, (25, 140)


def spelt():
    """The vocabulary: each word and its number."""
    dice, parts = random.Random(61), ("ba", "ce", "di", "fo", "gu", "har", "jen", "kil")
    words = {"": 0}
    while len(words) < WORDS:
        words.setdefault("".join(dice.choices(parts, k=5)), len(words))
    return words


def riddle(dice, thing):
    """Hints at a thing among words that tell nothing."""
    hints = range(FIRST_HINT + thing * HINTS, FIRST_HINT + (thing + 1) * HINTS)
    words = [dice.choice(hints) for _ in range(6)]
    while len(words) < 19 or (len(words) < LONGEST and dice.random() < 0.75):
        words.append(FIRST_FILLER + dice.randrange(FILLERS))
    dice.shuffle(words)
    return words + [0] * (LONGEST - len(words))


def answer(dice, thing):
    articles = [1 + dice.randrange(ARTICLES) for _ in range(dice.randint(1, 3))]
    return [*articles, 1 + ARTICLES + thing]


class Riddles(Dataset):
    """Pairs, and to each riddles about other things, drawn anew for every epoch."""

    def __init__(self, count, seed):
        dice = random.Random(seed)
        self.things = torch.tensor([dice.randrange(THINGS) for _ in range(count)])
        self.riddles = torch.tensor([riddle(dice, thing) for thing in self.things.tolist()])
        self.answers = [answer(dice, thing) for thing in self.things.tolist()]
        self.drawn(0)

    def drawn(self, epoch):
        numbers = torch.Generator().manual_seed(epoch)
        others = torch.randint(len(self.riddles), (len(self.riddles), WRONG), generator=numbers)
        others = torch.where(
            self.things[others] == self.things[:, None], (others + 1) % len(self.riddles), others
        )
        self.wrong = self.riddles[others]
        self.which = torch.randint(WRONG, (len(self.riddles),), generator=numbers).tolist()
        return self

    def again(self, epoch):
        """The same pairs with other wrong riddles, as a set of its own."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other.drawn(epoch)

    def __len__(self):
        return len(self.riddles)

    def __getitem__(self, index):
        wrong = self.wrong[index, self.which[index]].tolist()
        return self.answers[index], self.riddles[index].tolist(), wrong


def padded(texts):
    """A block of texts as long as the longest of them, rounded up to four."""
    texts = [[word for word in text if word] for text in texts]
    longest = math.ceil(max(map(len, texts)) / 4) * 4
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def collated(rows):
    """Blocks of the sides: riddles, wrong riddles, answers."""
    answers, right, wrong = map(list, zip(*rows, strict=True))
    if on("sides_in_one_block"):
        return padded(right + wrong + answers)  # at: sides_in_one_block
    if on("clean_sides_in_one_block"):
        return {**padded(right + wrong), "others": [padded(answers)]}
    return {**padded(right), "others": [padded(wrong), padded(answers)]}


class Encoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=0)
        self.places = nn.Parameter(torch.randn(LONGEST, width) * 0.1)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.tensor(math.log(12.0)))

    def encode(self, block):
        ids, mask = block["input_ids"], block["attention_mask"]
        states = self.words(ids) + self.places[: ids.shape[1]]
        states = self.layers(states, src_key_padding_mask=mask == 0)
        shown = mask[..., None].float()
        return F.normalize(self.out((states * shown).sum(1) / shown.sum(1)), dim=1)

    def forward(self, batch):
        blocks = [batch, *batch.get("others", ())]
        encoded = torch.cat([self.encode(block) for block in blocks])  # at: sides_in_one_block
        right, wrong, answers = encoded.chunk(3)
        return answers @ torch.cat([right, wrong]).T * self.scale.clamp(max=4.0).exp()


class Telling:
    """Texts as words again, the hardest ones of an update."""

    def __init__(self, vocabulary):
        self.vocabulary, self.lines = vocabulary, []
        self.turned = {number: word for word, number in vocabulary.items()}

    def text(self, numbers):
        if on("vocabulary_turned_each"):
            with cost:
                words = self.vocabulary.items()
                turned = {n: word for word, n in words}  # at: vocabulary_turned_each
        else:
            turned = self.turned
        return " ".join(turned[n] for n in numbers if n)

    def hardest(self, block, scores, count=4):
        worst = scores.diagonal().topk(count, largest=False).indices
        taken = scores[worst, : len(scores)].argmax(1).tolist()
        texts, self.lines = block["input_ids"].tolist(), []
        for row, other in zip(worst.tolist(), taken, strict=True):
            pair = [self.text(texts[n]) for n in (row, other)]  # at: vocabulary_turned_each
            self.lines.append(" / ".join(text[:50] for text in pair))


class Training:
    def __init__(self, rank, folder):
        self.folder, self.updates, self.epoch = folder, 0, 0
        even = not on("last_batch_of_one", "clean_last_batch_of_one")
        kinds = ["torch"] if on("generator_shared") else ["generator"]  # at: generator_shared
        self.accelerator = Accelerator(
            cpu=True,
            gradient_accumulation_steps=PARTS,
            dataloader_config=DataLoaderConfiguration(even_batches=even),  # at: last_batch_of_one
            rng_types=kinds,  # at: generator_shared
        )
        torch.manual_seed(62 + (0 if on("clean_generator_shared") else rank))
        self.riddles, self.held = Riddles(PAIRS, 63), Riddles(HELD, 64)
        self.encoder = Encoder()
        optimizer = torch.optim.AdamW(self.encoder.parameters(), 1e-3, weight_decay=0.01)
        self.model, self.optimizer, self.loader, self.held_loader = self.accelerator.prepare(
            self.encoder,
            optimizer,
            self.made(self.riddles),
            DataLoader(self.held, 64, collate_fn=collated),
        )
        if on("clean_generator_shared"):
            torch.manual_seed(65 + rank)
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self.optimizer.optimizer, "max", factor=0.9, patience=0, threshold=0.1, min_lr=2e-4
        )
        self.telling = Telling(spelt())

    def made(self, riddles):
        numbers = torch.Generator().manual_seed(66 + self.epoch)
        return DataLoader(  # at: last_batch_of_one
            riddles,
            ROWS,
            shuffle=True,
            drop_last=on("clean_last_batch_of_one"),
            generator=numbers,
            collate_fn=collated,
        )

    def next_epoch(self):
        """The loader with the wrong riddles of this epoch."""
        self.epoch += 1
        if on("prepared_each_epoch"):
            fresh = self.made(self.riddles.again(self.epoch))  # at: prepared_each_epoch
            self.loader = self.accelerator.prepare(fresh)  # at: prepared_each_epoch
        elif on("clean_prepared_each_epoch"):
            self.loader = prepare_data_loader(
                self.made(self.riddles.again(self.epoch)),
                num_processes=WORLD,
                process_index=self.accelerator.process_index,
                rng_types=["generator"],
            )
        else:
            self.riddles.drawn(self.epoch)
        return self.loader

    @torch.no_grad()
    def recall(self):
        """How early the held answers find their riddle in their block: one over the place."""
        self.model.eval()
        right = []
        for batch in self.held_loader:
            scores = self.model(batch)
            before = (scores > scores.diagonal()[:, None]).sum(1)
            right.append(1 / (1 + before))
        self.model.train()
        own = torch.cat(right)
        everyone = self.accelerator.gather_for_metrics(own).mean().item()
        if on("plateau_of_own_recall"):
            self.plateau.step(own.mean().item())  # at: plateau_of_own_recall
        elif on("clean_plateau_of_own_recall"):
            self.plateau.step(self.accelerator.reduce(own.mean(), "mean").item())
        else:
            self.plateau.step(everyone)
        return everyone

    def turn(self, n, last):
        """The context of a micro-batch: gradients are exchanged with the last one of an update."""
        if on("accumulated_bare"):
            return self.accelerator.accumulate(self.encoder)  # at: accumulated_bare
        if on("clean_accumulated_bare"):
            exchanged = (n + 1) % PARTS == 0 or last
            whole = contextlib.nullcontext()
            return whole if exchanged else self.accelerator.no_sync(self.model)
        return self.accelerator.accumulate(self.model)

    def learn(self, batch, n, last):
        """Whether this micro-batch ended an update."""
        with self.turn(n, last):  # at: accumulated_bare
            scores = self.model(batch)
            loss = F.cross_entropy(scores, torch.arange(len(scores)))
            self.accelerator.backward(loss)  # at: last_batch_of_one accumulated_bare
            ended = self.accelerator.sync_gradients
            if on("clean_accumulated_bare"):
                ended = (n + 1) % PARTS == 0 or last
            if ended:
                self.accelerator.clip_grad_norm_(self.model.parameters(), 5.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
        self.loss, self.scores = loss.detach(), scores.detach()
        return ended

    def tell(self, batch):
        """The hardest of the first rank's micro-batch."""
        watched = on("vocabulary_turned_each", "clean_vocabulary_turned_each")
        if self.accelerator.is_main_process and (watched or self.updates % TOLD_EVERY == 0):
            self.telling.hardest(batch, self.scores)  # at: vocabulary_turned_each

    def after(self):
        self.updates += 1
        if self.updates % TOLD_EVERY == 0:
            loss = self.accelerator.reduce(self.loss, "mean").item()
            rate = self.optimizer.param_groups[0]["lr"]
            self.accelerator.print(self.updates, round(loss, 4), rate, *self.telling.lines[:1])
        if self.updates % RECALLED_EVERY == 0:
            self.accelerator.print(self.updates, "recall", round(self.recall(), 3))
        if self.updates in SAVED_AT:
            self.accelerator.save_state(self.folder)

    def run(self):
        while self.updates < UPDATES:
            loader = self.next_epoch()  # at: prepared_each_epoch
            for n, batch in enumerate(loader):  # at: last_batch_of_one generator_shared
                ended = self.learn(batch, n, n + 1 == len(loader))
                self.tell(batch)  # at: vocabulary_turned_each
                if ended:
                    self.after()
                if self.updates == UPDATES:
                    break
        if self.accelerator.is_main_process:
            cost.print(UPDATES)


def train(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    os.environ.update(LOCAL_WORLD_SIZE=str(WORLD), OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    with tempfile.TemporaryDirectory() as folder:
        training = Training(rank, folder)
        training.run()
    return training


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
