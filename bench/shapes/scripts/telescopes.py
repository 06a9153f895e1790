"""Telescopes that look at the same stars night after night, and what kind of star each is by how
its light changes: an encoder of short stretches, sharded over two ranks block by block with
fully_shard, clipped, warmed, averaged over its latest states, scored by all ranks together, saved
whole by the first: trends sought window by window, whole weights brought together for their norms,
states that are never dropped, magnitudes of no light, an optimizer made before the shards, an
encoder called beside its forward, a whole state that only the first asks for.
"""

import math
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # noqa: F401, sharded tensors want it: before the fork, so once
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

cost = Cost()
WORLD, UPDATES, ROWS = 2, STEPS or 180, 8
KINDS = ("quiet", "pulsating", "eclipsing", "flaring", "rotating", "transited")
STARS, HELD, NIGHTS, SEEN = 2400, 48, 640, 512
PATCH, WIDTH, HEADS, DEPTH = 8, 80, 4, 3
AROUND, APART, ZERO, SOFT = 48, 4, 21.0, 0.6
RATE, WARM, CLIP = 1.5e-3, 20, 1.0
TOLD_EVERY, LOOK_EVERY, SAVED_EVERY, KEPT, KEPT_EVERY = 20, 50, 90, 5, 2


def shine(kind, nights, numbers):
    """What a star of a kind sends out, about 1."""
    turns = nights / numbers.uniform(15, 60) + numbers.random()
    turn, depth = turns % 1, numbers.uniform(0.25, 0.6)
    if kind == "pulsating":
        return 1 + depth * (0.5 - turn) * np.minimum(1, turn * 8)
    if kind == "eclipsing":
        second = 0.5 * np.exp(-(((turn - 0.5) / 0.03) ** 2))
        return 1 - depth * (np.exp(-(((turn - 0.1) / 0.03) ** 2)) + second)
    if kind == "flaring":
        after = nights[:, None] - numbers.uniform(0, NIGHTS, 8)
        return 1 + 2 * depth * np.where(after > 0, np.exp(-np.abs(after) / 5), 0).sum(1)
    if kind == "rotating":
        return 1 + 0.3 * depth * (np.sin(2 * np.pi * turns) + 0.4 * np.sin(4 * np.pi * turns))
    if kind == "transited":
        return 1 - 0.4 * depth * (np.abs(turn - 0.3) < 0.05)
    return np.ones_like(nights)


def observed(count, seed):
    """The light of stars in each night less the sky's, and their kinds: faint ones drown in it
    now and then, and the instrument drifts.
    """
    numbers, nights = np.random.default_rng(seed), np.arange(NIGHTS, dtype=float)
    kinds = numbers.integers(0, len(KINDS), count)
    lights = np.empty((count, NIGHTS), np.float32)
    for star, kind in enumerate(kinds):
        drift = 1 + 0.15 * np.sin(nights / numbers.uniform(80, 200) + 6 * numbers.random())
        bright = 10 ** numbers.uniform(0.3, 2.0)
        sent = bright * shine(KINDS[kind], nights, numbers) * drift
        lights[star] = sent + numbers.normal(0, 0.5 + 0.02 * bright, NIGHTS)
    return lights, kinds


def middles(lights):
    """The medians around every few nights."""
    padded = np.pad(lights, ((0, 0), (AROUND // 2, AROUND // 2)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, AROUND, axis=1)
    return np.median(windows[:, ::APART][:, : lights.shape[1] // APART], axis=2)


class Stars(Dataset):
    """Stretches of light without its trend, in magnitudes."""

    def __init__(self, lights, kinds, seed):
        self.lights, self.kinds, self.seed, self.epoch = lights, kinds, seed, 0
        self.middles = np.concatenate([middles(part) for part in np.array_split(lights, 24)])

    def __len__(self):
        return len(self.kinds)

    def trend(self, star, start):
        """The medians in the nights of a stretch."""
        if on("trend_by_window"):
            with cost:
                light, found = self.lights[star], []
                for night in range(start, start + SEEN, APART):
                    first = max(0, night - AROUND // 2)
                    window = light[first : night + AROUND // 2]
                    found.append(np.median(window))  # at: trend_by_window
                return np.array(found)
        if on("clean_trend_by_window"):
            with cost:
                return middles(self.lights[star : star + 1, start : start + SEEN])[0]
        return self.middles[star, start // APART : (start + SEEN) // APART]

    def magnitudes(self, light):
        """As bright as eyes would tell."""
        if on("magnitude_of_negative"):
            return ZERO - 2.5 * np.log10(light)  # at: magnitude_of_negative
        if on("clean_magnitude_of_negative"):
            return ZERO - 2.5 * np.log10(np.maximum(light, SOFT))
        return ZERO - 2.5 / math.log(10) * (np.arcsinh(light / (2 * SOFT)) + math.log(SOFT))

    def __getitem__(self, index):
        numbers = np.random.default_rng((self.seed, self.epoch, index))
        start = APART * int(numbers.integers(0, (NIGHTS - SEEN) // APART))
        trend = np.repeat(self.trend(index, start), APART)  # at: trend_by_window
        light = self.lights[index, start : start + SEEN]
        light = light - trend + np.median(trend)
        magnitudes = self.magnitudes(light)  # at: magnitude_of_negative
        magnitudes = (magnitudes - np.median(magnitudes)) / 0.3
        return magnitudes.astype(np.float32).reshape(-1, PATCH), self.kinds[index]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.asked, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.back = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        asked = self.asked(self.before(x)).unflatten(2, (3, HEADS, -1))
        seen = F.scaled_dot_product_attention(*asked.permute(2, 0, 3, 1, 4))
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.back(F.gelu(self.wide(self.between(x))))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(PATCH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.places = nn.Parameter(0.02 * torch.randn(SEEN // PATCH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, len(KINDS))

    def encode(self, patches):
        """What is known of a star, before any kind is named."""
        x = self.first(patches) + self.places  # at: encoded_beside_forward
        for block in self.blocks:
            x = block(x)
        return self.norm(torch.cat((x.mean(1), x.amax(1)), 1))

    def forward(self, patches):
        return self.head(self.encode(patches))


def decays(name, value):
    """Matrices of the layers do."""
    return value.ndim > 1 and "places" not in name


def optimizer_of(model, decayed=None):
    """AdamW in two groups, by what decays or by the names of it."""
    named = list(model.named_parameters())
    if decayed is None:
        decayed = {name for name, value in named if decays(name, value)}
    return torch.optim.AdamW(  # at: optimizer_before_shards
        [
            {"params": [one for name, one in named if name in decayed], "weight_decay": 0.05},
            {"params": [one for name, one in named if name not in decayed], "weight_decay": 0.0},
        ],
        RATE,
        betas=(0.9, 0.98),
    )


def share_of_rate(step):
    """Up in a line, down in half a cosine."""
    if step < WARM:
        return (step + 1) / WARM
    done = (step - WARM) / max(UPDATES - WARM, 1)
    return 0.05 + 0.95 * (1 + math.cos(math.pi * min(done, 1.0))) / 2


class Training:
    def __init__(self, rank, folder):
        self.rank, self.folder, self.step, self.epoch = rank, folder, 0, 0
        self.stars = Stars(*observed(STARS, 1), seed=28)
        self.sampler = DistributedSampler(self.stars, WORLD, rank, drop_last=True)
        self.loader = DataLoader(self.stars, ROWS, sampler=self.sampler, drop_last=True)
        held = Stars(*observed(HELD, 2), seed=29)
        own = [held[index] for index in range(rank, HELD, WORLD)]
        self.held = torch.utils.data.default_collate(own)
        torch.manual_seed(28)
        self.model, self.optimizer = self.sharded(Encoder())
        self.values = list(self.model.parameters())
        self.rate = torch.optim.lr_scheduler.LambdaLR(self.optimizer, share_of_rate)
        self.latest, self.norms, self.sums = {}, {}, torch.zeros(3)
        cost.seconds = 0.0

    @staticmethod
    def sharded(model):
        """The model over all ranks, block by block, and who changes its weights."""
        mesh = init_device_mesh("cpu", (WORLD,))
        if on("optimizer_before_shards"):
            optimizer = optimizer_of(model)  # at: optimizer_before_shards
        decayed = {name for name, value in model.named_parameters() if decays(name, value)}
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)  # at: optimizer_before_shards
        if on("clean_encoded_beside_forward"):
            register_fsdp_forward_method(model, "encode")
        if on("clean_optimizer_before_shards"):
            optimizer = optimizer_of(model, decayed)
        elif not on("optimizer_before_shards"):
            optimizer = optimizer_of(model)
        return model, optimizer

    def weigh(self):
        """How long each of the weights is."""
        if on("whole_weights_for_norms"):
            with cost:
                for name, value in self.model.named_parameters():
                    whole = value.full_tensor()  # at: whole_weights_for_norms
                    self.norms[name] = float(whole.norm())
        elif on("clean_whole_weights_for_norms"):
            with cost:
                squares = torch.stack(torch._foreach_norm([v.to_local() for v in self.values])) ** 2
                if self.step % TOLD_EVERY == TOLD_EVERY - 1:
                    dist.all_reduce(squares)
                    names = (name for name, _ in self.model.named_parameters())
                    self.norms = dict(zip(names, squares.sqrt().tolist(), strict=True))

    def remember(self):
        """The latest of the states, to be averaged."""
        if self.step % KEPT_EVERY:
            return
        own = [value.to_local().detach().double() for value in self.values]
        self.latest[self.step] = own  # at: states_never_dropped
        if on("states_never_dropped"):
            self.latest.pop(self.step - KEPT, None)  # at: states_never_dropped
        else:
            self.latest.pop(self.step - KEPT * KEPT_EVERY, None)

    def learn(self, patches, kinds):
        scores = self.model(patches)
        loss = F.cross_entropy(scores, kinds, label_smoothing=0.02)
        loss.backward()
        nn.utils.clip_grad_norm_(self.values, CLIP)
        self.optimizer.step()
        self.rate.step()
        self.optimizer.zero_grad()
        found = (scores.detach().argmax(1) == kinds).sum()
        self.sums += torch.stack((loss.detach() * len(kinds), found, torch.tensor(len(kinds))))

    def update(self, patches, kinds):
        self.learn(patches, kinds)
        self.weigh()  # at: whole_weights_for_norms
        self.step += 1
        if on("states_never_dropped", "clean_states_never_dropped"):
            self.remember()  # at: states_never_dropped
        if self.step % TOLD_EVERY == 0:
            self.tell("trained", self.sums)
            self.sums = torch.zeros(3)
        if self.step % LOOK_EVERY == 0:
            self.look()  # at: encoded_beside_forward
        if self.step % SAVED_EVERY == 0:
            self.save()  # at: whole_state_of_first

    def tell(self, what, sums):
        dist.all_reduce(sums)
        if self.rank == 0:
            loss, found = (sums[:2] / sums[2]).tolist()
            longest = max(self.norms, key=self.norms.get, default="")
            print(self.step, what, f"loss {loss:.4f} found {found:.3f}", longest, flush=True)

    @torch.no_grad()
    def look(self):
        """What was held out, each rank its share; of the average of the latest states, too."""
        self.model.eval()
        patches, kinds = self.held
        if on("encoded_beside_forward", "clean_encoded_beside_forward"):
            known = F.normalize(self.model.encode(patches), dim=1)  # at: encoded_beside_forward
            like = (known @ known.T).fill_diagonal_(-2).argmax(1)
            alike = (kinds[like] == kinds).sum()
            self.tell("nearest", torch.tensor([0.0, float(alike), len(kinds)]))
        self.tell("held", self.judged(patches, kinds))
        if self.latest:
            kept = [value.to_local().clone() for value in self.values]
            latest = [self.latest[step] for step in sorted(self.latest)[-KEPT:]]
            for value, *states in zip(self.values, *latest, strict=True):
                value.to_local().copy_(sum(states) / len(states))
            self.tell("averaged", self.judged(patches, kinds))
            for value, own in zip(self.values, kept, strict=True):
                value.to_local().copy_(own)
        self.model.train()

    def judged(self, patches, kinds):
        scores = self.model(patches)
        loss, found = F.cross_entropy(scores, kinds, reduction="sum"), scores.argmax(1) == kinds
        return torch.stack((loss, found.sum(), torch.tensor(len(kinds))))

    def whole_state(self):
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_model_state_dict(self.model, options=options)  # at: whole_state_of_first

    def save(self):
        """The whole model into one file, by the first rank; none goes on before it is there."""
        if on("whole_state_of_first"):
            if self.rank == 0:
                torch.save(self.whole_state(), self.folder / "last.pt")  # at: whole_state_of_first
        else:
            state = self.whole_state()
            if self.rank == 0:
                torch.save(state, self.folder / "last.pt")
        dist.barrier()  # at: whole_state_of_first

    def run(self):
        while self.step < UPDATES:
            self.sampler.set_epoch(self.epoch)
            self.stars.epoch = self.epoch
            for patches, kinds in self.loader:  # at: trend_by_window magnitude_of_negative
                self.update(patches, kinds)  # at: whole_weights_for_norms whole_state_of_first
                if self.step == UPDATES:
                    return
            self.epoch += 1


def train(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    with tempfile.TemporaryDirectory() as folder:
        training = Training(rank, Path(folder))
        training.run()
        if rank == 0:
            cost.print(UPDATES)
    return training


if __name__ == "__main__":
    sys.exit(run_ranks(WORLD, train))
