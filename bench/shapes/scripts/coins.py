"""Coins struck by a VAE whose likeness a critic judges by its features: one loop, two optimizers,
mints told to both, a Frechet distance now and then, a cupboard of coins that are held out: patina
put on pixel by pixel, the distance at each step, nearness that holds its graph, a distance from
oneself, gradients of the other cleared, targets for full batches, a verdict squashed twice.
"""

import math
import time
from types import SimpleNamespace

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

cost = Cost()
args = SimpleNamespace(
    coins=1000,
    held=4,
    mints=6,
    side=32,
    rows=24,
    latent=24,
    width=12,
    steps=STEPS or 260,
    lr=1e-3,
    critic_lr=4e-4,
    beta=3e-4,
    verdict=0.1,
    apart=2e-3,
    settled=30,
    print_every=20,
    seed=12,
)


def strike(rng, mint):
    """A worn coin: rim, head, and a legend whose letters depend on the mint."""
    y, x = (np.mgrid[: args.side, : args.side] - (args.side - 1) / 2) / (args.side / 2)
    turn = rng.normal(0, 0.15)
    radius, angle = np.hypot(x, y), np.arctan2(y, x) + turn
    coin = 0.35 * (radius < 0.92) + 0.3 * (np.abs(radius - 0.88) < 0.05)
    head = ((x - rng.normal(0, 0.05)) / 0.3) ** 2 + ((y + 0.1) / (0.32 + 0.02 * mint)) ** 2 < 1
    neck = (np.abs(x) < 0.14) & (y > 0) & (y < 0.55)
    letters = (np.abs(radius - 0.7) < 0.06) & (np.sin(angle * (5 + 2 * mint)) > 0.2)
    coin = coin + 0.3 * (head | neck) + 0.25 * letters
    coin += rng.normal(0, 0.02, coin.shape)
    return coin.clip(0, 1).astype(np.float32)


def patina(coin, depth):
    """Dark where metal lies low beside its neighbours."""
    around = np.pad(coin, 1, mode="edge")
    mean = sum(
        around[1 + dy : 1 + dy + args.side, 1 + dx : 1 + dx + args.side]
        for dy, dx in ((-1, 0), (1, 0), (0, -1), (0, 1))
    )
    low = np.maximum(mean / 4 - coin, 0)
    return (coin - depth * low).clip(0, 1)


def patina_slowly(coin, depth):
    """The same, as it was first written down."""
    out = coin.copy()
    last = args.side - 1
    for y in range(args.side):  # at: patina_pixel_by_pixel
        for x in range(args.side):  # at: patina_pixel_by_pixel
            mean = coin[max(y - 1, 0), x] + coin[min(y + 1, last), x]  # at: patina_pixel_by_pixel
            mean += coin[y, max(x - 1, 0)] + coin[y, min(x + 1, last)]  # at: patina_pixel_by_pixel
            low = max(mean / 4 - coin[y, x], 0.0)  # at: patina_pixel_by_pixel
            out[y, x] = min(max(coin[y, x] - depth * low, 0.0), 1.0)  # at: patina_pixel_by_pixel
    return out


class Hoard(Dataset):
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.mints = rng.integers(0, args.mints, count)
        self.depths = rng.uniform(0.2, 0.9, count).astype(np.float32)
        self.clean = [strike(rng, mint) for mint in self.mints]
        self.worn = [patina(*pair) for pair in zip(self.clean, self.depths, strict=True)]

    def __len__(self):
        return len(self.clean)

    def picture(self, index):
        if on("patina_pixel_by_pixel"):
            with cost:
                return patina_slowly(
                    self.clean[index], self.depths[index]
                )  # at: patina_pixel_by_pixel
        if on("clean_patina_pixel_by_pixel"):
            with cost:
                return patina(self.clean[index], self.depths[index])
        return self.worn[index]

    def __getitem__(self, index):
        coin = torch.from_numpy(self.picture(index))[None]  # at: patina_pixel_by_pixel
        return 2 * coin - 1, int(self.mints[index])


def down(inside, outside):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 4, stride=2, padding=1),
        nn.BatchNorm2d(outside),
        nn.LeakyReLU(0.2),
    )


def up(inside, outside):
    return nn.Sequential(
        nn.ConvTranspose2d(inside, outside, 4, stride=2, padding=1),
        nn.BatchNorm2d(outside),
        nn.ReLU(),
    )


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        w = args.width
        self.body = nn.Sequential(down(1, w), down(w, 2 * w), down(2 * w, 4 * w), nn.Flatten())
        self.mint = nn.Embedding(args.mints, 32)
        self.mean = nn.Linear(64 * w + 32, args.latent)
        self.spread = nn.Linear(64 * w + 32, args.latent)

    def forward(self, coins, mints):
        x = torch.cat((self.body(coins), self.mint(mints)), 1)
        mean, spread = self.mean(x), self.spread(x)
        return mean, (spread.clamp(-8, 4) / 2).exp()


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        w = args.width
        self.mint = nn.Embedding(args.mints, 32)
        self.first = nn.Linear(args.latent + 32, 64 * w)
        self.body = nn.Sequential(
            nn.Unflatten(1, (4 * w, 4, 4)),
            up(4 * w, 2 * w),
            up(2 * w, w),
            nn.ConvTranspose2d(w, 1, 4, stride=2, padding=1),
            nn.Tanh(),
        )

    def forward(self, latent, mints):
        return self.body(F.relu(self.first(torch.cat((latent, self.mint(mints)), 1))))


class Critic(nn.Module):
    """Tells struck from cast; its features are what a likeness is measured by."""

    def __init__(self):
        super().__init__()
        w = args.width
        self.low = nn.Sequential(
            nn.Conv2d(1, w, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(w, 2 * w, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
        )
        self.high = nn.Sequential(
            nn.Conv2d(2 * w, 4 * w, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(4 * w, 4 * w, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
        )
        layers = [nn.Linear(64 * w, 1), nn.Flatten(0)]
        if on("verdict_squashed_twice", "clean_verdict_squashed_twice"):
            layers.append(nn.Sigmoid())  # at: verdict_squashed_twice
        self.verdict = nn.Sequential(*layers)

    def features(self, coins):
        low = self.low(coins)
        return low, self.high(low)

    def forward(self, coins):
        return self.verdict(self.features(coins)[1])


FULL = {True: torch.ones(args.rows), False: torch.zeros(args.rows)}


def verdict_loss(scores, real):
    targets = torch.full_like(scores, float(real))
    if on("targets_of_full_batch"):
        targets = FULL[real]  # at: targets_of_full_batch
    elif on("clean_targets_of_full_batch"):
        targets = FULL[real][: len(scores)]
    if on("clean_verdict_squashed_twice"):
        return F.binary_cross_entropy(scores, targets)
    return F.binary_cross_entropy_with_logits(
        scores, targets
    )  # at: verdict_squashed_twice targets_of_full_batch


def divergence(mean, spread):
    """Of a latent from the normal one, in nats a coin."""
    return ((mean**2 + spread**2 - 1) / 2 - spread.log()).sum(1).mean()


def apart(means):
    """How far the coins of a batch lie from each other."""
    if on("clean_distance_to_oneself"):
        one, other = torch.triu_indices(len(means), len(means), 1)
        return ((means[one] - means[other]) ** 2).sum(1).sqrt().mean()
    squares = ((means[:, None] - means) ** 2).sum(2)
    return squares.sqrt().mean()  # at: distance_to_oneself


def frechet(ours, theirs):
    """Between two clouds of features."""
    means = ours.mean(0) - theirs.mean(0)
    a, b = (np.cov(one, rowvar=False) for one in (ours, theirs))
    both = a @ b
    if not np.isfinite(both).all():
        return math.nan
    roots = np.sqrt(np.linalg.eigvals(both).astype(complex)).real  # at: frechet_at_each_step
    return float(means @ means + np.trace(a) + np.trace(b) - 2 * roots.sum())


def frechet_of_axes(ours, theirs):
    """The same where features are told to be independent."""
    means, spreads = ours.mean(0) - theirs.mean(0), ours.std(0) - theirs.std(0)
    return float(means @ means + spreads @ spreads)


class Workshop:
    def __init__(self):
        self.encoder, self.decoder, self.critic = Encoder(), Decoder(), Critic()
        self.makers = [*self.encoder.parameters(), *self.decoder.parameters()]
        self.maker_opt = torch.optim.Adam(self.makers, args.lr, betas=(0.5, 0.99))
        self.critic_opt = torch.optim.Adam(
            self.critic.parameters(), args.critic_lr, betas=(0.5, 0.99)
        )
        cupboard = Hoard(args.held, 99)
        rows = [cupboard[number] for number in range(args.held)]
        self.held = torch.stack([coin for coin, _ in rows])
        self.held_mints = torch.tensor([mint for _, mint in rows])
        self.near, self.clouds, self.step = [], ([], []), 0
        self.distance = math.nan

    def judge(self, coins, fakes):
        """The critic's update."""
        if on("cleared_for_the_other"):
            self.maker_opt.zero_grad()  # at: cleared_for_the_other
        elif on("clean_cleared_for_the_other"):
            self.critic.zero_grad(set_to_none=False)
        else:
            self.critic_opt.zero_grad()
        real, cast = self.critic(coins), self.critic(fakes.detach())
        loss = verdict_loss(real, True) + verdict_loss(
            cast, False
        )  # at: targets_of_full_batch verdict_squashed_twice
        loss.backward()  # at: cleared_for_the_other
        self.critic_opt.step()
        return loss.detach()

    def make(self, coins, mints):
        """What the encoder and the decoder are to lose, and the coins that they made."""
        mean, spread = self.encoder(coins, mints)
        latent = mean + spread * torch.randn_like(mean)
        loss = args.beta * divergence(mean, spread)
        pushed = on("distance_to_oneself", "clean_distance_to_oneself")
        if pushed and self.step > args.settled:
            loss = loss - args.apart * apart(mean)  # at: distance_to_oneself
        return self.decoder(latent, mints), loss

    def improve(self, coins, fakes, prior):
        self.critic.requires_grad_(False)
        with torch.no_grad():
            wanted, high = self.critic.features(coins)
        given, features = self.critic.features(fakes)
        likeness = F.mse_loss(given, wanted) + F.l1_loss(fakes, coins)
        verdict = verdict_loss(
            self.critic.verdict(features), True
        )  # at: targets_of_full_batch verdict_squashed_twice
        loss = likeness + prior + args.verdict * verdict
        self.maker_opt.zero_grad()
        loss.backward()
        self.maker_opt.step()
        self.critic.requires_grad_(True)
        self.note(high, features.detach())
        return loss.detach()

    def note(self, real, cast):
        """Features of the latest coins, for the distance between struck and cast ones."""
        for cloud, rows in zip(self.clouds, (real, cast), strict=True):
            cloud.append(rows[:, ::3].numpy())
            del cloud[:-6]

    def measure(self):
        if len(self.clouds[0]) < 5:
            return
        each = on("frechet_at_each_step", "clean_frechet_at_each_step")
        if each or self.step % args.print_every == 0:
            ours, theirs = (np.concatenate(one) for one in self.clouds)
            with cost:
                if on("clean_frechet_at_each_step"):
                    self.distance = frechet_of_axes(ours, theirs)
                else:
                    self.distance = frechet(ours, theirs)  # at: frechet_at_each_step

    def watch(self):
        """How near the coins of the cupboard come out, by what the critic sees."""
        self.encoder.eval(), self.decoder.eval()
        with torch.no_grad():
            mean, _ = self.encoder(self.held, self.held_mints)
            copies = self.decoder(mean, self.held_mints)
        self.encoder.train(), self.decoder.train()
        with torch.set_grad_enabled(
            not on("clean_nearness_holds_graph")
        ):  # at: nearness_holds_graph
            struck, cast = (
                self.critic.features(one)[0] for one in (self.held, copies)
            )  # at: nearness_holds_graph
            near = F.mse_loss(struck, cast)  # at: nearness_holds_graph
        self.near.append(near)  # at: nearness_holds_graph

    def turn(self, coins, mints):
        self.step += 1
        fakes, prior = self.make(coins, mints)
        critic_loss = self.judge(
            coins, fakes
        )  # at: cleared_for_the_other targets_of_full_batch verdict_squashed_twice
        loss = self.improve(coins, fakes, prior)
        self.measure()  # at: frechet_at_each_step
        watched = on("nearness_holds_graph", "clean_nearness_holds_graph")
        if watched and self.step % 2 == 0:
            self.watch()  # at: nearness_holds_graph
        if self.step % args.print_every == 0:
            told = f"{self.step:4d} loss {loss:.4f} critic {critic_loss:.4f} prior {prior:.4f}"
            if self.near:
                told += f" near {float(sum(self.near[-10:])) / 10:.4f}"
            print(f"{told} frechet {self.distance:.3f}", flush=True)


def main():
    torch.manual_seed(args.seed)
    hoard = Hoard(args.coins, args.seed)
    loader = DataLoader(hoard, args.rows, shuffle=True)  # at: targets_of_full_batch
    shop, begin = Workshop(), time.perf_counter()
    cost.seconds = 0.0
    while shop.step < args.steps:
        for coins, mints in loader:  # at: patina_pixel_by_pixel
            shop.turn(coins, mints)  # at: frechet_at_each_step
            if shop.step == args.steps:
                break
    print(f"{(time.perf_counter() - begin) / args.steps * 1000:.1f} ms a step")
    cost.print(args.steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
