"""The next song of a listening session: large sparse tables of songs and artists, a bag of tags for
each song, a GRU over the session, negatives shared by a batch and corrected for how often they are
drawn, a second head for how much of a song is heard, one optimizer for the tables and one for the
rest, an AUC of the training: negatives drawn by their odds from the whole catalogue, a table
renormed whole, scores that wait for the end of the epoch, a tag that all songs have, songs
without a tag, a bag that is no table, shares in a column.
"""

import tempfile
from pathlib import Path

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

cost = Cost()
SONGS, ARTISTS, TAGS, MOODS = 100_000, 6_000, 900, 60
SESSIONS, HELD, SHORTEST, LONGEST, ROWS = 24_000, 256, 8, 22, 64
OWN_NEGATIVES, ASKED, WIDTH, STATE, LIMIT = 5, 64, 48, 184, 2.5
TOLD_EVERY, JUDGED_EVERY, SAVED_EVERY, RENORMED_EVERY = 25, 70, 100, 50
PLAIN = (310, 2_222, 7_001, 13_337)


class Catalogue:
    """Songs, each by an artist and with tags of a mood; tag 0, "music", is on all that have any."""

    def __init__(self, seed):
        numbers = np.random.default_rng(seed)
        self.mood = numbers.integers(MOODS, size=SONGS)
        per_mood = ARTISTS // MOODS
        self.artist = torch.from_numpy(
            self.mood * per_mood + numbers.integers(per_mood, size=SONGS)
        )
        odds = 1 / (numbers.permutation(SONGS) + 40.0) ** 0.9
        self.odds = odds / odds.sum()
        self.until = self.odds.cumsum()
        if on("clean_negatives_by_choice"):
            self.pool = numbers.choice(SONGS, 1_000_000, p=self.odds)
        self.log_odds = torch.from_numpy(np.log(self.odds)).float()
        self.by_mood = [np.flatnonzero(self.mood == mood) for mood in range(MOODS)]
        self.until_by_mood = [self.odds[songs].cumsum() for songs in self.by_mood]
        self.tags = self.tagged(numbers)
        self.sizes = torch.tensor([len(tags) for tags in self.tags])
        self.weights, self.totals = self.weighed()

    def tagged(self, numbers):
        """Tags of each song; a few have none, and a few only the one that says nothing."""
        sizes = numbers.integers(1, 5, size=SONGS)
        drawn = 1 + (self.mood[:, None] * 15 + numbers.integers(15, size=(SONGS, 4))) % (TAGS - 1)
        none = set(numbers.choice(SONGS, 10, replace=False).tolist()) - set(PLAIN)
        tags = []
        for song, (own, size) in enumerate(zip(drawn.tolist(), sizes.tolist(), strict=True)):
            own = [] if song in none else [0] if song in PLAIN else [0, *own[:size]]
            if on("array_of_no_tags"):
                tags.append(np.array(own))  # at: array_of_no_tags
            elif on("clean_array_of_no_tags"):
                tags.append(np.array(own).astype(np.int64))
            else:
                tags.append(np.array(own, np.int64))
        return tags

    def weighed(self):
        """The inverse frequency of each tag, and the sum of them for each song."""
        flat = torch.from_numpy(np.concatenate(self.tags).astype(np.int64))
        tagged = (self.sizes > 0).sum()
        count = flat.bincount(minlength=TAGS)
        if on("idf_of_common_tag"):
            weights = (tagged / count.clamp(min=1)).log()  # at: idf_of_common_tag
        elif on("clean_idf_of_common_tag"):
            weights = (tagged / count.clamp(min=1)).log().clamp(min=0.05)
        else:
            weights = ((1 + tagged) / (1 + count)).log() + 1
        owner = torch.arange(SONGS).repeat_interleave(self.sizes)
        return weights, torch.zeros(SONGS).index_add_(0, owner, weights[flat])

    def bagged(self, songs):
        """The tags of these songs, one behind the other, where each begins, and their weights."""
        flat = np.concatenate([self.tags[song] for song in songs.tolist()])  # at: array_of_no_tags
        flat = torch.from_numpy(flat)
        sizes, totals = self.sizes[songs], self.totals[songs]
        share = self.weights[flat.long()] / totals.repeat_interleave(sizes)  # at: idf_of_common_tag
        return flat, sizes.cumsum(0) - sizes, share

    def drawn(self, numbers, count):
        """Songs as often as they are heard."""
        if on("negatives_by_choice"):
            with cost:
                return numbers.choice(SONGS, count, p=self.odds)  # at: negatives_by_choice
        if on("clean_negatives_by_choice"):
            return numbers.choice(self.pool, count)
        return self.until.searchsorted(numbers.random(count) * self.until[-1])


class Sessions(Dataset):
    """Songs of a session, mostly of one mood, and how much of each was heard."""

    def __init__(self, catalogue, count, seed):
        numbers = np.random.default_rng(seed)
        self.catalogue, self.numbers = catalogue, np.random.default_rng(seed + 1)
        self.lengths = numbers.integers(SHORTEST, LONGEST + 1, count)
        self.songs, self.shares = [], []
        for length in self.lengths:
            mood = numbers.integers(MOODS)
            until = catalogue.until_by_mood[mood]
            place = until.searchsorted(numbers.random(length) * until[-1])
            songs = catalogue.by_mood[mood][place]
            strayed = numbers.random(length) < 0.1
            songs[strayed] = numbers.integers(SONGS, size=strayed.sum())
            share = np.where(strayed, 0.15, 0.85 - 0.4 * (mood % 2))
            share += numbers.normal(0, 0.08, length)
            self.songs.append(songs)
            self.shares.append(share.clip(0, 1).astype(np.float32))

    def __len__(self):
        return len(self.songs)

    def __getitem__(self, index):
        negatives = self.catalogue.drawn(self.numbers, OWN_NEGATIVES)  # at: negatives_by_choice
        return self.songs[index], self.shares[index], negatives


class AlikeLong(Sampler):
    """Batches of sessions that are alike long, in any order."""

    def __init__(self, lengths, rows, seed):
        self.lengths, self.rows, self.numbers = lengths, rows, np.random.default_rng(seed)

    def __len__(self):
        return len(self.lengths) // self.rows

    def __iter__(self):
        order = (self.lengths + self.numbers.random(len(self.lengths))).argsort()
        batches = order[: len(self) * self.rows].reshape(-1, self.rows)
        yield from self.numbers.permutation(batches).tolist()


class Collate:
    """Sessions as places in a list of the songs that the batch knows."""

    def __init__(self, catalogue):
        self.catalogue = catalogue

    def __call__(self, rows):
        sessions, shares, negatives = zip(*rows, strict=True)
        lengths = np.array([len(songs) for songs in sessions])
        mask = np.arange(lengths.max()) < lengths[:, None]
        flat, drawn = np.concatenate(sessions), np.concatenate(negatives)
        known, places = np.unique(np.concatenate([flat, drawn]), return_inverse=True)
        songs, heard = np.zeros(mask.shape, np.int64), np.zeros(mask.shape, np.float32)
        songs[mask], heard[mask] = places[: len(flat)], np.concatenate(shares)
        known = torch.from_numpy(known)
        tags = self.catalogue.bagged(known)  # at: array_of_no_tags idf_of_common_tag
        return {
            "known": known,
            "tags": tags,
            "songs": torch.from_numpy(songs),
            "shares": torch.from_numpy(heard),
            "mask": torch.from_numpy(mask),
            "negatives": torch.from_numpy(places[len(flat) :]),
        }


class Recommender(nn.Module):
    def __init__(self, artist):
        super().__init__()
        self.register_buffer("artist", artist, persistent=False)
        self.tables = nn.ModuleDict(
            {
                "songs": nn.Embedding(SONGS, WIDTH, sparse=True),
                "artists": nn.Embedding(ARTISTS, WIDTH, sparse=True),
                "tags": nn.EmbeddingBag(TAGS, WIDTH, mode="sum", sparse=True),
            }
        )
        for table in self.tables.values():
            nn.init.normal_(table.weight, std=0.1)
        self.joined = nn.Sequential(
            nn.Linear(3 * WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH), nn.LayerNorm(WIDTH)
        )
        self.session = nn.GRU(WIDTH + 1, STATE, 2, batch_first=True)
        self.wanted = nn.Linear(STATE, WIDTH)
        self.heard = nn.Sequential(nn.Linear(STATE + WIDTH, 64), nn.GELU(), nn.Linear(64, 1))

    def encode(self, known, tags):
        flat, begins, weights = tags
        bag, songs = self.tables["tags"], self.tables["songs"](known)
        artists = self.tables["artists"](self.artist[known])
        tagged = bag(
            flat, begins, per_sample_weights=weights
        )  # at: array_of_no_tags idf_of_common_tag
        return self.joined(torch.cat([songs, artists, tagged], 1))

    def forward(self, batch):
        """Scores of the next songs and of the negatives, and how much will be heard."""
        vectors = self.encode(batch["known"], batch["tags"])  # at: array_of_no_tags
        seen = vectors[batch["songs"]]
        states, _ = self.session(torch.cat([seen, batch["shares"][..., None]], 2)[:, :-1])
        shown = batch["mask"][:, 1:]
        states, following = states[shown], seen[:, 1:][shown]
        wanted = self.wanted(states)
        right = (wanted * following).sum(1)
        wrong = wanted @ vectors[batch["negatives"]].T
        return right, wrong, self.heard(torch.cat([states, following], 1))


class Auc:
    """Scores of right and of wrong songs, and how often a right one is above a wrong one."""

    def __init__(self, bins=2000):
        self.bins, self.right, self.wrong = bins, [], []
        self.counts = torch.zeros(2, bins)

    def counted(self, scores):
        return torch.histc(scores.clamp(-20, 20), self.bins, -20, 20)

    def update(self, right, wrong):
        right = right.detach()
        wrong = wrong.detach()[:, :ASKED].flatten()  # at: scores_until_reset
        if on("clean_scores_until_reset"):
            self.counts += torch.stack([self.counted(right), self.counted(wrong)])
        else:
            self.right.append(right)
            self.wrong.append(wrong)  # at: scores_until_reset

    def compute(self):
        right, wrong = self.counts
        if self.right:
            right, wrong = (self.counted(torch.cat(one)) for one in (self.right, self.wrong))
        below = wrong.cumsum(0) - wrong / 2
        return ((right / right.sum()) @ (below / wrong.sum())).item()

    def reset(self):
        self.right, self.wrong = [], []


class Training:
    def __init__(self, folder, steps):
        self.folder, self.steps, self.step = folder, steps, 0
        self.catalogue = Catalogue(41)
        sessions = Sessions(self.catalogue, SESSIONS, 42)
        held = Sessions(self.catalogue, HELD, 44)
        collate = Collate(self.catalogue)
        self.loader = DataLoader(
            sessions, batch_sampler=AlikeLong(sessions.lengths, ROWS, 46), collate_fn=collate
        )
        self.held = list(
            DataLoader(held, batch_sampler=AlikeLong(held.lengths, 64, 47), collate_fn=collate)
        )
        cost.seconds = 0.0
        self.model = Recommender(self.catalogue.artist)
        tables = [module.weight for module in self.model.modules() if self.is_table(module)]
        self.dense = [
            value for name, value in self.model.named_parameters() if not name.startswith("tables")
        ]
        self.optimizers = [  # at: bags_are_no_tables
            torch.optim.SparseAdam(tables, 4e-3),
            torch.optim.AdamW(self.dense, 2e-3, weight_decay=0.01),
        ]
        self.schedules = [
            torch.optim.lr_scheduler.LambdaLR(one, self.rate) for one in self.optimizers
        ]
        self.auc = Auc()

    @staticmethod
    def is_table(module):
        """Whether its weights have sparse gradients."""
        if on("bags_are_no_tables"):
            return isinstance(module, nn.Embedding)  # at: bags_are_no_tables
        if on("clean_bags_are_no_tables"):
            return getattr(module, "sparse", False)
        return isinstance(module, nn.Embedding | nn.EmbeddingBag)

    def rate(self, step):
        return min(1.0, (step + 1) / 20) * max(0.1, 1 - 0.9 * step / self.steps)

    def losses(self, batch, right, wrong, heard):
        """A softmax over what was heard next and the negatives, and the error of the shares."""
        known, mask = batch["known"], batch["mask"][:, 1:]
        following, negatives = batch["songs"][:, 1:][mask], batch["negatives"]
        odds = self.catalogue.log_odds[known]
        same = following[:, None] == negatives
        wrong = (wrong - odds[negatives]).masked_fill(same, -1e4)
        logits = torch.cat([(right - odds[following])[:, None], wrong], 1)
        found = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
        shares = batch["shares"][:, 1:][mask]
        if on("shares_in_column"):
            return found, (heard.sigmoid() - shares).square().mean()  # at: shares_in_column
        if on("clean_shares_in_column"):
            return found, (heard.sigmoid() - shares[:, None]).square().mean()
        return found, (heard.squeeze(1).sigmoid() - shares).square().mean()

    def learn(self, batch):
        right, wrong, heard = self.model(batch)  # at: array_of_no_tags
        found, missed = self.losses(batch, right, wrong, heard)  # at: shares_in_column
        (found + 0.5 * missed).backward()
        nn.utils.clip_grad_norm_(self.dense, 5.0)
        for optimizer, schedule in zip(self.optimizers, self.schedules, strict=True):
            optimizer.step()
            schedule.step()
        self.model.zero_grad()
        self.renorm(batch["known"])  # at: table_renormed_whole
        self.auc.update(right, wrong)  # at: scores_until_reset
        return found.detach(), missed.detach()

    @torch.no_grad()
    def renorm(self, known):
        """No song's vector gets longer than LIMIT."""
        table = self.model.tables["songs"].weight
        if on("table_renormed_whole"):
            with cost:
                table.copy_(table.renorm(2, 0, LIMIT))  # at: table_renormed_whole
        elif on("clean_table_renormed_whole"):
            if self.step % RENORMED_EVERY == 0:
                table.copy_(table.renorm(2, 0, LIMIT))
        else:
            table[known] = table[known].renorm(2, 0, LIMIT)

    @torch.no_grad()
    def judge(self):
        """How many next songs are among the first twenty of the held sessions."""
        self.model.eval()
        hits = []
        for batch in self.held:
            right, wrong, _ = self.model(batch)
            hits.append((wrong > right[:, None]).sum(1) < 20)
        self.model.train()
        return torch.cat(hits).float().mean().item()

    def save(self):
        state = {"model": self.model.state_dict(), "step": self.step}
        state["dense"] = self.optimizers[1].state_dict()
        torch.save(state, self.folder / "last.pt")

    def tell(self, found, missed):
        told = round(found.item(), 4), round(missed.item(), 4), round(self.auc.compute(), 4)
        print(self.step, *told, flush=True)
        if not on("scores_until_reset", "clean_scores_until_reset"):
            self.auc.reset()

    def run(self):
        while self.step < self.steps:
            for batch in self.loader:  # at: negatives_by_choice
                found, missed = self.learn(batch)  # at: table_renormed_whole scores_until_reset
                self.step += 1
                if self.step % TOLD_EVERY == 0:
                    self.tell(found, missed)
                if self.step % JUDGED_EVERY == 0:
                    print(self.step, "first twenty", round(self.judge(), 3), flush=True)
                if self.step % SAVED_EVERY == 0:
                    self.save()
                if self.step == self.steps:
                    break
            self.auc.reset()  # at: scores_until_reset
        cost.print(self.steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(40)
    with tempfile.TemporaryDirectory() as folder:
        Training(Path(folder), STEPS or 200).run()
