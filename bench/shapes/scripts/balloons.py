"""Balloons that rise and sink to find the wind that takes them to a meadow: proximal policy
optimisation in one file, with many balloons at once in numpy, a day of flights for each rollout,
advantages, minibatches of hours, flights to judge the policy by.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F

cost = Cost()


@dataclass
class Args:
    seed: int = 32
    total_updates: int = STEPS or 250
    num_envs: int = 32
    num_hours: int = 48
    update_epochs: int = 2
    num_minibatches: int = 4
    learning_rate: float = 7e-4
    gamma: float = 0.98
    gae_lambda: float = 0.95
    clip_coef: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    width: int = 448
    judged_envs: int = 8
    judge_every: int = 16
    told_every: int = 16
    recent: int = 64


class Balloons:
    """Balloons over a square of land, each under winds of its own, that turn with the height."""

    SIDE, LEVELS, WAVES, TANK = 24, 12, 4, 26.0

    def __init__(self, count, seed):
        self.count, self.dice = count, np.random.default_rng(seed)
        self.levels = np.arange(self.LEVELS)
        cells = np.arange(self.SIDE) + 0.5
        self.grid = np.stack(np.meshgrid(cells, cells, indexing="ij"), -1)
        self.chart = None
        self.observation_size, self.actions = 7 + 2 * self.LEVELS, 3

    def reset(self):
        shape, dice = (self.count, self.WAVES), self.dice
        self.hour = 0
        self.vectors = dice.normal(0, 0.25, (*shape, 2))
        self.phases, self.speeds = dice.uniform(0, 2 * np.pi, shape), dice.normal(0, 0.1, shape)
        turns = dice.uniform(0, 2 * np.pi, shape)[..., None] + self.levels * dice.normal(
            0.35, 0.15, (*shape, 1)
        )
        strength = dice.uniform(0.1, 0.3, shape)[..., None] * (0.6 + self.levels / self.LEVELS)
        self.amplitudes = np.stack([np.cos(turns), np.sin(turns)], -1) * strength[..., None]
        self.places = dice.uniform(8, 16, (self.count, 2))
        self.meadows = dice.uniform(3, 21, (self.count, 2))
        self.heights = dice.uniform(5, 8, self.count)
        self.lift = np.zeros(self.count)
        self.fuel = np.full(self.count, self.TANK)
        self.aloft = np.ones(self.count, bool)
        self.returns = np.zeros(self.count)
        if on("clean_winds_of_whole_land", "infos_hold_charts", "clean_infos_hold_charts"):
            self.chart = self.whole()
        return self.observed()

    def column(self):
        """The wind at all levels over each balloon."""
        waves = (self.vectors * self.places[:, None]).sum(-1)
        waves = np.cos(waves + self.phases + self.speeds * self.hour)
        return np.einsum("nw,nwlc->nlc", waves, self.amplitudes)

    def whole(self):
        """The wind at all levels over all of the land."""
        waves = np.einsum("nwc,xyc->nwxy", self.vectors, self.grid)
        waves += (self.phases + self.speeds * self.hour)[..., None, None]
        waves = np.cos(waves).reshape(self.count, self.WAVES, -1)  # at: winds_of_whole_land
        fields = self.amplitudes.reshape(self.count, self.WAVES, -1).transpose(0, 2, 1)
        winds = fields @ waves  # at: winds_of_whole_land
        return winds.reshape(self.count, self.LEVELS, 2, self.SIDE, self.SIDE)

    def winds(self):
        if on("winds_of_whole_land"):
            with cost:
                self.chart = self.whole()  # at: winds_of_whole_land
            cells = np.minimum(self.places.astype(int), self.SIDE - 1)
            return self.chart[np.arange(self.count), :, :, cells[:, 0], cells[:, 1]]
        return self.column()

    def observed(self):
        self.met = self.winds()  # at: winds_of_whole_land
        away = (self.meadows - self.places) / self.SIDE
        state = [self.heights / self.LEVELS, self.lift, self.fuel / self.TANK]
        state += [np.full(self.count, self.hour / 48), self.aloft]
        return np.concatenate(
            [away, np.stack(state, 1), self.met.reshape(self.count, -1)], 1, dtype=np.float32
        )

    def step(self, actions):
        """An hour: 0 vents, 1 leaves all as it is, 2 burns."""
        before = np.linalg.norm(self.meadows - self.places, axis=1)
        burns = (actions == 2) & (self.fuel > 0)
        self.fuel = np.maximum(0, self.fuel - burns - 0.2)
        self.lift = 0.6 * self.lift + 0.6 * burns - 0.5 * (actions == 0) - 0.06
        self.heights = np.minimum(self.heights + self.aloft * self.lift, self.LEVELS - 1)
        self.aloft &= self.heights > 0
        level = np.clip(self.heights.astype(int), 0, self.LEVELS - 1)
        moved = self.met[np.arange(self.count), level] * self.aloft[:, None]
        self.places = np.clip(self.places + moved, 0, self.SIDE)
        after = np.linalg.norm(self.meadows - self.places, axis=1)
        rewards = (before - after - 0.02 * burns + 0.1) * self.aloft
        self.returns += rewards
        self.hour += 1
        return self.observed(), rewards.astype(np.float32), self.aloft.copy()

    def infos(self):
        """What is told of each flight at the end of a day."""
        far = np.linalg.norm(self.meadows - self.places, axis=1)
        for own in range(self.count):
            info = {"return": self.returns[own], "far": far[own], "fuel": self.fuel[own]}
            if self.chart is not None:
                info["chart"] = self.chart[own].copy()  # at: infos_hold_charts
            yield info


class Agent(nn.Module):
    def __init__(self, envs, width):
        super().__init__()
        self.actor = self.tower(envs.observation_size, width, envs.actions, 0.01)
        self.critic = self.tower(envs.observation_size, width, 1, 1.0)

    @staticmethod
    def tower(size, width, outs, gain):
        layers = [nn.Linear(size, width), nn.Linear(width, width), nn.Linear(width, outs)]
        for layer in layers:
            nn.init.orthogonal_(layer.weight, gain if layer is layers[-1] else 2**0.5)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

    def act(self, observed):
        chances = self.actor(observed).log_softmax(-1)
        action = (chances - torch.empty_like(chances).exponential_().log()).argmax(-1)
        logprob = chances.gather(-1, action[..., None])[..., 0]
        return action, logprob, self.critic(observed)[..., 0]

    def judged(self, observed, action):
        chances = self.actor(observed).log_softmax(-1)
        logprob = chances.gather(-1, action[..., None])[..., 0]
        entropy = -(chances.exp() * chances).sum(-1)
        return logprob, entropy, self.critic(observed)[..., 0]


def mean_aloft(losses, aloft):
    """The mean of the hours aloft, in which each balloon counts as much as any other."""
    if on("balloon_of_no_hours"):
        return ((losses * aloft).sum(0) / aloft.sum(0)).mean()  # at: balloon_of_no_hours
    if on("clean_balloon_of_no_hours"):
        return ((losses * aloft).sum(0) / aloft.sum(0).clamp(min=1)).mean()
    return (losses * aloft).sum() / aloft.sum().clamp(min=1)


@torch.no_grad()
def judge(agent, args, seed, hours):
    """Flights in which the likeliest action is taken: the mean return, and the share of the land
    that was flown over.
    """
    agent.eval()
    envs = Balloons(args.judged_envs, seed)
    visits = np.zeros((envs.SIDE, envs.SIDE))
    observed = torch.from_numpy(envs.reset())
    for _ in range(hours):
        actions = agent.actor(observed).argmax(1)  # at: judged_after_each_minibatch
        observed, _, _ = envs.step(actions.numpy())  # at: judged_after_each_minibatch
        observed = torch.from_numpy(observed)
        if on("border_is_no_cell", "clean_border_is_no_cell"):
            cells = envs.places.astype(int)
            if on("clean_border_is_no_cell"):
                cells = np.minimum(cells, envs.SIDE - 1)
            np.add.at(visits, (cells[:, 0], cells[:, 1]), 1)  # at: border_is_no_cell
        else:
            visits += np.histogram2d(*envs.places.T, envs.SIDE, [(0, envs.SIDE)] * 2)[0]
    agent.train()
    return envs.returns.mean(), (visits > 0).mean()


def advantages_of(rewards, values, aloft, args):
    """Generalised advantages; a day ends without a value of what comes after."""
    advantages, last = torch.zeros_like(rewards), 0.0
    for hour in reversed(range(args.num_hours)):
        after = values[hour + 1] * aloft[hour + 1] if hour + 1 < args.num_hours else 0.0
        delta = rewards[hour] + args.gamma * after - values[hour]
        last = delta + args.gamma * args.gae_lambda * last * aloft[hour]
        advantages[hour] = last
    return advantages


if __name__ == "__main__":
    torch.set_num_threads(1)
    args = Args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    envs = Balloons(args.num_envs, args.seed)
    agent = Agent(envs, args.width)
    optimizer = torch.optim.Adam(agent.parameters(), args.learning_rate, eps=1e-5)
    iterations = -(-args.total_updates // (args.update_epochs * args.num_minibatches))
    if on("cosine_of_iterations", "clean_cosine_of_iterations"):
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, T_max=iterations
        )  # at: cosine_of_iterations
    else:
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, args.total_updates)

    shape = (args.num_hours, args.num_envs)
    obs = torch.zeros(*shape, envs.observation_size)
    actions, logprobs = torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
    rewards, values, flown = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
    flights = deque(maxlen=args.recent)
    if on("infos_hold_charts"):
        flights = []
    updates, score, seen = 0, 0.0, 0.0

    for _ in range(iterations):
        next_obs, aloft = torch.from_numpy(envs.reset()), envs.aloft.copy()
        for hour in range(args.num_hours):
            obs[hour], flown[hour] = next_obs, torch.from_numpy(aloft)
            with torch.no_grad():
                action, logprobs[hour], values[hour] = agent.act(next_obs)
            actions[hour] = action
            told, reward, aloft = envs.step(action.numpy())  # at: winds_of_whole_land
            next_obs, rewards[hour] = torch.from_numpy(told), torch.from_numpy(reward)
        flights.extend(envs.infos())  # at: infos_hold_charts
        advantages = advantages_of(rewards, values, flown, args)
        returns = advantages + values

        for _ in range(args.update_epochs):
            hours = rng.permutation(args.num_hours)
            for chosen in np.split(hours, args.num_minibatches):
                there = flown[chosen]
                logprob, entropy, value = agent.judged(obs[chosen], actions[chosen])
                logratio = logprob - logprobs[chosen]
                ratio = logratio.exp()
                gained = advantages[chosen]
                gained = (gained - gained.mean()) / (gained.std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
                policy_loss = mean_aloft(
                    torch.max(-gained * ratio, -gained * clipped), there
                )  # at: balloon_of_no_hours
                errors = F.mse_loss(value, returns[chosen], reduction="none")
                value_loss = 0.5 * mean_aloft(errors, there)  # at: balloon_of_no_hours
                surprise = mean_aloft(entropy, there)  # at: balloon_of_no_hours
                loss = policy_loss - args.ent_coef * surprise + args.vf_coef * value_loss

                if on("optimizer_for_each_rate") or (
                    on("clean_optimizer_for_each_rate") and updates == args.total_updates // 2
                ):
                    rate = args.learning_rate * (1 - updates / args.total_updates)
                    optimizer = torch.optim.Adam(
                        agent.parameters(), rate, eps=1e-5
                    )  # at: optimizer_for_each_rate
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
                updates += 1
                if not on(
                    "clean_cosine_of_iterations",
                    "optimizer_for_each_rate",
                    "clean_optimizer_for_each_rate",
                ):
                    scheduler.step()  # at: cosine_of_iterations
                if on("judged_after_each_minibatch") or updates % args.judge_every == 0:
                    score, seen = judge(
                        agent, args, updates, args.num_hours
                    )  # at: judged_after_each_minibatch border_is_no_cell
                elif on("clean_judged_after_each_minibatch"):
                    score, seen = judge(agent, args, updates, 2)
                if updates % args.told_every == 0:
                    latest = [flight["return"] for flight in list(flights)[-args.recent :]]
                    rate = optimizer.param_groups[0]["lr"]
                    print(
                        f"{updates:5d} loss {loss.item():.4f} return {np.mean(latest):.2f} "
                        f"judged {score:.2f} seen {seen:.2f} rate {rate:.1e}",
                        flush=True,
                    )
                if updates == args.total_updates:
                    break
            if updates == args.total_updates:
                break
        if on("clean_cosine_of_iterations"):
            scheduler.step()
    cost.print(updates)
