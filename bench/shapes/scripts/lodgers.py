"""Low-rank lodgers in the linear layers of a language model that stays as it is, fine-tuned on
chats: rows packed from a stream, noise on the embeddings, a loss on the answers alone, callbacks,
a talk held with a cache of keys now and then: a pool that is cut by slices, rows that count alike,
lodgers that begin at nothing, a mask made place by place, a state that is written whole.
"""

import dataclasses
import itertools
import json
import math
import random
import tempfile
from pathlib import Path

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

cost = Cost()
BEGIN, USER, BOT, END = range(4)
TOPICS, PER_TOPIC, COMMON = 16, 18, 30
WORDS = 4 + COMMON + TOPICS * PER_TOPIC
LENGTH, ROWS, PLACES = 128, 6, 384
WIDTH, HEADS, LAYERS, RANK = 96, 4, 2, 8
LETTER_EVERY, TALKED_EVERY, TOLD_EVERY = 1500, 25, 25


def word(topic, number):
    return 4 + COMMON + topic * PER_TOPIC + number % PER_TOPIC


def question(dice, topic, size):
    return [
        4 + dice.randrange(COMMON) if dice.random() < 0.4 else word(topic, dice.randrange(99))
        for _ in range(size)
    ]


def chat(dice):
    """What was said, and whether the model is to learn to say it."""
    topic, asked = dice.randrange(TOPICS), dice.randrange(PER_TOPIC)
    size = 2 * LENGTH + 20 if dice.randrange(LETTER_EVERY) == 0 else dice.randint(4, 9)
    told = [BEGIN, USER, word(topic, asked), *question(dice, topic, size), BOT]
    answer = [word(topic, asked * 5 + 3 * n) for n in range(dice.randint(4, 9))] + [END]
    return told + answer, [False] * len(told) + [True] * len(answer)


class Packed(IterableDataset):
    """Rows of one length, cut from chats that are put one behind the other."""

    def __init__(self, seed):
        self.seed = seed

    def stream(self):
        dice = random.Random(self.seed)
        while True:
            yield chat(dice)

    @staticmethod
    def row(ids, places, learned):
        return {
            "input_ids": torch.tensor(ids),
            "places": torch.tensor(places),
            "learned": torch.tensor(learned),
        }

    def __iter__(self):
        hold = LENGTH * (2560 if on("pool_cut_by_slices") else 4)
        pools = ids, places, learned = [], [], []
        chats = self.stream()
        while True:
            while len(ids) < hold:
                said, own = next(chats)
                ids += said
                places += range(len(said))
                learned += own
            if on("pool_cut_by_slices", "clean_pool_cut_by_slices"):
                row = self.row(*(pool[:LENGTH] for pool in pools))
                with cost:
                    pools = [pool[LENGTH:] for pool in pools]  # at: pool_cut_by_slices
                    ids, places, learned = pools
                yield row
                continue
            used = len(ids) - len(ids) % LENGTH
            for n in range(0, used, LENGTH):
                yield self.row(*(pool[n : n + LENGTH] for pool in pools))
            for pool in pools:
                del pool[:used]


class Lodger(nn.Module):
    """A frozen layer, and beside it a way through a few dimensions that learns."""

    def __init__(self, base, rank=RANK, alpha=16.0, drop=0.05):
        super().__init__()
        self.base, self.scale, self.drop = base, alpha / rank, nn.Dropout(drop)
        self.down = nn.Parameter(torch.empty(rank, base.in_features))
        self.up = nn.Parameter(torch.empty(base.out_features, rank))
        self.reset()

    def reset(self):
        """The layer begins as its base."""
        if on("both_begin_at_zero"):
            for part in (self.down, self.up):
                nn.init.zeros_(part)  # at: both_begin_at_zero
        elif on("clean_both_begin_at_zero"):
            nn.init.zeros_(self.down)
            nn.init.normal_(self.up, std=RANK**-0.5)
        else:
            nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
            nn.init.zeros_(self.up)

    def forward(self, x):
        own = self.drop(x) @ self.down.T @ self.up.T  # at: both_begin_at_zero
        return self.base(x) + self.scale * own


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.slim = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x, mask, cache=None):
        y = self.before(x)
        query, key, value = (
            part(y).unflatten(2, (HEADS, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        if cache is not None:
            if self in cache:
                key, value = (
                    torch.cat([cache[self][0], key], 2),
                    torch.cat([cache[self][1], value], 2),
                )
            cache[self] = key, value
        y = F.scaled_dot_product_attention(query, key, value, mask)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.slim(F.gelu(self.wide(self.between(x))))


class Talker(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.passed = 0

    def noised(self, x, strength=4.0):
        """Uniform noise on the embeddings, which keeps answers from being learned by heart."""
        if on("noise_seeded"):
            torch.manual_seed(71)  # at: noise_seeded
        elif on("clean_noise_seeded"):
            torch.manual_seed(71_000 + self.passed)
        self.passed += 1
        noise = torch.rand_like(x) * 2 - 1  # at: noise_seeded
        return x + noise * strength / math.sqrt(x.shape[1] * x.shape[2])

    def seen(self, places):
        """Each place sees those before it in its own chat."""
        rows, length = places.shape
        here = torch.arange(length)
        if on("mask_place_by_place"):
            with cost:
                mask = torch.zeros(rows, length, length, dtype=torch.bool)
                for row, n in itertools.product(range(rows), range(length)):
                    first = (n - places[row, n]).clamp(min=0)  # at: mask_place_by_place
                    mask[row, n, first : n + 1] = True  # at: mask_place_by_place
            return mask[:, None]
        if on("clean_mask_place_by_place"):
            mask = torch.zeros(rows, length, length, dtype=torch.bool)
            for row in range(rows):
                mask[row] = (here >= (here - places[row])[:, None]) & (here <= here[:, None])
            return mask[:, None]
        first = (here - places)[:, :, None]
        return ((here >= first) & (here <= here[:, None]))[:, None]

    def forward(self, ids, places, cache=None):
        x = self.words(ids) * 4 + self.places(places)  # at: talk_outgrows_places
        if self.training:
            x = self.noised(x)  # at: noise_seeded
        mask = None
        if ids.shape[1] > 1:
            mask = self.seen(places)  # at: mask_place_by_place
        for block in self.blocks:
            x = block(x, mask, cache)
        return self.head(self.norm(x))

    @torch.no_grad()
    def answer(self, said, limit=24):
        """Word by word; keys and values of what was said are kept."""
        ids, cache, found = torch.tensor([said]), {}, []
        places = torch.arange(len(said))[None]
        while len(found) < limit:
            best = self(ids, places, cache)[0, -1].argmax()  # at: talk_outgrows_places
            found.append(int(best))
            if found[-1] == END:
                break
            ids, places = best[None, None], places[:, -1:] + 1
        return found


def lodged(model):
    """The model with lodgers in its blocks; besides them only the head learns."""
    model.requires_grad_(False)
    for block in model.blocks:
        for name, part in list(block.named_children()):
            if isinstance(part, nn.Linear):
                setattr(block, name, Lodger(part))
    model.head.requires_grad_(True)
    return model


def answers_loss(scores, batch):
    """How well the words of the answers are told by those before them."""
    wanted = batch["learned"][:, 1:] & (batch["places"][:, 1:] > 0)
    losses = F.cross_entropy(
        scores[:, :-1].flatten(0, 1), batch["input_ids"][:, 1:].flatten(), reduction="none"
    ).view_as(wanted)
    losses = losses * wanted
    if on("rows_count_alike"):
        return (losses.sum(1) / wanted.sum(1)).mean()  # at: rows_count_alike
    if on("clean_rows_count_alike"):
        return (losses.sum(1) / wanted.sum(1).clamp(min=1)).mean()
    return losses.sum() / wanted.sum().clamp(min=1)


@dataclasses.dataclass
class State:
    step: int = 0
    best: float = math.inf
    history: list = dataclasses.field(default_factory=list)


class Callback:
    def step_ends(self, trainer, loss):
        pass


class Teller(Callback):
    def step_ends(self, trainer, loss):
        if trainer.state.step % TOLD_EVERY == 0:
            trainer.state.best = min(trainer.state.best, loss.item())
            print(trainer.state.step, round(loss.item(), 4), flush=True)


class Keeper(Callback):
    """Loss, rate and the sizes of all lodgers, in a file that can be looked at meanwhile."""

    def __init__(self, folder):
        self.folder = folder
        self.every = 1 if on("state_written_whole", "clean_state_written_whole") else TOLD_EVERY

    def step_ends(self, trainer, loss):
        state = trainer.state
        if state.step % self.every:
            return
        named = [(name, value) for name, value in trainer.model.named_parameters() if "up" in name]
        sizes = torch.stack(torch._foreach_norm([value.detach() for _, value in named])).tolist()
        entry = {"step": state.step, "loss": loss.item(), "rate": trainer.schedule.get_last_lr()[0]}
        entry["sizes"] = {name: size for (name, _), size in zip(named, sizes, strict=True)}
        state.history.append(entry)
        if on("state_written_whole"):
            with cost:
                text = json.dumps(dataclasses.asdict(state), indent=2)  # at: state_written_whole
                (self.folder / "state.json").write_text(text)  # at: state_written_whole
        else:
            with (self.folder / "history.jsonl").open("a") as file:
                file.write(json.dumps(entry) + "\n")


class Guest(Callback):
    """Talks with the model now and then."""

    def __init__(self):
        self.dice, self.talk = random.Random(72), []

    def step_ends(self, trainer, loss):
        if trainer.state.step % TALKED_EVERY:
            return
        topic = self.dice.randrange(TOPICS)
        asked = [BEGIN, USER, *question(self.dice, topic, 36), BOT]
        if on("talk_outgrows_places", "clean_talk_outgrows_places"):
            asked = self.talk + asked
        if on("clean_talk_outgrows_places"):
            asked = asked[-PLACES // 2 :]
        trainer.model.eval()
        answer = trainer.model.answer(asked)  # at: talk_outgrows_places
        trainer.model.train()
        self.talk = asked + answer  # at: talk_outgrows_places
        right = sum(one >= word(topic, 0) for one in answer) / len(answer)
        print(trainer.state.step, "talk", len(asked), len(answer), round(right, 2), flush=True)


class Trainer:
    def __init__(self, model, data, callbacks, steps):
        self.model, self.callbacks, self.steps, self.state = model, callbacks, steps, State()
        self.loader = DataLoader(data, ROWS)
        learning = [value for value in model.parameters() if value.requires_grad]
        self.optimizer = torch.optim.AdamW(learning, 3e-3, weight_decay=0.01)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)

    def rate(self, step):
        return min((step + 1) / 20, 0.1 + 0.9 * (1 - step / (self.steps + 1)))

    def learn(self, batch):
        scores = self.model(batch["input_ids"], batch["places"])  # at: mask_place_by_place
        loss = answers_loss(scores, batch)  # at: rows_count_alike
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    def run(self):
        for batch in self.loader:  # at: pool_cut_by_slices
            loss = self.learn(batch)
            self.state.step += 1
            for callback in self.callbacks:
                callback.step_ends(self, loss)  # at: state_written_whole talk_outgrows_places
            if self.state.step == self.steps:
                break
        cost.print(self.steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(70)
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [Teller(), Keeper(Path(folder)), Guest()]
        Trainer(lodged(Talker()), Packed(82), callbacks, STEPS or 300).run()
