"""Tapestries thread by thread: a decoder over the colours of woven rows, sharded by FSDP2 over two
ranks, two parts an update, a precision for each purpose, clipped by the norm over all shards, saved
by torch.distributed.checkpoint where it is best: a board of weights that are gathered, a preview
woven by a thread, the best told by each rank, a sum of shards that is put off, a rate told parts
for updates, firings kept by a hook, a mean over no threads.
"""

import os
import shutil
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

WORLD = 2
UPDATES = STEPS or 220
COLOURS, PLAIN, CLOTH = 32, 0, 48
BLOCKS, WIDTH, HEADS = 2, 64, 4
PARTS, ROWS, CLOTHS, PLAIN_ORDER = 2, 8, 2400, 160
RATE, FLOOR, WARM, CLIP = 2e-3, 0.0, 10, 1.0
TOLD_EVERY, HELD_EVERY, BOARD_EVERY, BEST_EVERY, BETTER = 25, 100, 5, 10, 0.97
LOOM_SEED = 171
cost = Cost()


def woven(dice):
    """A cloth: a motif that returns, now and then mirrored, with a few threads gone wrong."""
    motif = dice.integers(1, COLOURS, dice.integers(3, 9))
    rows, size = [], 0
    while size < CLOTH + 1:
        turn = motif[::-1] if dice.random() < 0.3 else motif
        rows.append(turn)
        size += len(turn)
    cloth = np.concatenate(rows)[: CLOTH + 1]
    wrong = dice.random(CLOTH + 1) < 0.04
    cloth[wrong] = dice.integers(1, COLOURS, wrong.sum())
    edge = dice.integers(0, 6)
    cloth[:edge] = PLAIN
    return cloth


class Order:
    """The cloths of this rank, batch by batch; one order is of plain cloths."""

    def __init__(self, rank, count, seed):
        dice = np.random.default_rng((LOOM_SEED, seed, rank))
        self.cloths = np.stack([woven(dice) for _ in range(count)])
        self.dice = dice

    def batches(self, plain=None):
        number = 0
        while True:
            order = self.dice.permutation(len(self.cloths))
            for begin in range(0, len(order) - ROWS + 1, ROWS):
                batch = self.cloths[order[begin : begin + ROWS]]
                number += 1
                if number == plain:
                    batch = np.full_like(batch, PLAIN)
                yield torch.from_numpy(batch)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.back = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        rows, size, _ = x.shape
        parts = self.mixed(self.before(x)).view(rows, size, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.back(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.between(x))))


class Weaver(nn.Module):
    def __init__(self):
        super().__init__()
        self.colours = nn.Embedding(COLOURS, WIDTH)
        self.places = nn.Embedding(CLOTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, COLOURS)

    def forward(self, cloth):
        x = self.colours(cloth) + self.places.weight[: cloth.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x).flatten(0, 1))


def sharded(model, mesh):
    precision = MixedPrecisionPolicy(
        param_dtype=torch.float32, reduce_dtype=torch.float32, output_dtype=torch.float32
    )
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=precision)
    return fully_shard(model, mesh=mesh, mp_policy=precision)


class Preview(threading.Thread):
    """Draws the cloth that was seen last, for whoever watches the loom."""

    SHADES = " .:-=+*#%@"

    def __init__(self):
        super().__init__(daemon=True)
        self.cloth, self.asked, self.drawn, self.shown = None, threading.Event(), "", 0

    def draw(self, cloth):
        lines = []
        for row in cloth.tolist():
            line = []
            for colour in row:
                line.append(
                    self.SHADES[colour % len(self.SHADES)] * 2
                )  # at: preview_thread_never_waits
            lines.append("".join(line))
        return "\n".join(lines)

    def run(self):
        while True:  # at: preview_thread_never_waits
            if not on("preview_thread_never_waits"):
                self.asked.wait()
                self.asked.clear()
            if self.cloth is not None:
                self.drawn = self.draw(self.cloth)  # at: preview_thread_never_waits
                self.shown += 1


class Loom:
    def __init__(self, rank, folder):
        self.rank, self.folder, self.update = rank, folder, 0
        torch.manual_seed(LOOM_SEED)
        self.model = sharded(Weaver(), init_device_mesh("cpu", (WORLD,)))
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, RATE, weight_decay=0.01)
        units = (
            UPDATES * PARTS if on("clean_rate_stepped_by_part") else UPDATES
        )  # at: rate_stepped_by_part
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda unit: self.share(unit, units)
        )
        self.saving = dist.new_group(backend="gloo")
        self.order, self.held = Order(rank, CLOTHS, 1), Order(rank, 4 * ROWS, 2)
        self.board, self.window, self.best, self.saved = {}, [], float("inf"), 0
        self.firings = deque(
            maxlen=None if on("firings_kept_by_hook") else BLOCKS * PARTS
        )  # at: firings_kept_by_hook
        if on("firings_kept_by_hook", "clean_firings_kept_by_hook"):
            for block in self.model.blocks:
                block.wide.register_forward_hook(self.note_firing)
        self.preview = None
        if rank == 0 and on("preview_thread_never_waits", "clean_preview_thread_never_waits"):
            self.preview = Preview()
            self.preview.start()

    @staticmethod
    def share(unit, units):
        """Up to the whole rate, and down along a cosine."""
        if unit < WARM:
            return (unit + 1) / WARM
        gone = min(1.0, (unit - WARM) / (units - WARM))
        return FLOOR + (1 - FLOOR) * 0.5 * (1 + np.cos(np.pi * gone))

    def note_firing(self, layer, _, units):
        """Which units a cloth excites, to tell how many of them are idle."""
        self.firings.append(units.detach())  # at: firings_kept_by_hook

    def idle(self):
        if not self.firings:
            return 0.0
        last = list(self.firings)[-BLOCKS:]
        return sum((units < 0).float().mean().item() for units in last) / BLOCKS

    def loss(self, cloth):
        scores, wanted = self.model(cloth[:, :-1]), cloth[:, 1:]
        each = F.cross_entropy(scores, wanted.flatten(), reduction="none")
        if on("mean_of_no_threads", "clean_mean_of_no_threads"):
            there = (wanted.flatten() != PLAIN).float()
            count = there.sum()
            if on("clean_mean_of_no_threads"):
                count = count.clamp(min=1)
            return (each * there).sum() / count  # at: mean_of_no_threads
        return each.mean()

    def clip(self):
        grads = [one.grad for one in self.parameters if one.grad is not None]
        norm = nn.utils.get_total_norm(grads)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        nn.utils.clip_grads_with_norm_(self.parameters, CLIP, norm)
        return norm

    def learn(self, cloths):
        total = 0.0
        for part in range(PARTS):
            if on("sync_never_turned_on"):
                self.model.set_requires_gradient_sync(part == PARTS)  # at: sync_never_turned_on
            elif on("clean_sync_never_turned_on"):
                self.model.set_requires_gradient_sync(part == PARTS - 1)
            loss = self.loss(next(cloths)) / PARTS  # at: mean_of_no_threads
            loss.backward()
            total += loss.item()
            if on("rate_stepped_by_part", "clean_rate_stepped_by_part"):
                self.schedule.step()  # at: rate_stepped_by_part
        norm = self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if not on("rate_stepped_by_part", "clean_rate_stepped_by_part"):
            self.schedule.step()
        self.update += 1
        return total, norm

    def write_board(self):
        """How large the weights are, one by one."""
        if on("weights_gathered_for_board"):
            for name, one in self.model.named_parameters():
                whole = one.detach().full_tensor()  # at: weights_gathered_for_board
                self.board[name] = (
                    whole.square().mean().sqrt().item()
                )  # at: weights_gathered_for_board
        else:
            own = torch._foreach_norm([one.detach().to_local() for one in self.parameters])
            squares = torch.stack(own).square()
            dist.all_reduce(squares)
            for (name, one), square in zip(
                self.model.named_parameters(), squares.tolist(), strict=True
            ):
                self.board[name] = (square / one.numel()) ** 0.5

    def over_ranks(self, value):
        value = torch.tensor(value)
        dist.all_reduce(value)
        return value.item() / WORLD

    def save(self):
        state = {"model": get_model_state_dict(self.model)}
        place = Path(self.folder) / f"update{self.update}"
        dcp.save(state, checkpoint_id=place, process_group=self.saving)  # at: best_by_own_loss
        self.saved += 1

    def keep_best(self):
        """Saves where the loss is lower than it was."""
        mean = sum(self.window) / len(self.window)
        self.window.clear()
        if not on("best_by_own_loss"):
            mean = self.over_ranks(mean)
        if mean < BETTER * self.best:  # at: best_by_own_loss
            self.best = mean
            self.save()  # at: best_by_own_loss

    @torch.no_grad()
    def judge(self):
        self.model.eval()
        cloths = self.held.batches()
        losses = [self.loss(next(cloths)).item() for _ in range(4)]
        self.model.train()
        return self.over_ranks(sum(losses) / len(losses))

    def after(self, loss, norm):
        self.window.append(loss)
        board = on("clean_weights_gathered_for_board") and self.update % BOARD_EVERY == 0
        if board or on("weights_gathered_for_board"):
            with cost:
                self.write_board()  # at: weights_gathered_for_board
        if self.update % TOLD_EVERY == 0:
            mean, rate = self.over_ranks(loss), self.schedule.get_last_lr()[0]
            if self.rank == 0:
                told = (
                    f"loss {mean:.3f} rate {rate:.1e} norm {norm.item():.2f} idle {self.idle():.2f}"
                )
                print(self.update, told, flush=True)
        if on("best_by_own_loss", "clean_best_by_own_loss"):
            if self.update % BEST_EVERY == 0 and self.update > UPDATES // 2:
                self.keep_best()  # at: best_by_own_loss
        elif self.update % HELD_EVERY == 0:
            held = self.judge()
            if self.rank == 0:
                print(self.update, f"held {held:.3f}", flush=True)
            if held < self.best:
                self.best = held
                self.save()

    def watch(self, cloth):
        """Lets the preview draw, if there is one."""
        if self.preview is not None:
            self.preview.cloth = cloth
            if self.update % 50 == 0:
                self.preview.asked.set()

    def run(self):
        plain = None
        if on("mean_of_no_threads", "clean_mean_of_no_threads"):
            plain = PLAIN_ORDER + self.rank
        cloths, begun = self.order.batches(plain), time.perf_counter()
        while self.update < UPDATES:
            loss, norm = self.learn(cloths)
            self.after(loss, norm)
            self.watch(self.order.cloths[:400])
        if self.rank == 0:
            drawn = self.preview.shown if self.preview else 0
            took = (time.perf_counter() - begun) * 1000 / UPDATES
            print(f"saved {self.saved} drawn {drawn}, {took:.1f} ms an update", flush=True)
            cost.print(UPDATES)


def weave(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=WORLD
    )
    loom = Loom(rank, FOLDER)
    loom.run()
    return loom


if __name__ == "__main__":
    FOLDER = tempfile.mkdtemp(prefix="tapestries")
    code = run_ranks(WORLD, weave)
    shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(code)
