"""What claims of an insurer will cost, told from their figures and from what was written down of
them: words as a bag, a gamma deviance, two micro-batches an update, AdamW that warms up and decays,
evaluations, checkpoints, an early stop: patterns that are more than a cache holds, a book kept in
decimals, rows that hold their batch, a claim that cost nothing, a return before the end, a rule
without a name, pairs told one by one.
"""

import copy
import functools
import itertools
import random
import re
import tempfile
from decimal import Decimal
from pathlib import Path

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.utils.data import DataLoader, Dataset

cost = Cost()
PARTS, ROWS, WORDS, SHORT, FIGURES, BRANDS = 2, 48, 4096, 1500, 12, 30
CENT = Decimal("0.01")
EVALUATED_EVERY, SAVED_EVERY, TOLD_EVERY, PATIENCE, BETTER = 30, 100, 25, 40, 0.02


def abbreviations():
    """What adjusters write in short, and what it means."""
    return {f"q{n}x": f"v{n * 2}" for n in range(SHORT)}


def written_down(dice, count, weights):
    """Claims: figures, a brand, a text, what was paid."""
    claims = []
    for n in range(count):
        figures = [dice.gauss(0, 1) for _ in range(FIGURES)]
        brand = dice.randrange(BRANDS)
        words = [f"v{dice.randrange(WORDS)}" for _ in range(dice.randint(6, 14))]
        words += [f"q{dice.randrange(SHORT)}x." for _ in range(3)]
        dice.shuffle(words)
        size = sum(w * x for w, x in zip(weights, figures, strict=True)) + 0.05 * brand
        paid = 2.718 ** (0.4 * size + dice.gauss(0, 0.3))
        closed = n % 97 == 5 and on("nothing_paid_logged", "clean_nothing_paid_logged")
        claims.append((figures, brand, " ".join(words), 0.0 if closed else paid))
    return claims


class Claims(Dataset):
    def __init__(self, claims):
        self.claims, self.meaning = claims, abbreviations()
        self.patterns = {short: re.compile(rf"\b{short}\.") for short in self.meaning}

    def __len__(self):
        return len(self.claims)

    def in_full(self, text):
        """A text without abbreviations."""
        for short in re.findall(r"\b(q\d+x)\.", text):
            if on("patterns_outgrow_cache"):
                with cost:
                    text = re.sub(
                        rf"\b{short}\.", self.meaning[short], text
                    )  # at: patterns_outgrow_cache
            else:
                text = self.patterns[short].sub(self.meaning[short], text)
        return text

    def __getitem__(self, index):
        figures, brand, text, paid = self.claims[index]
        words = [int(word[1:]) for word in self.in_full(text).split()]  # at: patterns_outgrow_cache
        return figures, brand, words, paid


def collated(rows):
    figures, brands, texts, paid = zip(*rows, strict=True)
    bag = torch.zeros(len(rows), WORDS)
    for row, words in zip(bag, texts, strict=True):
        row[words] = 1.0
    return torch.tensor(figures), torch.tensor(brands), bag, torch.tensor(paid)


class Severity(nn.Module):
    """The logarithm of what a claim is expected to cost."""

    def __init__(self):
        super().__init__()
        self.brands = nn.Embedding(BRANDS, 16)
        self.text = nn.Sequential(nn.Linear(WORDS, 160), nn.ReLU(), nn.Dropout(0.2))
        self.body = nn.Sequential(
            nn.Linear(FIGURES + 16 + 160, 256),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(256, 128),
            nn.ReLU(),
            nn.Linear(128, 1),
        )

    def forward(self, figures, brands, bag):
        seen = torch.cat([figures, self.brands(brands), self.text(bag)], 1)
        return self.body(seen).squeeze(1)


def deviance(told, paid):
    """Of Tweedie's kind with a power of one: a claim that cost nothing is allowed."""
    if on("nothing_paid_logged"):
        saturated = paid * paid.log()  # at: nothing_paid_logged
    else:
        saturated = torch.xlogy(paid, paid)
    return 2 * (saturated - paid * told - paid + told.exp())


def warmed(step, warm, whole):
    return min(1.0, (step + 1) / warm) * max(0.05, 1 - step / whole)


class Book:
    """The reserves of the latest claims, to the cent."""

    def __init__(self, size=3000):
        self.size, self.reserves, self.total = size, [1.0] * size, Decimal(size)

    def enter(self, reserves):
        if on("premium_in_decimals"):
            with cost:
                self.reserves = (self.reserves + reserves)[-self.size :]
                cents = (
                    Decimal(str(x)).quantize(CENT) for x in self.reserves
                )  # at: premium_in_decimals
                self.total = sum(cents)  # at: premium_in_decimals
        elif on("clean_premium_in_decimals"):
            self.total += sum(Decimal(str(x)).quantize(CENT) for x in reserves)
        else:
            self.total = sum(reserves)


def concordance(told, paid):
    """The share of pairs in the right order, each by how far its claims are apart."""
    if on("concordance_by_pairs"):
        with cost:
            right = known = 0
            pairs = zip(told.tolist(), paid.tolist(), strict=True)
            for (a, x), (b, y) in itertools.combinations(pairs, 2):  # at: concordance_by_pairs
                if x != y:
                    known += abs(x - y)
                    right += abs(x - y) * ((a < b) == (x < y))  # at: concordance_by_pairs
            return right / known
    first = told[:, None] < told
    gaps = (paid - paid[:, None]).clamp(min=0)
    return (first * gaps).sum().item() / gaps.sum().item()


class Training:
    def __init__(self, folder, updates):
        dice = random.Random(220)
        weights = [dice.gauss(0, 0.5) for _ in range(FIGURES)]
        self.folder, self.updates, self.done = folder, updates, 0
        self.loader = DataLoader(
            Claims(written_down(dice, 4800, weights)),
            ROWS,
            shuffle=True,
            drop_last=True,
            collate_fn=collated,
        )
        held = Claims(written_down(dice, 1300, weights))
        self.held = collated([held[n] for n in range(len(held))])
        cost.seconds = 0.0
        self.model, self.book = Severity(), Book()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3, weight_decay=0.01)
        self.rule = functools.partial(warmed, warm=20, whole=2 * updates)
        if on("lambda_in_checkpoint"):
            self.rule = lambda step: warmed(step, 20, 2 * updates)  # at: lambda_in_checkpoint
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rule)
        self.best, self.kept, self.waited, self.worst = float("inf"), None, 0, []

    def learn(self, batches):
        for figures, brands, bag, paid in batches:
            told = self.model(figures, brands, bag)
            each = deviance(told, paid)
            (each.mean() / PARTS).backward()
            self.look(each.detach(), bag)  # at: worst_rows_are_views
            self.book.enter(told.detach().exp().tolist())  # at: premium_in_decimals
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()  # at: back_before_train
        self.schedule.step()
        self.optimizer.zero_grad()
        return each.detach().mean()  # at: nothing_paid_logged

    def look(self, each, bag):
        """The claim of a batch that was told worst, for whoever reads the report."""
        row = each.argmax()
        if on("worst_rows_are_views"):
            self.worst.append((float(each[row]), bag[row]))  # at: worst_rows_are_views
        elif on("clean_worst_rows_are_views"):
            self.worst.append((float(each[row]), bag[row].clone()))

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        *seen, paid = self.held
        told = self.model(*seen)
        score = float((told.exp() - paid).abs().mean())
        order = concordance(told, paid)  # at: concordance_by_pairs
        print(self.done, "off by", round(score, 3), "in order", round(order, 3), flush=True)
        if score > self.best * (1 - BETTER):
            self.waited += 1
            if on("back_before_train"):
                return self.waited > PATIENCE  # at: back_before_train
            self.model.train()
            return self.waited > PATIENCE
        self.best, self.waited = score, 0
        self.kept = copy.deepcopy(self.model.state_dict())
        self.model.train()  # at: back_before_train
        return False

    def save(self):
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "done": self.done,
        }
        if on("lambda_in_checkpoint", "clean_lambda_in_checkpoint"):
            state["rule"] = self.rule  # at: lambda_in_checkpoint
        torch.save(state, self.folder / "last.pt")  # at: lambda_in_checkpoint

    def batches(self):
        while True:
            yield from self.loader  # at: patterns_outgrow_cache

    def run(self):
        batches = self.batches()
        while self.done < self.updates:
            parts = itertools.islice(batches, PARTS)
            loss = self.learn(parts)  # at: patterns_outgrow_cache
            self.done += 1
            if self.done % TOLD_EVERY == 0:
                print(self.done, round(loss.item(), 4), self.book.total, flush=True)
            if self.done % EVALUATED_EVERY == 0 and self.evaluate():  # at: concordance_by_pairs
                break
            if self.done % SAVED_EVERY == 0:
                self.save()  # at: lambda_in_checkpoint
        cost.print(self.done)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(22)
    with tempfile.TemporaryDirectory() as folder:
        Training(Path(folder), STEPS or 480).run()
