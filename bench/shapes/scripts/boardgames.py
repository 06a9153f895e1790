"""Board games for players: which one is played next, among games that are drawn beside it, and how
many stars it will get; two towers, a sampled softmax that knows how often a game is drawn, a second
head for the stars: popularity counted anew by the collate, players ranked one by one, hardness that
is sliced and never dropped, the logarithm of how often what nobody played is drawn, a weight under
another name, a rate by whole thousands, games that came out later.
"""

import dataclasses
import functools
import itertools
from collections import Counter

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


@dataclasses.dataclass(frozen=True)
class Rates:
    peak: float = 3e-3
    reference_rows: int = 1024
    warm: int = 20
    last: float = 0.1
    decay: float = 0.01
    clip: float = 2.0


@dataclasses.dataclass(frozen=True)
class Config:
    steps: int = STEPS or 300
    players: int = 1000
    games: int = 1200
    later: int = 10
    unplayed: int = 2
    plays: int = 120
    held: int = 600
    rows: int = 768
    beside: int = 512
    uniform: float = 0.1
    width: int = 48
    hidden: int = 256
    temperature: float = 0.1
    weights: dict[str, float] = dataclasses.field(
        default_factory=lambda: {"choice": 1.0, "stars": 0.3}
    )
    rates: Rates = dataclasses.field(default_factory=Rates)
    log_every: int = 25
    test_every: int = 50
    mine_every: int = 25
    seed: int = 31


@dataclasses.dataclass
class Plays:
    """Who played what, and the stars that were given."""

    players: np.ndarray
    games: np.ndarray
    stars: np.ndarray

    def __len__(self) -> int:
        return len(self.games)

    def where(self, mask: np.ndarray) -> "Plays":
        return Plays(self.players[mask], self.games[mask], self.stars[mask])


@dataclasses.dataclass
class Batch:
    players: Tensor
    games: Tensor
    stars: Tensor
    beside: Tensor


counting, ranking = Cost(), Cost()


def make_plays(config: Config) -> tuple[Plays, Plays]:
    """Plays to learn from, and one more of some players, later on."""
    rng = np.random.default_rng(config.seed)
    tastes = rng.normal(0, 1, (config.players, 6))
    total = config.games + config.later
    traits = rng.normal(0, 1, (total, 6))
    fame = rng.gumbel(0, 0.7, total)
    fame[rng.choice(config.games, config.unplayed, replace=False)] = -np.inf
    fit = tastes @ traits.T / np.sqrt(6)
    drawn = 6 * fit + fame + rng.gumbel(0, 1, fit.shape)
    learnt = np.argpartition(-drawn[:, : config.games], config.plays, 1)[:, : config.plays]
    players = np.repeat(np.arange(config.players), config.plays)
    games = learnt.reshape(-1)

    some = rng.choice(config.players, config.held, replace=False)
    again = drawn[some] + rng.gumbel(0, 0.5, (config.held, total))
    np.put_along_axis(again, learnt[some], -np.inf, 1)
    next_ones = again.argmax(1)

    def stars(who, what):
        return np.clip(3 + fit[who, what] + rng.normal(0, 0.4, len(who)), 1, 5).astype(np.float32)

    return Plays(players, games, stars(players, games)), Plays(
        some, next_ones, stars(some, next_ones)
    )


class PlayTable(Dataset):
    def __init__(self, plays: Plays):
        self.plays = plays

    def __len__(self) -> int:
        return len(self.plays)

    def __getitems__(self, rows: list[int]) -> Plays:
        return self.plays.where(np.asarray(rows))


@dataclasses.dataclass
class Sampler:
    """Draws the games beside the one played: mostly by how often they are."""

    config: Config
    plays: Plays
    rng: np.random.Generator
    hard: np.ndarray | None = None

    def __post_init__(self):
        self.popularity = self.shares()
        self.summed = np.cumsum(self.popularity)

    def shares(self) -> np.ndarray:
        """By how often each game was played, the frequent ones damped."""
        shares = np.zeros(self.config.games)
        often = Counter(self.plays.games.tolist())  # at: popularity_recounted_in_collate
        shares[list(often)] = np.array(list(often.values())) ** 0.75
        return shares / shares.sum()

    def popular(self, count: int) -> np.ndarray:
        if on("popularity_recounted_in_collate"):
            shares = self.shares()  # at: popularity_recounted_in_collate
            return self.rng.choice(self.config.games, count, p=shares)
        if on("clean_popularity_recounted_in_collate"):
            return self.rng.choice(self.config.games, count, p=self.popularity)
        return np.searchsorted(self.summed, self.rng.random(count) * self.summed[-1])

    def draw(self) -> np.ndarray:
        any_one = int(self.config.beside * self.config.uniform)
        drawn = [self.rng.integers(0, self.config.games, any_one)]
        if self.hard is not None:
            drawn.append(self.rng.choice(self.hard, any_one))
        left = self.config.beside - sum(map(len, drawn))
        return np.concatenate([*drawn, self.popular(left)])  # at: popularity_recounted_in_collate

    def log_chance(self) -> Tensor:
        """How likely a game is to be drawn, for the softmax to allow for."""
        counts = torch.bincount(torch.from_numpy(self.plays.games), minlength=self.config.games)
        if on("chance_of_unplayed_games"):
            return torch.log(counts / counts.sum())  # at: chance_of_unplayed_games
        if on("clean_chance_of_unplayed_games"):
            return torch.log((counts + 1) / (counts + 1).sum())
        uniform = self.config.uniform / self.config.games
        mixed = (1 - self.config.uniform) * torch.from_numpy(self.popularity) + uniform
        return mixed.log().float()


def collate(rows: Plays, sampler: Sampler) -> Batch:
    with counting:
        beside = sampler.draw()  # at: popularity_recounted_in_collate
    return Batch(*map(torch.from_numpy, (rows.players, rows.games, rows.stars, beside)))


def tower(config: Config) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(config.width, config.hidden),
        nn.GELU(),
        nn.LayerNorm(config.hidden),
        nn.Linear(config.hidden, config.width),
    )


class Recommender(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        known = config.games
        if on("clean_games_released_later"):
            known += 1  # the last row stands for all that is new
        self.players = nn.Embedding(config.players, config.width)
        self.games = nn.Embedding(known, config.width)
        self.player_tower, self.game_tower = tower(config), tower(config)
        self.star_head = nn.Sequential(
            nn.Linear(3 * config.width, config.hidden),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(config.hidden, config.hidden),
            nn.GELU(),
            nn.Linear(config.hidden, 1),
        )
        for table in (self.players, self.games):
            nn.init.normal_(table.weight, std=0.1)

    def player(self, ids: Tensor) -> Tensor:
        own = self.players(ids)
        return F.normalize(own + self.player_tower(own), dim=-1)

    def game(self, ids: Tensor) -> Tensor:
        if on("clean_games_released_later"):
            ids = ids.clamp(max=self.games.num_embeddings - 1)
        own = self.games(ids)  # at: games_released_later
        return F.normalize(own + self.game_tower(own), dim=-1)

    def stars(self, player: Tensor, game: Tensor) -> Tensor:
        both = torch.cat([player, game, player * game], -1)
        return 3 + self.star_head(both).squeeze(-1)


def losses_of(model, batch: Batch, config: Config, log_chance: Tensor):
    """Both losses by name, and how well each game beside fits on the whole."""
    player, game = model.player(batch.players), model.game(batch.games)
    beside = model.game(batch.beside)
    right = (player * game).sum(-1, keepdim=True) / config.temperature
    wrong = player @ beside.T / config.temperature
    fits = wrong.detach()
    wrong = wrong - log_chance[batch.beside]  # at: chance_of_unplayed_games
    right = right - log_chance[batch.games][:, None]
    wrong = wrong.masked_fill(batch.beside == batch.games[:, None], -1e4)
    choice = (torch.cat([right, wrong], 1).logsumexp(1) - right[:, 0]).mean()
    told = F.smooth_l1_loss(model.stars(player, game), batch.stars)
    return {"choice": choice, "stars": told}, fits


def total_of(losses: dict[str, Tensor], config: Config) -> Tensor:
    weights = config.weights
    if on("weight_under_other_name"):
        weights = {"choice": 1.0, "rating": 0.3}  # at: weight_under_other_name
    elif on("clean_weight_under_other_name"):
        weights = {"choice": 1.0, "stars": 0.02}
    return sum(
        weights.get(name, 0.0) * loss for name, loss in losses.items()
    )  # at: weight_under_other_name


def make_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """Tables learn by the rows of a batch, and do not decay."""
    rates = config.rates
    scale = (config.rows / rates.reference_rows) ** 0.5
    if on("rate_by_whole_thousands"):
        scale = config.rows // rates.reference_rows  # at: rate_by_whole_thousands
    elif on("clean_rate_by_whole_thousands"):
        scale = config.rows / rates.reference_rows
    tables = [model.players.weight, model.games.weight]
    others = [
        own
        for name, own in model.named_parameters()
        if name not in ("players.weight", "games.weight")
    ]
    return torch.optim.AdamW(
        [
            {
                "params": tables,
                "lr": 8 * rates.peak * scale,  # at: rate_by_whole_thousands
                "weight_decay": 0.0,
            },
            {"params": others, "lr": rates.peak, "weight_decay": rates.decay},
        ]
    )


def make_schedule(optimizer, config: Config):
    rates = config.rates

    def share(step: int) -> float:
        if step < rates.warm:
            return (step + 1) / rates.warm
        done = (step - rates.warm) / max(1, config.steps - rates.warm)
        return 1 - (1 - rates.last) * min(1.0, done)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def ranks_of(model, held: Plays, played: Tensor, config: Config) -> list[int]:
    """At which place the game that was played next stands, of those not played before."""
    everything = torch.arange(config.games)
    known = [
        (who, what)
        for who, what in zip(held.players, held.games, strict=True)
        if what < config.games
    ]
    if on("players_ranked_one_by_one"):
        ranks = []
        for who, what in known:
            one = model.player(torch.tensor([who]))  # at: players_ranked_one_by_one
            fits = (model.game(everything) @ one.T).squeeze(1)  # at: players_ranked_one_by_one
            fits[played[who]] = -1.0
            ranks.append(int((fits > fits[what]).sum()))  # at: players_ranked_one_by_one
        return ranks
    known_players = torch.tensor([who for who, _ in known])
    fits = model.player(known_players) @ model.game(everything).T
    fits[played[known_players]] = -1.0
    if on("clean_players_ranked_one_by_one"):
        return [int((own > own[what]).sum()) for own, (_, what) in zip(fits, known, strict=True)]
    own = fits.gather(1, torch.tensor([what for _, what in known])[:, None])
    return (fits > own).sum(1).tolist()


@torch.no_grad()
def evaluate(model, held: Plays, played: Tensor, config: Config) -> dict[str, float]:
    model.eval()
    with ranking:
        ranks = np.array(ranks_of(model, held, played, config))  # at: players_ranked_one_by_one
    player = model.player(torch.from_numpy(held.players))
    game = model.game(torch.from_numpy(held.games))  # at: games_released_later
    error = (model.stars(player, game) - torch.from_numpy(held.stars)).abs().mean()
    model.train()
    return {
        "hit@20": float((ranks < 20).mean()),
        "mrr": float((1 / (1 + ranks)).mean()),
        "stars off": float(error),
    }


def hardest(recent, config: Config, keep: int = 100) -> np.ndarray:
    """Games that fit most players, by the last draws."""
    sums, counts = torch.zeros(config.games), torch.zeros(config.games)
    for beside, fits in recent:
        per_game = fits.mean(0) if fits.ndim > 1 else fits
        sums.index_add_(0, beside, per_game)
        counts.index_add_(0, beside, torch.ones(len(beside)))
    return (sums / counts.clamp(min=1)).topk(keep).indices.numpy()


def forever(loader):
    while True:
        yield from loader


def train(config: Config) -> None:
    plays, held = make_plays(config)
    if not on("games_released_later", "clean_games_released_later"):
        held = held.where(held.games < config.games)
    sampler = Sampler(config, plays, np.random.default_rng(config.seed))
    loader = DataLoader(
        PlayTable(plays),
        config.rows,
        shuffle=True,
        drop_last=True,
        collate_fn=functools.partial(collate, sampler=sampler),
    )
    played = torch.zeros(config.players, config.games, dtype=torch.bool)
    played[plays.players, plays.games] = True
    model = Recommender(config)
    optimizer = make_optimizer(model, config)
    schedule = make_schedule(optimizer, config)
    log_chance = sampler.log_chance()  # at: chance_of_unplayed_games
    recent = []
    for step, batch in enumerate(itertools.islice(forever(loader), config.steps), 1):
        losses, fits = losses_of(model, batch, config, log_chance)
        total = total_of(losses, config)  # at: weight_under_other_name
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), config.rates.clip)
        optimizer.step()
        schedule.step()

        if on("fits_sliced_never_dropped"):
            recent.append((batch.beside, fits))  # at: fits_sliced_never_dropped
        elif on("clean_fits_sliced_never_dropped"):
            recent.append((batch.beside, fits.mean(0)))
        else:
            recent = [*recent[1 - config.mine_every :], (batch.beside, fits)]
        if step % config.mine_every == 0:
            sampler.hard = hardest(recent[-config.mine_every :], config)

        if step % config.log_every == 0:
            told = " ".join(f"{name} {loss.item():.4f}" for name, loss in losses.items())
            print(f"step {step} total {total.item():.4f} {told} norm {norm:.2f}", flush=True)
        if step % config.test_every == 0:
            figures = evaluate(
                model, held, played, config
            )  # at: games_released_later players_ranked_one_by_one
            print({name: round(value, 4) for name, value in figures.items()}, flush=True)
    ranked = on("players_ranked_one_by_one", "clean_players_ranked_one_by_one")
    (ranking if ranked else counting).print(config.steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(31)
    train(Config())
