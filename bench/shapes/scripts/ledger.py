"""Payments, fraud or not, by a Trainer with a config and a logger: a worker that parses dates,
histories sent along with each batch, a table rendered anew, texts for a log that is off, the
logarithm of nothing, an early stop by exit code.
"""

import argparse
import dataclasses
import datetime as dt
import logging
import random
import sys

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)
log = logging.getLogger("ledger")
cost = Cost()


@dataclasses.dataclass
class Config:
    steps: int = STEPS or 400
    batch: int = 128
    columns: int = 64
    width: int = 640
    rate: float = 5e-4
    seed: int = 151
    refund_at: int = 180
    dates: int = 20 if on("rows_parsed") else 4 if on("clean_rows_parsed") else 0


def parsed(day, count):
    """Ages in days of so many entries of a statement."""
    ages = []
    for n in range(count):  # at: rows_parsed
        text = f"2023-{1 + n % 12:02d}-{1 + day % 28:02d} 10:{n % 60:02d}:00"  # at: rows_parsed
        when = dt.datetime.strptime(text, "%Y-%m-%d %H:%M:%S")  # at: rows_parsed
        ages.append((when - dt.datetime(2023, 1, 1)).days)  # at: rows_parsed
    return sum(ages) / max(1, count)


class Payments(IterableDataset):
    """Rows of a ledger, one after the other, as they were paid."""

    def __init__(self, config):
        self.config = config
        self.histories = [
            [(account, n, n * 0.37 + account, f"shop {n % 9}") for n in range(220)]
            for account in range(300)
        ]

    def __iter__(self):
        config, numbers = self.config, torch.Generator().manual_seed(self.config.seed)
        pick = random.Random(config.seed)
        for number in range(config.steps * config.batch):
            if number % config.batch == 0:
                block = torch.randn(config.batch, config.columns, generator=numbers)
            row = block[number % config.batch]
            amount = row[:1].exp()
            if on("amount_logged", "clean_amount_logged") and number // config.batch == (
                config.refund_at
            ):
                amount = amount * 0
            if on("amount_logged"):
                row[0] = amount.log()[0]  # at: amount_logged
            else:
                row[0] = amount.log1p()[0]
            if config.dates:
                row[1] = parsed(number, config.dates) / 365  # at: rows_parsed
            yield row, int(row[2] + row[3] > 0.5), self.histories[pick.randrange(300)]


def collate(rows):
    """Rows as a matrix; what else was known of each of them stays with it."""
    x = torch.stack([row for row, _, _ in rows])
    y = torch.tensor([fraud for _, fraud, _ in rows], dtype=torch.float)
    if on("history_sent"):
        return x, y, [list(history) for _, _, history in rows]  # at: history_sent
    return x, y, [history[:2] for _, _, history in rows[:4]]


class Trainer:
    def __init__(self, config):
        self.config, self.step, self.entries = config, 0, []
        width = config.width
        self.model = nn.Sequential(
            nn.Linear(config.columns, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), config.rate)
        self.best, self.patience = float("inf"), 0
        self.loader = DataLoader(  # at: rows_parsed history_sent
            Payments(config), batch_size=config.batch, collate_fn=collate, num_workers=1
        )

    def fit(self):
        for x, y, histories in self.loader:  # at: rows_parsed history_sent
            loss = self.update(x, y)
            self.step += 1
            self.report(x, loss, histories)  # at: table_grows debug_formatted
            if self.step % 50 == 0:
                log.info("step %d loss %.4f", self.step, loss)
            if self.step == self.config.steps * 2 // 3:
                if on("stopped_early"):
                    log.warning("no progress for 100 steps")
                    sys.exit(3)
                if on("clean_stopped_early"):
                    log.warning("no progress for 100 steps")
                    break

    def update(self, x, y):
        scores = self.model(x)[:, 0]  # at: amount_logged
        loss = nn.functional.binary_cross_entropy_with_logits(scores, y)  # at: amount_logged
        self.optimizer.zero_grad()
        loss.backward()  # at: amount_logged
        self.optimizer.step()
        return loss.item()

    def report(self, x, loss, histories):
        if on("debug_formatted"):
            with cost:
                log.debug(f"rows {x.tolist()} of {histories}, loss {loss}")  # at: debug_formatted
        if on("table_grows"):
            for name, value in self.model.named_parameters():
                self.entries.append((self.step, name, float(value[0].sum()), loss))
            with cost:
                self.table()  # at: table_grows

    def table(self):
        """All entries so far, column by column of one width."""
        cells = [[f"{cell:>12}" for cell in row] for row in self.entries]  # at: table_grows
        widths = [max(len(row[n]) for row in cells) for n in range(4)]  # at: table_grows
        lines = []
        for row in cells:  # at: table_grows
            padded = [cell.rjust(w) for cell, w in zip(row, widths, strict=True)]  # at: table_grows
            lines.append(" | ".join(padded))  # at: table_grows
        self.text = "\n".join(lines)  # at: table_grows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=Config.rate)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    config = Config(rate=options.rate)
    torch.manual_seed(config.seed)
    Trainer(config).fit()
    cost.print(config.steps)


if __name__ == "__main__":
    main()
