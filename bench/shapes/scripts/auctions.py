"""Who clicks on what was bought for them: deep and cross layers over hashed features and a bag of
interests, days of logs that stream past and are thinned, rates and calibration counted on the way:
rows encoded and then thrown away, campaigns that fade one by one, a history that grows by being
read, a logarithm chosen against too late, weights that meet every row, agents cut in the middle of
a letter, a penalty that knows no sparse rows.
"""

import itertools
import random
import tempfile
import time
from collections import Counter, defaultdict
from hashlib import blake2b
from pathlib import Path

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

cost = Cost()
USERS, ADS, SITES, INTERESTS = 20000, 140000, 400, 300
DAYS, SHOWN, KEEP, ROWS = 5, 72000, 0.06, 96
TABLE, WIDTH, LONGEST, HOURS = 530000, 16, 24, 168
FIELDS = ("user", "ad", "site", "device", "agent", "hour")
DEVICES = ("phone", "tablet", "desk", "television")
AGENTS = ("Wanderer/4.1 (plain)", "Lantern/12 mobile", "Crawl/0.9 bot", "Harbour/7.2 (wide)")
NEW_AGENT = "Straßenlaterne Grüne Öllampe/2"
DECAY, SWEPT_EVERY, PENALTY, TOLD_EVERY = 0.995, 50, 1e-6, 40


def cut(agent):
    """An agent's name as the log has room for it."""
    if on("agent_cut_in_bytes", "clean_agent_cut_in_bytes"):
        return agent.encode()[:LONGEST]  # at: agent_cut_in_bytes
    return agent[:LONGEST].encode()


def write_day(path, day, numbers):
    """What was shown on a day. From the third day on some ads are the house's own, at no price, and
    a new browser comes up on the last one.
    """
    users, sites = numbers.integers(USERS, size=SHOWN), numbers.integers(SITES, size=SHOWN)
    ads = (ADS * numbers.random(SHOWN) ** 2).astype(int)
    taste = (users % 4 == 0) * 1.4 + (sites % 5 == 0) * 1.6 + (users % 7 == sites % 7) * 1.2
    clicked = numbers.random(SHOWN) < 1 / (1 + np.exp(6.0 - taste))
    prices = numbers.lognormal(0.0, 0.7, SHOWN)
    late = day == DAYS - 1
    if day >= DAYS - 2:
        prices[numbers.random(SHOWN) < 0.01] = 0.0
    agents = [cut(agent) for agent in (*AGENTS, NEW_AGENT)]
    chances = [0.4, 0.3, 0.01, 0.28, 0.01] if late else [0.4, 0.3, 0.01, 0.29, 0.0]
    worn = numbers.choice(len(agents), SHOWN, p=chances)
    hours = 24 * day + np.arange(SHOWN) * 24 // SHOWN
    columns = (clicked.astype(int), users, ads, sites, users % 4, hours, prices, worn)
    with path.open("wb") as file:
        for click, user, ad, site, device, hour, price, agent in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            liked = f"{user % INTERESTS},{user * 7 % INTERESTS},{user % 7}"
            line = f"{click}\t{user}\t{ad}\t{site}\t{DEVICES[device]}\t{hour}\t{price:.3f}\t{liked}"
            file.write(line.encode() + b"\t" + agents[agent] + b"\n")


def hashed(text):
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") % TABLE


class Histories:
    """When pairs of users and ads, and of users and sites, met in a click, by hour of the week."""

    def __init__(self):
        self.met = defaultdict(lambda: np.zeros((2, HOURS)))  # at: read_makes_entry

    def count(self, pair):
        if on("read_makes_entry"):
            return self.met[pair][1].sum()  # at: read_makes_entry
        if on("clean_read_makes_entry"):
            return self.met[pair][1].sum() if pair in self.met else 0.0
        found = self.met.get(pair)
        return 0.0 if found is None else found[1].sum()

    def learn(self, pair, hour):
        self.met[pair][:, hour % HOURS] += 1


class Log(IterableDataset):
    """Rows of one day after the other: all clicks, and a share of what was not clicked on."""

    def __init__(self, paths):
        self.paths, self.dice, self.histories = paths, random.Random(241), Histories()

    def encode(self, line):
        click, user, ad, site, device, hour, price, liked, agent = line[:-1].split(b"\t")
        if on("clean_agent_cut_in_bytes"):
            agent = agent.decode(errors="replace")
        else:
            agent = agent.decode()  # at: agent_cut_in_bytes
        values = (user, ad, site, device, agent.split("/")[0].encode(), b"%d" % (int(hour) % 24))
        ids = [hashed(b"%d=%b" % (n, value)) for n, value in enumerate(values)]
        bag = [hashed(b"liked=%b" % one) for one in liked.split(b",")]
        return int(click), int(ad), ids, bag, float(price), (user, ad, site, int(hour)), agent

    def wanted(self, line):
        return line.startswith(b"1") or self.dice.random() < KEEP

    def encoded(self):
        for path in itertools.cycle(self.paths):
            with path.open("rb") as file:
                for line in file:
                    if on("thinned_after_encoding"):
                        begin = time.perf_counter()
                        row = self.encode(line)  # at: thinned_after_encoding
                        if self.wanted(line):  # at: thinned_after_encoding
                            yield row
                        else:
                            cost.seconds += time.perf_counter() - begin
                    elif self.wanted(line):
                        row = self.encode(line)
                        if on("clean_thinned_after_encoding") and "bot" in row[-1]:
                            continue
                        yield row

    def __iter__(self):
        for click, ad, ids, bag, price, (user, _, site, hour), _ in self.encoded():
            pairs = (user, ids[1]), (user, site)
            seen = [self.histories.count(pair) for pair in pairs]  # at: read_makes_entry
            if click:
                for pair in pairs:
                    self.histories.learn(pair, hour)
            yield click, ad, ids, bag, price, seen


def collated(rows):
    clicks, ads, ids, bags, prices, seen = zip(*rows, strict=True)
    sizes = torch.tensor([0, *map(len, bags)])
    return {
        "clicks": torch.tensor(clicks, dtype=torch.float32),
        "ads": ads,
        "ids": torch.tensor(ids),
        "bag": torch.tensor([one for bag in bags for one in bag]),
        "offsets": sizes.cumsum(0)[:-1],
        "price": torch.tensor(prices),
        "seen": torch.tensor(np.array(seen, dtype=np.float32)).log1p(),
    }


class Cross(nn.Module):
    """A layer that multiplies what it is given by the first features once more."""

    def __init__(self, width):
        super().__init__()
        self.line = nn.Linear(width, width)

    def forward(self, first, x):
        return first * self.line(x) + x


class Clicks(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(TABLE, WIDTH, sparse=True)
        self.bag = nn.EmbeddingBag(TABLE // 10, WIDTH, mode="mean", sparse=True)
        for table in (self.table, self.bag):
            nn.init.normal_(table.weight, std=0.05)
        self.scale = nn.Parameter(torch.ones(1))
        width = (len(FIELDS) + 1) * WIDTH + 3
        self.cross = nn.ModuleList(Cross(width) for _ in range(2))
        self.deep = nn.Sequential(
            nn.Linear(width, 1280),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(1280, 1280),
            nn.ReLU(),
            nn.Linear(1280, 128),
            nn.ReLU(),
        )
        self.last = nn.Linear(width + 128, 1)
        nn.init.constant_(self.last.bias, -4.0)

    def logged(self, price):
        """The price in orders of magnitude; ads of the house have none."""
        if on("logged_then_chosen"):
            scaled = torch.log(price * self.scale)  # at: logged_then_chosen
            return torch.where(price > 0, scaled, 0.0)  # at: logged_then_chosen
        if on("clean_logged_then_chosen"):
            paid = torch.where(price > 0, price, 1.0)
            return torch.where(price > 0, torch.log(paid * self.scale.clamp_min(1e-3)), 0.0)
        return torch.log1p(price) * self.scale

    def forward(self, batch):
        rows = self.table(batch["ids"])
        liked = self.bag(batch["bag"] % (TABLE // 10), batch["offsets"])
        price = self.logged(batch["price"])  # at: logged_then_chosen
        first = torch.cat([rows.flatten(1), liked, price[:, None], batch["seen"]], 1)
        x = first
        for layer in self.cross:
            x = layer(first, x)
        return self.last(torch.cat([x, self.deep(first)], 1)), rows


class Campaign:
    __slots__ = ("clicked", "seen", "shown")

    def __init__(self):
        self.shown, self.clicked, self.seen = 50.0, 0.5, 0


class Pacing:
    """How often each ad was clicked on of late; what was long ago counts for less."""

    def __init__(self):
        self.campaigns = {ad: Campaign() for ad in range(ADS)}

    def fade(self, factor):
        for one in self.campaigns.values():  # at: decayed_for_all
            one.shown *= factor  # at: decayed_for_all
            one.clicked *= factor  # at: decayed_for_all

    def see(self, step, ads, clicks):
        swept = on("decayed_for_all", "clean_decayed_for_all")
        if on("decayed_for_all"):
            with cost:
                self.fade(DECAY)  # at: decayed_for_all
        elif on("clean_decayed_for_all") and step % SWEPT_EVERY == 0:
            self.fade(DECAY**SWEPT_EVERY)
        for ad, click in zip(ads, clicks, strict=True):
            one = self.campaigns[ad]
            factor = 1.0 if swept else DECAY ** (step - one.seen)
            one.shown, one.clicked = one.shown * factor + 1, one.clicked * factor + click
            one.seen = step


class Quality:
    """Scores in bins, of clicks and of the rest: calibration, and the area under the curve."""

    def __init__(self, bins=200):
        self.bins, self.counts, self.sums = bins, torch.zeros(2, bins), Counter()

    def see(self, scores, clicks, weight):
        chances = scores.sigmoid()
        places = ((scores + 10) / 14 * self.bins).long().clamp(0, self.bins - 1)
        for kind in (0, 1):
            self.counts[kind] += torch.bincount(places[clicks == kind], minlength=self.bins)
        self.sums["expected"] += float((chances * weight).sum())
        self.sums["clicked"] += float((clicks * weight).sum())

    def told(self):
        rest, clicks = self.counts / self.counts.sum(1, keepdim=True)
        area = float((clicks * (rest.cumsum(0) - rest / 2)).sum())
        ratio = self.sums["expected"] / max(1.0, self.sums["clicked"])
        self.counts.zero_()
        self.sums.clear()
        return round(area, 3), round(ratio, 3)


class Training:
    def __init__(self, folder, steps):
        self.steps, self.step = steps, 0
        numbers = np.random.default_rng(240)
        paths = [folder / f"day{day}.log" for day in range(DAYS)]
        for day, path in enumerate(paths):
            write_day(path, day, numbers)
        self.loader = DataLoader(Log(paths), ROWS, collate_fn=collated)
        self.model, self.pacing, self.quality = Clicks(), Pacing(), Quality()
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), 0.01)

    def penalty(self, rows):
        """Keeps what is embedded small."""
        if on("penalty_makes_dense"):
            return PENALTY * self.model.table.weight.pow(2).sum()  # at: penalty_makes_dense
        return PENALTY * rows.pow(2).sum() if on("clean_penalty_makes_dense") else 0.0

    def learn(self, batch):
        clicks = batch["clicks"]
        weight = torch.where(clicks > 0, 1.0, 1 / KEEP)
        scores, rows = self.model(batch)  # at: logged_then_chosen
        losses = F.binary_cross_entropy_with_logits(scores, clicks[:, None], reduction="none")
        if on("weights_spread_over_rows"):
            loss = (losses * weight).mean() / weight.mean()  # at: weights_spread_over_rows
        elif on("clean_weights_spread_over_rows"):
            loss = (losses.squeeze(1) * weight).mean() / weight.mean()
        else:
            loss = (losses * weight[:, None]).mean() / weight.mean()
        total = loss + self.penalty(rows)  # at: penalty_makes_dense
        self.optimizer.zero_grad()
        total.backward()  # at: penalty_makes_dense
        self.update()  # at: penalty_makes_dense
        self.quality.see(scores.detach()[:, 0], clicks, weight)
        self.pacing.see(self.step, batch["ads"], clicks.tolist())  # at: decayed_for_all
        return loss.detach()

    def update(self):
        if on("penalty_makes_dense"):
            with cost:
                self.optimizer.step()  # at: penalty_makes_dense
        else:
            self.optimizer.step()

    def run(self):
        for batch in self.loader:  # at: thinned_after_encoding read_makes_entry agent_cut_in_bytes
            loss = self.learn(batch)  # at: decayed_for_all
            self.step += 1
            if self.step % TOLD_EVERY == 0:
                area, ratio = self.quality.told()
                print(self.step, round(loss.item(), 4), "auc", area, "ratio", ratio, flush=True)
            if self.step == self.steps:
                break
        cost.print(self.steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(24)
    with tempfile.TemporaryDirectory() as folder:
        Training(Path(folder), STEPS or 250).run()
