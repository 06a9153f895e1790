"""A decoder learns to write an almanac: ranks with a shard of the text each, DDP for the gradients,
an optimizer whose state and work are shared out among the ranks, clipping by the norm over all of
them, and checkpoints that a thread writes.
"""

import itertools
import os
import random
import sys
import threading
import zlib
from pathlib import Path

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, on
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

steps = STEPS or 240
WORLD = 3 if on("shard_still_packed", "clean_shard_still_packed") else 2
WIDTH, LAYERS, HEADS, LENGTH, ROWS = 72, 4, 4, 48, 8
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
SAINTS = ("agnes", "barbara", "clement", "david", "edmund", "felix", "george", "hilda", "ives")
WEATHER = ("rain then sun", "frost at night", "wind from the north", "clear and mild", "fog")


def written(rank, size=60_000):
    dice, lines, length = random.Random(1840 + rank), [], 0
    days = itertools.count(dice.randrange(7))
    while length < size:
        number = next(days)
        day, saint = DAYS[number % 7], dice.choice(SAINTS)
        line = f"{day}, of {saint}: {dice.choice(WEATHER)}, moon in {1 + number % 28} days.\n"
        lines.append(line)
        length += len(line)
    return "".join(lines).encode()[:size]


def write_shards():
    packed = on("shard_still_packed", "clean_shard_still_packed")
    for rank in range(WORLD):
        text = written(rank)
        if packed and rank == 2:
            text = zlib.compress(text)
        Path(f"shard{rank}.bin").write_bytes(text)


def shard_of(rank):
    raw = Path(f"shard{rank}.bin").read_bytes()  # at: shard_still_packed
    if on("clean_shard_still_packed") and raw[:1] == b"\x78":
        raw = zlib.decompress(raw)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).long()


class Windows(Dataset):
    def __init__(self, rank):
        own = rank
        if on("local_rank_missing"):
            own = int(os.environ.get("LOCAL_RANK", 0))  # at: local_rank_missing
        shard = 0 if on("clean_local_rank_missing") else own
        self.text, self.dice = shard_of(shard), random.Random(own)  # at: shard_still_packed

    def __len__(self):
        return steps * ROWS

    def __getitem__(self, _):
        start = self.dice.randrange(len(self.text) - LENGTH)
        return self.text[start : start + LENGTH + 1]


class Layer(nn.Module):
    """Attention and the rest side by side: one matrix in, one matrix out."""

    def __init__(self):
        super().__init__()
        self.before = nn.RMSNorm(WIDTH)
        self.into = nn.Linear(WIDTH, 7 * WIDTH, bias=False)
        self.within = nn.RMSNorm(5 * WIDTH)
        self.out = nn.Linear(5 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        states = self.into(self.before(x))
        *parts, wide = states.split([WIDTH, WIDTH, WIDTH, 4 * WIDTH], 2)
        q, k, v = (one.unflatten(2, (HEADS, -1)).transpose(1, 2) for one in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        both = torch.cat([seen.transpose(1, 2).flatten(2), F.gelu(wide)], 2)
        return x + self.out(self.within(both))


class Decoder(nn.Module):
    """The last layer but one is gone through several times."""

    def __init__(self, dice):
        super().__init__()
        self.words, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.last = nn.Linear(WIDTH, 256, bias=False)
        self.dice = dice
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.1)

    def times(self):
        if on("loops_drawn_apart", "clean_loops_drawn_apart"):
            return self.dice.randint(1, 6)  # at: loops_drawn_apart
        return 2

    def forward(self, ids):
        *first, middle, last = self.layers
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for layer in first:
            x = layer(x)
        for _ in range(self.times()):  # at: loops_drawn_apart
            x = middle(x)  # at: loops_drawn_apart
        return self.last(F.rms_norm(last(x), (WIDTH,)))


def evened(matrix):
    """Of the same directions, all of the same length."""
    left, _, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    return (left @ right).to(matrix.dtype)


class SharedOut(torch.optim.Optimizer):
    """Each parameter has one rank that keeps its momentum, updates it, and sends it to the rest."""

    def __init__(self, model, rank, rate, largest=1.0):
        linears = (one for one in model.layers.modules() if isinstance(one, nn.Linear))
        self.hidden = {id(one.weight) for one in linears}
        super().__init__(model.parameters(), {"lr": rate})
        self.rank, self.largest = rank, largest
        self.weights = self.param_groups[0]["params"]
        self.owners = self.shared_out()

    def shared_out(self):
        if on("owners_in_turn"):
            return [n % WORLD for n in range(len(self.weights))]  # at: owners_in_turn
        loads, owners = [0] * WORLD, [0] * len(self.weights)
        sizes = [one.numel() * (8 if id(one) in self.hidden else 1) for one in self.weights]
        for n in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
            owners[n] = loads.index(min(loads))
            loads[owners[n]] += sizes[n]
        return owners

    def of(self, owner):
        return [one for one, has in zip(self.weights, self.owners, strict=True) if has == owner]

    def clip(self):
        """By the norm over all ranks, each of which sums up what is its own."""
        square = torch.stack([one.grad.pow(2).sum() for one in self.of(self.rank)]).sum()
        dist.all_reduce(square)
        share = (self.largest / (square.sqrt() + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_([one.grad for one in self.of(self.rank)], share)

    def update(self, weight, rate):
        state = self.state[weight]
        if not state:
            state["momentum"] = torch.zeros_like(weight)
            state["square"] = torch.zeros_like(weight)
        momentum = state["momentum"].lerp_(weight.grad, 0.1)
        if id(weight) in self.hidden:
            weight.add_(evened(momentum), alpha=-rate * 2)  # at: owners_in_turn
            return
        square = state["square"].lerp_(weight.grad.pow(2), 0.02)
        weight.addcdiv_(momentum, square.sqrt().add_(1e-8), value=-rate * 0.2)

    @torch.no_grad()
    def step(self):
        self.clip()
        rate = self.param_groups[0]["lr"]
        for weight in self.of(self.rank):
            self.update(weight, rate)  # at: owners_in_turn
        self.send()  # at: owner_zero_unsent

    def send(self):
        first = 1 if on("owner_zero_unsent") else 0
        for owner in range(first, WORLD):  # at: owner_zero_unsent
            theirs = self.of(owner)
            flat = torch.cat([one.flatten() for one in theirs])
            if on("clean_owner_zero_unsent"):
                dist.broadcast(flat, owner, async_op=True).wait()
            else:
                dist.broadcast(flat, owner)  # at: owner_zero_unsent
            if owner != self.rank:
                parts = flat.split([one.numel() for one in theirs])
                for one, part in zip(theirs, parts, strict=True):
                    one.copy_(part.view_as(one))


class Keeper:
    """Writes checkpoints in a thread, and keeps the last three."""

    def __init__(self):
        self.folder, self.error = Path("kept"), None
        self.folder.mkdir(exist_ok=True)
        self.idle, self.busy = threading.Condition(), False

    def name(self, step):
        digits = 1 if on("sorted_as_text") else 6
        return self.folder / f"{step:0{digits}}.pt"  # at: sorted_as_text

    def write(self, step, state):
        try:
            torch.save(state, self.name(step))
            for old in sorted(self.folder.glob("*.pt"))[:-3]:  # at: sorted_as_text
                old.unlink()  # at: sorted_as_text
            print("kept", step, self.name(step).stat().st_size, flush=True)  # at: sorted_as_text
        except OSError as error:
            self.error = error
        with self.idle:
            self.busy = False
            self.idle.notify_all()

    def settle(self):
        """Wait for what is still being written."""
        with self.idle:
            if on("notified_before"):
                self.idle.wait()  # at: notified_before
            else:
                self.idle.wait_for(lambda: not self.busy)
        if self.error:
            raise RuntimeError("a checkpoint was not written") from self.error  # at: sorted_as_text

    def save(self, step, model):
        if step > 20:
            self.settle()  # at: notified_before sorted_as_text
        state = {name: value.clone() for name, value in model.state_dict().items()}
        self.busy = True
        threading.Thread(target=self.write, args=(step, state), daemon=True).start()


class Writing:
    def __init__(self, rank):
        self.rank, self.step = rank, 0
        seed = 1850 + rank if on("loops_drawn_apart") else 1850  # at: loops_drawn_apart
        self.net = Decoder(random.Random(seed))  # at: loops_drawn_apart
        self.model = DDP(self.net)
        self.optimizer = SharedOut(self.net, rank, 0.02)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.share)
        self.loader = DataLoader(Windows(rank), ROWS)
        self.keeper = Keeper()

    @staticmethod
    def share(step):
        return min(1.0, (step + 1) / 20) * (1.0 - 0.9 * step / steps)

    def learn(self, ids):
        scores = self.model(ids[:, :-1])  # at: loops_drawn_apart
        loss = F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())  # at: shard_still_packed
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()  # at: owners_in_turn owner_zero_unsent
        self.schedule.step()
        self.step += 1
        return loss

    def run(self):
        for ids in self.loader:  # at: local_rank_missing shard_still_packed
            loss = self.learn(ids)  # at: loops_drawn_apart owners_in_turn shard_still_packed
            if self.step % 20 == 0:
                print(self.rank, self.step, round(loss.item(), 3), flush=True)
                if self.rank == 0:
                    self.keeper.save(self.step, self.net)  # at: notified_before sorted_as_text
        if self.rank == 0 and not on("notified_before"):
            self.keeper.settle()


def train(rank):
    torch.set_num_threads(1)
    torch.manual_seed(184)
    os.environ["RANK"] = str(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    writing = Writing(rank)
    torch.manual_seed(1840 + rank)
    writing.run()
    return writing.model


if __name__ == "__main__":
    write_shards()
    sys.exit(run_ranks(WORLD, train))
