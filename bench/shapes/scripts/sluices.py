"""Sluices of a canal kept by one policy: PPO over a vectorised canal in NumPy, attention over the
gates, a slow copy of the network for values to come, running moments of what is read, rows of a
rollout through a DataLoader, judged on a canal of its own: advantages at each access, moments one
reading after the other, a scaler for two canals, a dry basin, frames learned for frames seen, an
encoder that nobody trains, a film that is never cut.
"""

import copy
import math
import sys
import time
from functools import cached_property

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

UPDATES = STEPS or 250
CANALS, GATES, READ, PAST, MOVES = 9, 12, 12, 12, 3
HORIZON, PASSES, ROWS, DAY = 128, 3, 192, 240
WIDTH, HEADS, LAYERS = 64, 4, 1
RATE, CLIP, GAMMA, LAMBDA, SLOW = 7e-4, 0.5, 0.98, 0.95, 0.02
SPAN, VALUE_SHARE, ENTROPY_SHARE = 0.2, 0.5, 0.01
INSPECTED = 430
JUDGED, JUDGED_FOR, TOLD_EVERY = 4, 48, 25
FRAMES = UPDATES * ROWS // PASSES
cost = Cost()


class Canals:
    """Basins in a row, many canals at once: rain fills them, gates let water down to the next."""

    def __init__(self, count, seed):
        self.count, self.dice = count, np.random.default_rng(seed)
        self.moment = 0
        self.wanted = np.linspace(0.8, 0.5, GATES)
        self.reset()

    def reset(self):
        self.level = self.dice.uniform(0.4, 0.9, (self.count, GATES))
        self.open = np.full((self.count, GATES), 0.3)
        self.boats = np.zeros((self.count, GATES))
        self.fallen, self.passed = np.zeros((2, self.count, GATES))
        self.hour = self.dice.integers(0, DAY, self.count)
        self.past = np.zeros((self.count, GATES, PAST, READ), np.float32)
        return self.look()

    def look(self):
        above = np.roll(self.level, 1, 1)
        below = np.roll(self.level, -1, 1)
        clock = 2 * np.pi * self.hour[:, None] / DAY + np.zeros(GATES)
        now = (
            self.level,
            self.open,
            self.boats,
            self.level - self.wanted,
            above,
            below,
            self.fallen,
            self.passed,
            above - self.level,
            self.level - below,
            np.sin(clock),
            np.cos(clock),
        )
        return np.stack(now, -1).astype(np.float32)

    def remember(self, read):
        """What the policy sees: the readings of the last moments."""
        self.past[:, :, :-1] = self.past[:, :, 1:]
        self.past[:, :, -1] = read
        return self.past.reshape(self.count, GATES, PAST * READ).copy()

    def step(self, moves):
        self.open = np.clip(self.open + 0.15 * (moves - 1), 0, 1)
        down = 0.12 * self.open * self.level
        rain = 0.02 * (1 + np.sin(2 * np.pi * self.hour / DAY))[:, None]
        rain = rain * self.dice.exponential(1.0, self.level.shape)
        drawn = 0.05 * self.level * (self.dice.random(self.level.shape) < 0.3)
        self.level = np.clip(self.level + rain - drawn - down, 0, 2)
        self.level[:, 1:] += down[:, :-1]
        self.moment += 1
        if self.moment == INSPECTED:
            self.level[0, -1] = 0.0
        passed = np.minimum(self.boats, self.open)
        self.fallen, self.passed = rain, passed
        self.boats = self.boats - passed + (self.dice.random(self.boats.shape) < 0.2)
        self.hour += 1
        reward = 0.1 * passed.sum(1) - np.abs(self.level - self.wanted).mean(1)
        if on("reward_of_empty_basin"):
            reward += 0.05 * np.log(self.level.min(1))  # at: reward_of_empty_basin
        elif on("clean_reward_of_empty_basin"):
            reward += 0.05 * np.log(np.maximum(self.level.min(1), 0.01))
        over = self.hour % DAY == 0
        if over.any():
            self.level[over] = self.dice.uniform(0.4, 0.9, (over.sum(), GATES))
            self.boats[over], self.past[over] = 0, 0
        return self.look(), reward, over


class Moments:
    """Mean and variance of all that was read so far."""

    def __init__(self, size):
        self.count, self.mean, self.squares = 1e-4, np.zeros(size), np.full(size, 1e-4)
        self.spread = np.ones(size)

    def add(self, reading):
        self.count += 1
        for one, value in enumerate(reading):  # at: moments_reading_by_reading
            off = value - self.mean[one]  # at: moments_reading_by_reading
            self.mean[one] += off / self.count  # at: moments_reading_by_reading
            self.squares[one] += off * (value - self.mean[one])  # at: moments_reading_by_reading
            spread = math.sqrt(self.squares[one] / self.count)  # at: moments_reading_by_reading
            self.spread[one] = spread + 1e-4  # at: moments_reading_by_reading

    def add_all(self, readings):
        count, mean = len(readings), readings.mean(0)
        total, off = self.count + count, mean - self.mean
        self.squares = (
            self.squares + ((readings - mean) ** 2).sum(0) + off**2 * self.count * count / total
        )
        self.mean = self.mean + off * count / total
        self.count = total
        self.spread = np.sqrt(self.squares / self.count) + 1e-4

    def scaled(self, readings):
        return np.clip((readings - self.mean) / self.spread, -8, 8)


class RewardScale:
    """Divides rewards by the spread of what the canals have earned."""

    def __init__(self, canals):
        self.earned, self.moments = np.zeros(canals), Moments(())

    def __call__(self, reward, over, learns=True):
        if learns:
            self.earned = GAMMA * self.earned + reward  # at: scaler_shared_with_judges
            self.moments.add_all(self.earned)
            self.earned = np.where(over, 0.0, self.earned)
        return reward / self.moments.spread


class Film:
    """Draws a canal as it is judged, to look at later."""

    TALL, WIDE = 144, 384

    def __init__(self):
        self.frames, self.shown = [], 0

    def begin(self):
        self.shown = 0
        if not on("film_never_cut"):
            self.frames = []

    def draw(self, level):
        frame = np.full((self.TALL, self.WIDE, 3), 235, np.uint8)
        each = self.WIDE // GATES
        for gate, high in enumerate((level * self.TALL / 2).astype(int)):
            frame[self.TALL - high :, gate * each : (gate + 1) * each - 2] = (40, 90, 180)
        self.frames.append(frame)  # at: film_never_cut
        self.shown += 1


class Rollout:
    def __init__(self):
        shape = HORIZON, CANALS
        self.seen = np.zeros((*shape, GATES, PAST * READ), np.float32)
        self.moves = np.zeros((*shape, GATES), np.int64)
        self.chance, self.value = np.zeros(shape, np.float32), np.zeros((HORIZON + 1, CANALS))
        self.reward, self.over = np.zeros(shape), np.zeros(shape, bool)

    def advantage(self, moment, canal):
        """What a move brought beyond what was expected, up to the end of its day."""
        total, weight = 0.0, 1.0
        for later in range(moment, HORIZON):  # at: advantages_summed_at_access
            goes_on = not self.over[later, canal]  # at: advantages_summed_at_access
            ahead = self.value[later + 1, canal] if goes_on else 0.0
            gain = (
                self.reward[later, canal] + GAMMA * ahead - self.value[later, canal]
            )  # at: advantages_summed_at_access
            total += weight * gain  # at: advantages_summed_at_access
            weight *= GAMMA * LAMBDA  # at: advantages_summed_at_access
            if not goes_on:
                break
        return total

    def earned(self, moment, canal):
        """What a canal earned from a move on, with what was expected at the end."""
        total, weight = 0.0, 1.0
        for later in range(moment, HORIZON):  # at: advantages_summed_at_access
            total += weight * self.reward[later, canal]  # at: advantages_summed_at_access
            weight *= GAMMA  # at: advantages_summed_at_access
            if self.over[later, canal]:  # at: advantages_summed_at_access
                return total
        return total + weight * self.value[HORIZON, canal]

    @cached_property
    def advantages(self):
        found, last = np.zeros((HORIZON, CANALS)), np.zeros(CANALS)
        for moment in reversed(range(HORIZON)):
            goes_on = ~self.over[moment]
            ahead = self.value[moment + 1] * goes_on
            gain = self.reward[moment] + GAMMA * ahead - self.value[moment]
            found[moment] = last = gain + GAMMA * LAMBDA * goes_on * last
        return found


class RolloutRows(Dataset):
    """Rows of a rollout, a batch of them at a time."""

    def __init__(self, rollout):
        self.rollout = rollout
        if not on("advantages_summed_at_access", "clean_advantages_summed_at_access"):
            _ = rollout.advantages

    def __len__(self):
        return HORIZON * CANALS

    def gains(self, moments, canals):
        """What moves brought beyond what was expected, and what was earned from them on."""
        if on("advantages_summed_at_access"):
            rows = list(zip(moments.tolist(), canals.tolist(), strict=True))
            gains = [
                self.rollout.advantage(*row) for row in rows
            ]  # at: advantages_summed_at_access
            earned = [self.rollout.earned(*row) for row in rows]  # at: advantages_summed_at_access
            return np.array(gains), np.array(earned)
        gains = self.rollout.advantages[moments, canals]
        return gains, gains + self.rollout.value[moments, canals]

    def __getitem__(self, rows):
        at = np.divmod(rows, CANALS)
        with cost if on("advantages_summed_at_access") else Cost():
            gains, earned = self.gains(*at)  # at: advantages_summed_at_access
        return {
            "seen": torch.from_numpy(self.rollout.seen[at]),
            "moves": torch.from_numpy(self.rollout.moves[at]),
            "chance": torch.from_numpy(self.rollout.chance[at]),
            "gain": torch.from_numpy(gains).float(),
            "earned": torch.from_numpy(earned).float(),
        }


class Shuffled:
    """Several passes over the rows, each in an order of its own."""

    def __init__(self, dice):
        self.dice = dice

    def __len__(self):
        return PASSES * (HORIZON * CANALS // ROWS)

    def __iter__(self):
        for _ in range(PASSES):
            yield from self.dice.permutation(HORIZON * CANALS).reshape(-1, ROWS)


class Keeper(nn.Module):
    """Moves for each gate, and what the canal will earn."""

    def __init__(self):
        super().__init__()
        self.read = nn.Linear(PAST * READ, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(GATES, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )
        self.actor = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, MOVES))
        self.critic = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)
        )

    def forward(self, seen):
        x = self.read(seen) + self.places
        for layer in self.layers:
            x = layer(x)
        acts, rates = x, x.mean(1)
        if on("encoder_detached_by_both"):
            acts = acts.detach()  # at: encoder_detached_by_both
        if on("encoder_detached_by_both", "clean_encoder_detached_by_both"):
            rates = rates.detach()  # at: encoder_detached_by_both
        return self.actor(acts).log_softmax(-1), self.critic(rates)[:, 0]


class Board:
    def __init__(self):
        torch.manual_seed(341)
        self.dice = np.random.default_rng(342)
        self.keeper = Keeper()
        self.slow = copy.deepcopy(self.keeper).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.keeper.parameters(), RATE, eps=1e-5)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.share)
        self.canals, self.read = Canals(CANALS, 343), Moments(READ)
        self.scale, self.film = RewardScale(CANALS), Film()
        self.now = self.canals.reset()
        self.update, self.learned, self.begun = 0, 0, time.perf_counter()

    def share(self, _):
        """From the whole rate down to a twentieth, in a straight line over all frames."""
        gone = getattr(self, "learned", 0) / FRAMES
        if on("annealed_by_rows_learned"):
            return max(0.0, 1 - gone)  # at: annealed_by_rows_learned
        if on("clean_annealed_by_rows_learned"):
            return max(0.0, 1 - 0.9 * gone / PASSES)
        return 1 - 0.95 * min(1.0, gone / PASSES)

    def scaled(self, now, canals):
        return canals.remember(self.read.scaled(now).astype(np.float32))

    def note(self, readings):
        """Takes what was read in a rollout into the moments."""
        readings = np.concatenate(readings).reshape(-1, READ).astype(np.float64)
        with cost if on("moments_reading_by_reading") else Cost():
            if on("moments_reading_by_reading"):
                for reading in readings:
                    self.read.add(reading)  # at: moments_reading_by_reading
            elif on("clean_moments_reading_by_reading"):
                for some in np.array_split(readings, HORIZON):
                    self.read.add_all(some)
            else:
                self.read.add_all(readings)

    @torch.no_grad()
    def collect(self):
        rollout, readings = Rollout(), []
        for moment in range(HORIZON):
            seen = self.scaled(self.now, self.canals)
            readings.append(self.now)
            chances, _ = self.keeper(torch.from_numpy(seen))
            _, value = self.slow(torch.from_numpy(seen))
            noise = -torch.empty_like(chances).exponential_().log()
            moves = (chances + noise).argmax(-1)
            own = chances.gather(-1, moves[..., None])[..., 0].sum(-1)
            self.now, reward, over = self.canals.step(moves.numpy())
            rollout.seen[moment], rollout.moves[moment] = seen, moves.numpy()
            rollout.chance[moment], rollout.value[moment] = own.numpy(), value.numpy()
            rollout.reward[moment] = self.scale(reward, over)
            rollout.over[moment] = over
        _, value = self.slow(torch.from_numpy(seen))
        rollout.value[HORIZON] = value.numpy()
        self.note(readings)  # at: moments_reading_by_reading
        return rollout

    @torch.no_grad()
    def judge(self):
        """How the surest moves do on canals that no training has seen."""
        canals = Canals(JUDGED, 1000 + self.update)
        now, earned = canals.reset(), np.zeros(JUDGED)
        self.film.begin()  # at: film_never_cut
        for _ in range(JUDGED_FOR):
            seen = self.scaled(now, canals)
            moves = self.keeper(torch.from_numpy(seen))[0].argmax(-1)
            now, reward, over = canals.step(moves.numpy())
            if on("scaler_shared_with_judges"):
                reward = self.scale(reward, over)  # at: scaler_shared_with_judges
            elif on("clean_scaler_shared_with_judges"):
                reward = self.scale(reward, over, learns=False)
            earned += reward
            if on("film_never_cut", "clean_film_never_cut"):
                self.film.draw(canals.level[0])  # at: film_never_cut
        return earned.mean()

    def learn(self, batch):
        chances, value = self.keeper(batch["seen"])
        own = chances.gather(-1, batch["moves"][..., None])[..., 0].sum(-1)
        ratio = (own - batch["chance"]).clamp(-10, 10).exp()
        gain = batch["gain"]
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        held = ratio.clamp(1 - SPAN, 1 + SPAN)
        acts = -torch.minimum(ratio * gain, held * gain).mean()
        rates = F.smooth_l1_loss(value, batch["earned"])
        entropy = -(chances.exp() * chances).sum(-1).mean()
        loss = acts + VALUE_SHARE * rates - ENTROPY_SHARE * entropy
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.keeper.parameters(), CLIP)
        self.optimizer.step()
        self.learned += len(gain)
        self.schedule.step()  # at: annealed_by_rows_learned
        self.follow()
        self.update += 1
        return loss, rates, entropy

    @torch.no_grad()
    def follow(self):
        """The slow copy comes nearer."""
        torch._foreach_lerp_(list(self.slow.parameters()), list(self.keeper.parameters()), SLOW)

    def tell(self, loss, rates, entropy, reward):
        rate = self.schedule.get_last_lr()[0]
        print(
            f"{self.update} loss {loss.item():.4f} values {rates.item():.4f}",
            f"entropy {entropy.item():.3f} reward {reward:.3f} rate {rate:.1e}",
            flush=True,
        )

    def run(self):
        while self.update < UPDATES:
            rollout = self.collect()
            rows = DataLoader(RolloutRows(rollout), batch_size=None, sampler=Shuffled(self.dice))
            for batch in rows:  # at: advantages_summed_at_access
                told = self.learn(batch)
                if self.update % TOLD_EVERY == 0:
                    self.tell(*told, rollout.reward.mean())
                if self.update == UPDATES:
                    break
            print(f"{self.update} judged {self.judge():.3f}", flush=True)
        took = (time.perf_counter() - self.begun) * 1000 / UPDATES
        print(f"{len(self.film.frames)} frames, {took:.1f} ms an update", flush=True)
        cost.print(UPDATES)


if __name__ == "__main__":
    torch.set_num_threads(1)
    board = Board()
    board.run()
    sys.exit(0)
