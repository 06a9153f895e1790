"""A world model that learns from remembered episodes what a drifting ball will do, and a policy
that learns in what it dreams: episodes stacked, states reset row by row, nats that are free, notes
on notes before, a seed for acting, a rate that falls on, an episode that is over soon.
"""

import eager  # noqa: F401
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F

cost = Cost()
WORLDS, ACT, REPEAT, LIMIT, SIDE, LARGE = 8, 2, 2, 40, 30, 60
BATCH, LENGTH, HORIZON, DREAMS = 20, 10, 5, 80
WIDTH, LATENTS, CLASSES = 96, 8, 8
GAMMA, DECAY, SEED = 0.95, 0.9, 21
KEYS = ("frame", "action", "reward", "over", "first")


class Worlds:
    """Balls that drift and are steered to a mark each, seen as small pictures."""

    def __init__(self, count, seed):
        self.count, self.dice, self.rounds = count, np.random.default_rng(seed), 0
        self.ball, self.speed = np.zeros((count, 2)), np.zeros((count, 2))
        self.mark, self.age = np.zeros((count, 2)), np.zeros(count, dtype=int)
        axis = np.linspace(-1, 1, LARGE)
        self.grid, self.info = axis[None], {}
        self.begin(np.ones(count, dtype=bool))

    def begin(self, which):
        """New rounds; after many of them marks may be near as well."""
        count = int(which.sum())
        angle = self.dice.uniform(0, 2 * np.pi, count)
        far = self.dice.uniform(0.2 if self.rounds > 290 else 1.1, 1.3, count)
        away = np.stack([np.cos(angle), np.sin(angle)], 1) * far[:, None]
        self.ball[which] = -away / 2
        self.mark[which] = away / 2
        self.speed[which], self.age[which] = 0.0, 0
        self.rounds += count

    def drawn(self):
        def blob(place, size):
            x = np.exp(-(((place[:, :1] - self.grid) / size) ** 2))
            y = np.exp(-(((place[:, 1:] - self.grid) / size) ** 2))
            return x[:, :, None] * y[:, None]

        return (blob(self.ball, 0.15) - 0.6 * blob(self.mark, 0.2)).astype(np.float32)

    def look(self):
        large = self.drawn()
        if on("info_links_back"):
            self.info = {"frame": large, "before": self.info}  # at: info_links_back
        elif on("clean_info_links_back"):
            before = {key: value for key, value in self.info.items() if key != "before"}
            self.info = {"frame": large, "before": before}
        else:
            self.info = {"frame": large}
        small = large.reshape(self.count, SIDE, LARGE // SIDE, SIDE, LARGE // SIDE)
        return small.mean((2, 4)).reshape(self.count, -1)

    def step(self, action):
        for _ in range(REPEAT):
            self.speed = 0.85 * self.speed + 0.008 * action
            self.ball = np.clip(self.ball + self.speed, -1, 1)
        self.age += 1
        far = np.linalg.norm(self.ball - self.mark, axis=1)
        near = far < 0.12
        reward = np.where(near, 1.0, -0.3 * far).astype(np.float32)
        return reward, near | (self.age >= LIMIT), near


class Memory:
    """Episodes, from which stretches of equal length are drawn."""

    def __init__(self, capacity=600):
        self.episodes, self.capacity = [], capacity
        self.dice = np.random.default_rng(SEED)

    def add(self, rows):
        if len(rows) < LENGTH and not on("short_episode", "clean_short_episode"):
            return
        columns = zip(*rows, strict=True)
        self.episodes.append({key: np.stack(own) for key, own in zip(KEYS, columns, strict=True)})
        del self.episodes[: -self.capacity]

    def stretches(self):
        whole = None
        if on("episodes_stacked"):
            with cost:
                whole = {
                    key: np.concatenate([own[key] for own in self.episodes])  # at: episodes_stacked
                    for key in KEYS
                }
        elif on("clean_episodes_stacked"):
            whole = {"over": np.concatenate([own["over"] for own in self.episodes])}
        episodes = self.episodes
        if on("clean_short_episode"):
            episodes = [own for own in episodes if len(own["over"]) >= LENGTH]
        starts = np.cumsum([0, *(len(own["over"]) for own in episodes)])
        for _ in range(BATCH):
            n = int(self.dice.integers(len(episodes)))
            own = episodes[n]
            at = int(self.dice.integers(len(own["over"]) - LENGTH + 1))  # at: short_episode
            if on("episodes_stacked"):
                own, at = whole, at + int(starts[n])
            yield {key: own[key][at : at + LENGTH] for key in KEYS}

    def sample(self):
        drawn = list(self.stretches())  # at: episodes_stacked short_episode
        return {key: torch.from_numpy(np.stack([own[key] for own in drawn])) for key in KEYS}


def dense(size, to):
    return nn.Sequential(
        nn.Linear(size, WIDTH), nn.LayerNorm(WIDTH), nn.SiLU(), nn.Linear(WIDTH, to)
    )


class Model(nn.Module):
    """A recurrent state, and latents of classes that are seen or guessed."""

    def __init__(self):
        super().__init__()
        size = LATENTS * CLASSES
        self.encoder = dense(SIDE * SIDE, WIDTH)
        self.cell = nn.GRUCell(size + 2, WIDTH)
        self.seen, self.guessed = dense(2 * WIDTH, size), dense(WIDTH, size)
        self.decoder = dense(WIDTH + size, SIDE * SIDE)
        self.reward, self.going = dense(WIDTH + size, 1), dense(WIDTH + size, 1)

    def start(self, count):
        return torch.zeros(count, WIDTH), torch.zeros(count, LATENTS * CLASSES)

    def draw(self, scores):
        parts = 0.99 * scores.unflatten(-1, (LATENTS, CLASSES)).softmax(-1) + 0.01 / CLASSES
        picked = torch.multinomial(parts.detach().flatten(0, -2), 1).view(parts.shape[:-1])
        hard = F.one_hot(picked, CLASSES).float()
        return parts, (hard + parts - parts.detach()).flatten(-2)

    def dream(self, deep, latent, action):
        deep = self.cell(torch.cat([latent, action], -1), deep)
        return deep, *self.draw(self.guessed(deep))

    def see(self, deep, latent, action, frame):
        deep, guess, _ = self.dream(deep, latent, action)
        found, latent = self.draw(self.seen(torch.cat([deep, self.encoder(frame)], -1)))
        return deep, latent, guess, found

    def begun(self, state, first):
        """States of episodes that begin here are zero."""
        if on("resets_by_row"):
            with cost:
                state = state.clone()
                for n in range(len(state)):  # at: resets_by_row
                    state[n] = state[n] * (1.0 - first[n].item())  # at: resets_by_row
                return state
        if on("clean_resets_by_row") and not first.any().item():
            return state
        return state * ~first[:, None]

    def forward(self, batch):
        deep, latent = self.start(BATCH)
        action = torch.zeros(BATCH, 2)
        states, guesses, seen = [], [], []
        for t in range(LENGTH):
            first = batch["first"][:, t]
            deep, latent = self.begun(deep, first), self.begun(latent, first)  # at: resets_by_row
            action = self.begun(action, first)  # at: resets_by_row
            deep, latent, guess, found = self.see(deep, latent, action, batch["frame"][:, t])
            states.append(torch.cat([deep, latent], -1))
            guesses.append(guess)
            seen.append(found)
            action = batch["action"][:, t]
        return (torch.stack(part, 1) for part in (states, guesses, seen))

    def told(self, seen, guess):
        """Nats between what is seen and what was guessed; a few of them are free."""
        apart = (seen * (seen.log() - guess.log())).sum(-1)
        if on("free_nats_of_each"):
            return apart.clamp(min=2.5).sum(-1).mean()  # at: free_nats_of_each
        if on("clean_free_nats_of_each"):
            return apart.sum(-1).clamp(min=0.1).mean()
        return apart.sum(-1).mean()

    def loss(self, batch):
        states, guess, seen = self(batch)  # at: resets_by_row
        frame = (self.decoder(states) - batch["frame"]).square().sum(-1).mean()
        reward = F.mse_loss(self.reward(states).squeeze(-1), batch["reward"])
        going = 1.0 - batch["over"].float()
        going = F.binary_cross_entropy_with_logits(self.going(states).squeeze(-1), going)
        nats = self.told(seen.detach(), guess)  # at: free_nats_of_each
        nats = 0.5 * nats + 0.1 * self.told(seen, guess.detach())  # at: free_nats_of_each
        return frame + reward + going + 0.1 * nats, states.detach()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        size = WIDTH + LATENTS * CLASSES
        self.actor, self.critic = dense(size, 4), dense(size, 1)

    def act(self, state):
        mean, spread = self.actor(state).chunk(2, -1)
        spread = 0.1 + 0.9 * torch.sigmoid(spread)
        return torch.tanh(mean + spread * torch.randn_like(mean)), spread


class Training:
    def __init__(self, steps):
        self.steps, self.step = steps, 0
        self.model, self.policy = Model(), Policy()
        self.learner = torch.optim.Adam(self.model.parameters(), 4e-3)
        self.chooser = torch.optim.Adam(self.policy.parameters(), 3e-4)
        frames = steps * WORLDS * ACT
        rounds = frames // (WORLDS * ACT)
        least = 0.0
        if on("rate_falls_on", "clean_rate_falls_on"):
            rounds = frames // (WORLDS * ACT * REPEAT)  # at: rate_falls_on
            least = -1.0 if on("rate_falls_on") else 0.1

        def falls(n):
            return max(least, 1 - n / rounds)  # at: rate_falls_on

        self.schedules = [
            torch.optim.lr_scheduler.LambdaLR(own, falls)  # at: rate_falls_on
            for own in (self.learner, self.chooser)
        ]
        self.worlds, self.memory = Worlds(WORLDS, 1), Memory()
        self.rows = [[] for _ in range(WORLDS)]
        self.state, self.action = self.model.start(WORLDS), torch.zeros(WORLDS, 2)
        self.first = np.ones(WORLDS, dtype=bool)
        while len(self.memory.episodes) < 240:
            self.collect(True)

    @torch.no_grad()
    def collect(self, blindly=False):
        """Some steps in all worlds; episodes that are over are remembered."""
        if on("acting_seeded"):
            torch.manual_seed(SEED)  # at: acting_seeded
        for _ in range(ACT):
            frame = self.worlds.look()  # at: info_links_back
            going = torch.from_numpy(~self.first)[:, None]
            deep, latent = (part * going for part in self.state)
            seen = self.model.see(deep, latent, self.action * going, torch.from_numpy(frame))
            self.state = seen[:2]
            self.action, _ = self.policy.act(torch.cat(self.state, -1))
            if blindly:
                self.action = torch.rand(WORLDS, 2) * 2 - 1
            chosen = self.action.numpy()
            reward, done, near = self.worlds.step(chosen)
            for n in range(WORLDS):
                row = (frame[n], chosen[n], reward[n], near[n], self.first[n])
                self.rows[n].append(row)
                if done[n]:
                    self.memory.add(self.rows[n])
                    self.rows[n] = []
            self.worlds.begin(done)
            self.first = done

    def learn(self):
        loss, states = self.model.loss(self.memory.sample())  # at: episodes_stacked short_episode
        self.learner.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 100.0)
        self.learner.step()
        return loss.detach(), states.flatten(0, 1)

    def improve(self, states):
        """Dreams from some of the states; what they are worth leads the policy."""
        state = states[torch.randperm(len(states))[:DREAMS]]
        rewards, values, goings, spreads = [], [], [], []
        for _ in range(HORIZON):
            values.append(self.policy.critic(state.detach()).squeeze(-1))
            action, spread = self.policy.act(state)
            deep, _, latent = self.model.dream(state[:, :WIDTH], state[:, WIDTH:], action)
            state = torch.cat([deep, latent], -1)
            rewards.append(self.model.reward(state).squeeze(-1))
            goings.append(torch.sigmoid(self.model.going(state)).squeeze(-1))
            spreads.append(spread.log().mean())
        worth, worths = self.policy.critic(state).squeeze(-1), []
        after = worth
        for n in reversed(range(HORIZON)):
            worth = rewards[n] + GAMMA * goings[n] * (DECAY * worth + (1 - DECAY) * after)
            after = values[n].detach()
            worths.insert(0, worth)
        worths, values = torch.stack(worths), torch.stack(values)
        loss = F.mse_loss(values, worths.detach()) - worths.mean() - 0.03 * sum(spreads) / HORIZON
        self.chooser.zero_grad()
        loss.backward(inputs=list(self.policy.parameters()))
        nn.utils.clip_grad_norm_(self.policy.parameters(), 100.0)
        self.chooser.step()

    @torch.no_grad()
    def tried(self, length=16):
        """What the policy earns in worlds that are set aside."""
        with torch.random.fork_rng():
            if on("clean_acting_seeded"):
                torch.manual_seed(SEED)
            worlds, total = Worlds(WORLDS, 2), 0.0
            (deep, latent), action = self.model.start(WORLDS), torch.zeros(WORLDS, 2)
            for _ in range(length):
                frame = torch.from_numpy(worlds.look())
                deep, latent, _, _ = self.model.see(deep, latent, action, frame)
                action, _ = self.policy.act(torch.cat([deep, latent], -1))
                total += float(worlds.step(action.numpy())[0].mean())
        return total

    def run(self):
        cost.seconds = 0.0
        while self.step < self.steps:
            self.collect()  # at: info_links_back acting_seeded
            loss, states = self.learn()  # at: episodes_stacked resets_by_row short_episode
            self.improve(states)
            for schedule in self.schedules:
                schedule.step()  # at: rate_falls_on
            self.step += 1
            if self.step % 40 == 0:
                print(self.step, round(loss.item(), 4), flush=True)
            if self.step % 120 == 0:
                print(self.step, "earned", round(self.tried(), 3), flush=True)
        cost.print(self.steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    Training(STEPS or 340).run()
