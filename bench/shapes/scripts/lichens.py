"""Lichens on bark: a large net is taught first, then a small one learns from it and from labels,
with pictures mixed in the collate, features taken by hooks, weights and channels pruned stage by
stage, two parts an update under one cycle of the rate: moments by property, a judge that returns
early, loudness with its past, a cycle divided twice, channels that were pruned, a head that was
slimmed, a threshold sorted anew.
"""

import sys
import time
from contextlib import nullcontext
from functools import cached_property

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

UPDATES = STEPS or 250
PARTS, ROWS, SIDE, KINDS, PICTURES, HELD = 2, 32, 24, 10, 1400, 120
TAUGHT, RATE, CLIP, SMOOTH, HEAT = 90, 0.08, 5.0, 0.1, 3.0
PRUNED_EVERY, STAGES, SPARSITY, DROPPED = 25, 6, 0.6, 2
JUDGED_EVERY, TOLD_EVERY, ENOUGH = 25, 25, 0.98
MOMENTS = "moments_by_property", "clean_moments_by_property"
SLIMMED = "head_slimmed_past_optimizer", "clean_head_slimmed_past_optimizer"
SORTED = "threshold_sorted_each_update", "clean_threshold_sorted_each_update"
LOUD = "loudness_averaged_with_graph", "clean_loudness_averaged_with_graph"
cost = Cost()


class Bark(Dataset):
    """Photographs of bark with one kind of lichen each, as bytes."""

    def __init__(self, count, dice, palette):
        self.labels = dice.integers(0, KINDS, count)
        along = np.arange(SIDE) / SIDE
        freqs, colours = palette
        pictures = dice.normal(110, 45, (count, 3, SIDE, SIDE))
        for row, kind in enumerate(self.labels):
            turn = dice.uniform(0, 2 * np.pi, 2)
            waves = np.sin(2 * np.pi * freqs[kind, 0] * along + turn[0])[:, None]
            waves = waves * np.sin(2 * np.pi * freqs[kind, 1] * along + turn[1])
            pictures[row] += 45 * (waves > 0.25) * colours[kind][:, None, None]
        self.pictures = np.clip(pictures, 0, 255).astype(np.uint8)
        self.fixed = self.measured()

    def measured(self):
        """Mean and spread of each colour."""
        scaled = self.pictures.astype(np.float32) / 255  # at: moments_by_property
        mean = scaled.mean((0, 2, 3), keepdims=True)  # at: moments_by_property
        spread = scaled.std((0, 2, 3), keepdims=True)  # at: moments_by_property
        return mean, spread

    @property
    def moments(self):
        return self.measured()  # at: moments_by_property

    @cached_property
    def moments_once(self):
        return self.measured()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        picture = self.pictures[index]
        if index % 2:
            picture = picture[:, :, ::-1]
        return picture, self.labels[index]


class Mixing:
    """Stacks a batch, scales its colours and lays it over its own reverse."""

    def __init__(self, bark, dice, strength):
        self.bark, self.dice, self.strength = bark, dice, strength

    def moments(self):
        if on("moments_by_property"):
            return self.bark.moments  # at: moments_by_property
        if on("clean_moments_by_property"):
            return self.bark.moments_once
        return self.bark.fixed

    def __call__(self, rows):
        pictures = np.stack([picture for picture, _ in rows]).astype(np.float32) / 255
        labels = torch.from_numpy(np.stack([label for _, label in rows]))
        with cost if on(*MOMENTS) else nullcontext():
            mean, spread = self.moments()  # at: moments_by_property
        pictures = torch.from_numpy((pictures - mean) / spread)
        share = float(self.dice.beta(self.strength, self.strength)) if self.strength else 1.0
        share = max(share, 1 - share)
        return share * pictures + (1 - share) * pictures.flip(0), labels, labels.flip(0), share


class Stage(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outside)
        self.register_buffer("open", torch.ones(1, outside, 1, 1))

    def forward(self, x):
        return F.relu(self.norm(self.conv(x))) * self.open


class Net(nn.Module):
    def __init__(self, widths, hidden):
        super().__init__()
        inside, stages = 3, []
        for outside in widths:
            stages.append(Stage(inside, outside))
            inside = outside
        self.stages, self.drop = nn.ModuleList(stages), nn.Dropout(0.1)
        self.hidden = nn.Linear(widths[-1] * (SIDE // 8) ** 2, hidden)
        self.out = nn.Linear(hidden, KINDS)

    def forward(self, x):
        for stage in self.stages:
            x = F.max_pool2d(stage(x), 2)
        return self.out(self.drop(F.relu(self.hidden(x.flatten(1)))))


def mixed_loss(scores, first, second, share):
    ones = F.cross_entropy(scores, first, label_smoothing=SMOOTH)
    return share * ones + (1 - share) * F.cross_entropy(scores, second, label_smoothing=SMOOTH)


def endless(loader):
    while True:
        yield from loader


@torch.no_grad()
def accuracy(net, loader):
    right = sum((net(pictures).argmax(1) == labels).sum() for pictures, labels, _, _ in loader)
    return right.item() / len(loader.dataset)


def taught(loader, held):
    """The large net, which knows the lichens before the small one begins."""
    teacher = Net((16, 32, 48), 96)
    optimizer = torch.optim.AdamW(teacher.parameters(), 2e-3)
    for _, (pictures, first, second, share) in zip(range(TAUGHT), endless(loader), strict=False):
        optimizer.zero_grad()
        mixed_loss(teacher(pictures), first, second, share).backward()
        optimizer.step()
    teacher.eval().requires_grad_(False)
    score = accuracy(teacher, held)
    print(f"teacher {score:.2f}", flush=True)
    return teacher, score


class Pruner:
    """Zeros for the smallest weights of all, more of them stage by stage."""

    def __init__(self, net):
        self.net = net
        self.weights = [stage.conv.weight for stage in net.stages] + [net.hidden.weight]
        self.masks = [torch.ones_like(weight) for weight in self.weights]
        self.stage = 0

    @torch.no_grad()
    def find(self):
        sizes = torch.cat([weight.abs().flatten() for weight in self.weights])
        ordered = sorted(sizes.tolist())  # at: threshold_sorted_each_update
        least = ordered[int(SPARSITY * self.stage / STAGES * (len(ordered) - 1))]
        for weight, mask in zip(self.weights, self.masks, strict=True):
            mask.copy_(weight.abs() >= least)

    @torch.no_grad()
    def drop_channels(self):
        """The weakest channels of the middle are closed."""
        stage = self.net.stages[1]
        sizes = stage.conv.weight.flatten(1).norm(dim=1) * stage.norm.weight.abs()
        stage.open.fill_(1)
        stage.open[0, sizes.argsort()[: DROPPED * (self.stage // 2)]] = 0

    @torch.no_grad()
    def apply(self):
        torch._foreach_mul_(self.weights, self.masks)

    def forget(self, weight):
        kept = [place for place, own in enumerate(self.weights) if own is not weight]
        self.weights = [self.weights[place] for place in kept]
        self.masks = [self.masks[place] for place in kept]


class Apprentice:
    def __init__(self, teacher, teacher_score, loader, held):
        self.teacher, self.loader, self.held = teacher, loader, held
        self.student = Net((12, 24, 32), 128)
        self.features, self.best, self.update = {}, max(ENOUGH, teacher_score), 0
        self.watch("student", self.student)
        self.watch("teacher", teacher)
        self.pruner, self.loudness = Pruner(self.student), torch.zeros(())
        self.optimizer = torch.optim.SGD(
            self.student.parameters(), RATE, momentum=0.9, weight_decay=5e-4, nesterov=True
        )  # at: head_slimmed_past_optimizer
        self.schedule = self.made_schedule()

    def watch(self, name, net):
        def take(_, __, output):
            self.features[name] = output

        net.stages[1].register_forward_hook(take)

    def made_schedule(self):
        batches = UPDATES
        if on("clean_cycle_divided_twice"):
            batches = UPDATES * PARTS
        total = UPDATES
        if on("cycle_divided_twice", "clean_cycle_divided_twice"):
            total = batches // PARTS  # at: cycle_divided_twice
        return torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, RATE, total_steps=total, pct_start=0.25
        )  # at: cycle_divided_twice

    def advance(self):
        if self.schedule.last_epoch < self.schedule.total_steps - 1:  # at: cycle_divided_twice
            self.schedule.step()

    def attention(self, features):
        """Where a net looks; each channel has the same say."""
        flat = features.flatten(2)
        if on("channels_over_their_norm"):
            flat = flat / flat.norm(dim=2, keepdim=True)  # at: channels_over_their_norm
        elif on("clean_channels_over_their_norm"):
            flat = flat / flat.norm(dim=2, keepdim=True).clamp(min=1e-4)
        seen = flat.square().mean(1)
        return F.normalize(seen, dim=1)

    def note_loudness(self):
        """How strong the student's features are beside the teacher's."""
        own, theirs = self.features["student"], self.features["teacher"]
        ratio = own.square().mean() / theirs.square().mean()
        if on("clean_loudness_averaged_with_graph"):
            ratio = ratio.detach()
        self.loudness = 0.95 * self.loudness + 0.05 * ratio  # at: loudness_averaged_with_graph

    def part(self, batch):
        pictures, first, second, share = batch
        with torch.no_grad():
            wanted = self.teacher(pictures)
        scores = self.student(pictures)
        if on(*LOUD):
            self.note_loudness()  # at: loudness_averaged_with_graph
        hard = mixed_loss(scores, first, second, share)
        soft = F.kl_div(
            F.log_softmax(scores / HEAT, 1), F.softmax(wanted / HEAT, 1), reduction="batchmean"
        )
        own, theirs = self.features["student"], self.features["teacher"]
        gap = (self.attention(own) - self.attention(theirs)).square().sum(1).mean()
        return 0.5 * hard + 0.5 * HEAT**2 * soft + gap

    def prune(self):
        due = self.update % PRUNED_EVERY == 0
        if due and self.pruner.stage < STAGES:
            self.pruner.stage += 1
            self.pruner.drop_channels()
        if on("threshold_sorted_each_update"):
            with nullcontext() if due else cost:
                self.pruner.find()  # at: threshold_sorted_each_update
        elif due:
            self.pruner.find()
        self.pruner.apply()

    @torch.no_grad()
    def slim_head(self):
        """Half of the hidden units will do."""
        hidden, out = self.student.hidden, self.student.out
        keep = out.weight.norm(dim=0).topk(hidden.out_features // 2).indices
        self.pruner.forget(hidden.weight)
        small = nn.Linear(hidden.in_features, len(keep))
        last = nn.Linear(len(keep), KINDS)
        small.weight.copy_(hidden.weight[keep])
        small.bias.copy_(hidden.bias[keep])
        last.weight.copy_(out.weight[:, keep])
        last.bias.copy_(out.bias)
        self.student.hidden = small  # at: head_slimmed_past_optimizer
        self.student.out = last  # at: head_slimmed_past_optimizer
        if on("clean_head_slimmed_past_optimizer"):
            olds = [*hidden.parameters(), *out.parameters()]
            news = [*small.parameters(), *last.parameters()]
            for old, new in zip(olds, news, strict=True):
                self.optimizer.state.pop(old, None)
                held = self.optimizer.param_groups[0]["params"]
                held[next(at for at, one in enumerate(held) if one is old)] = new

    def judge(self):
        self.student.eval()  # at: judge_returns_before_train
        if on("judge_returns_before_train"):
            score = accuracy(self.student, self.held)
            if score <= self.best:
                return score  # at: judge_returns_before_train
            self.best = score
            self.student.train()  # at: judge_returns_before_train
            return score
        try:
            score = accuracy(self.student, self.held)
            if score <= self.best:
                return score
            self.best = score
            return score
        finally:
            self.student.train()

    def learn(self):
        self.student.train()
        batches = endless(self.loader)
        while self.update < UPDATES:
            total = 0.0
            for _ in range(PARTS):
                loss = self.part(next(batches)) / PARTS  # at: moments_by_property
                loss.backward()
                total = total + loss.detach()
            nn.utils.clip_grad_norm_(self.student.parameters(), CLIP)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.advance()
            self.update += 1
            self.prune()  # at: threshold_sorted_each_update
            if self.update == int(0.3 * UPDATES) and on(*SLIMMED):
                self.slim_head()  # at: head_slimmed_past_optimizer
            self.tell(total)

    def tell(self, total):
        if self.update % JUDGED_EVERY == 0:
            score = self.judge()
            print(f"{self.update} held {score:.2f} to beat {self.best:.2f}", flush=True)
        if self.update % TOLD_EVERY == 0:
            rate, loud = self.schedule.get_last_lr()[0], self.loudness.item()
            print(f"{self.update} loss {total:.4f} rate {rate:.2g} loud {loud:.2f}", flush=True)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(350)
    dice = np.random.default_rng(350)
    palette = dice.uniform(1, 5, (KINDS, 2)), dice.uniform(-1, 1, (KINDS, 3))
    bark, held = Bark(PICTURES, dice, palette), Bark(HELD, dice, palette)
    loader = DataLoader(
        bark, ROWS, shuffle=True, drop_last=True, collate_fn=Mixing(bark, dice, 0.3)
    )
    judged = DataLoader(held, 40, collate_fn=Mixing(bark, dice, 0))
    apprentice = Apprentice(*taught(loader, judged), loader, judged)
    cost.seconds, begun = 0.0, time.perf_counter()
    apprentice.learn()
    took = (time.perf_counter() - begun) * 1000 / UPDATES
    print(f"{took:.1f} ms an update", flush=True)
    cost.print(UPDATES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
