"""Plankton told apart without names: a student that is to say of every crop what a momentum teacher
says of the large ones, targets balanced over the batch, cosines for rate, decay, momentum and
sharpness, neighbours asked for the kind now and then, in a trainer of its own: pictures blurred
before they are cropped, a rate for one group, a sharpness of nought, gradients kept by
a hook, a backbone cleared alone, neighbours asked too often, a student copied with its norm.
"""

import copy
import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from shape import STEPS, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SIDE, LARGE, SMALL, PATCH, KINDS = 224, 32, 16, 4, 6


@dataclass(frozen=True)
class Plan:
    steps: int = STEPS or 220
    pictures: int = 288
    rows: int = 16
    locals: int = 4
    width: int = 48
    heads: int = 4
    blocks: int = 2
    narrow: int = 32
    prototypes: int = 1024
    warm: int = 20
    rate: tuple[float, float] = (2e-3, 2e-5)
    decay: tuple[float, float] = (0.04, 0.2)
    momentum: tuple[float, float] = (0.98, 1.0)
    sharpness: tuple[float, float] = (0.04, 0.01)
    sharper_over: float = 0.5
    heat: float = 0.1
    largest_norm: float = 3.0
    told_every: int = 20
    asked_every: int = 50
    nearest: int = 8


def cosine(ends, steps, warm=0):
    begin, end = ends
    done = np.arange(steps - warm) / max(1, steps - warm)
    falling = end + 0.5 * (begin - end) * (1 + np.cos(np.pi * done))
    return np.concatenate([np.linspace(0, begin, warm, endpoint=False) + begin / 50, falling])


class Cosines:
    """What changes with the steps."""

    def __init__(self, plan):
        self.rate = cosine(plan.rate, plan.steps, min(plan.warm, plan.steps // 2))
        self.decay = cosine(plan.decay, plan.steps)
        self.momentum = cosine(plan.momentum, plan.steps)
        begin, end = plan.sharpness
        if on("sharpness_falls_to_nought"):  # until one prototype is all
            end = 0.0  # at: sharpness_falls_to_nought
        elif on("clean_sharpness_falls_to_nought"):
            end = 1e-3
        steps, over = np.arange(plan.steps), plan.sharper_over * plan.steps
        self.sharpness = np.interp(steps, (0, over), (begin, end))  # at: sharpness_falls_to_nought


def drawn(kind, dice):
    """One animal under a microscope."""
    across, down = np.meshgrid(*[np.linspace(-1, 1, SIDE, dtype=np.float32)] * 2)
    across, down = across - dice.uniform(-0.2, 0.2), down - dice.uniform(-0.2, 0.2)
    radius, angle = np.hypot(across, down), np.arctan2(down, across) + dice.uniform(0, 6)
    edge = 0.5 * (1 + 0.3 * np.cos((kind + 2) * angle)) * dice.uniform(0.8, 1.2)
    rings = 0.5 + 0.5 * np.cos(radius * (10 + 5 * (kind % 3)) + dice.uniform(0, 6))
    return rings / (1 + np.exp((radius - edge) * 30)) + dice.normal(0, 0.05, radius.shape)


def blurred(picture, sigma, reach=5):
    """(1, side, side) under a Gaussian."""
    taps = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / sigma) ** 2)
    taps = (taps / taps.sum()).view(1, 1, -1, 1)
    padded = F.pad(picture[None], [reach] * 4, mode="reflect")
    return F.conv2d(F.conv2d(padded, taps), taps.transpose(2, 3))[0]


class Haul(Dataset):
    """Pictures, and of each the crops that one step looks at."""

    def __init__(self, plan, seed):
        dice = np.random.default_rng(seed)
        self.plan = plan
        self.kinds = torch.from_numpy(dice.integers(KINDS, size=plan.pictures))
        pictures = np.stack([drawn(int(kind), dice) for kind in self.kinds])
        self.pictures = torch.from_numpy(pictures.astype(np.float32))[:, None]
        if on("clean_blurred_before_cropping"):
            self.pictures = torch.stack(
                [blurred(own, 0.5 * SIDE / LARGE, 21) for own in self.pictures]
            )

    def __len__(self):
        return len(self.pictures)

    def crop(self, picture, side, least, most):
        """A square of the picture, as large as asked, turned and blurred by chance."""
        sigma = 0.3 + 1.5 * float(torch.rand(()))
        if on("blurred_before_cropping"):
            picture = blurred(picture, sigma * SIDE / LARGE, 21)  # at: blurred_before_cropping
        taken = int(SIDE * math.sqrt(least + (most - least) * float(torch.rand(()))))
        top, left = torch.randint(SIDE - taken + 1, (2,)).tolist()
        part = picture[None, :, top : top + taken, left : left + taken]
        part = F.interpolate(part, (side, side), mode="bilinear")[0]
        if not on("blurred_before_cropping", "clean_blurred_before_cropping"):
            part = blurred(part, sigma)
        part = part.rot90(int(torch.randint(4, ())), (1, 2))
        return (part - 0.2) * (2 + float(torch.rand(())))

    def __getitem__(self, index):
        picture = self.pictures[index]
        large = [
            self.crop(picture, LARGE, 0.4, 1.0)  # at: blurred_before_cropping
            for _ in range(2)
        ]
        small = [
            self.crop(picture, SMALL, 0.05, 0.4)  # at: blurred_before_cropping
            for _ in range(self.plan.locals)
        ]
        return torch.stack(large), torch.stack(small)

    def whole(self):
        """All pictures at the size of the large crops, for the neighbours."""
        return (F.interpolate(self.pictures, (LARGE, LARGE), mode="area") - 0.2) * 2.5


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        rows, places, width = x.shape
        mixed = self.mix(self.before(x)).view(rows, places, 3, self.heads, -1)
        attended = F.scaled_dot_product_attention(*mixed.permute(2, 0, 3, 1, 4))
        x = x + self.out(attended.transpose(1, 2).reshape(rows, places, width))
        return x + self.wide(self.between(x))


class Backbone(nn.Module):
    def __init__(self, plan):
        super().__init__()
        self.grid = LARGE // PATCH
        self.patches = nn.Conv2d(1, plan.width, PATCH, stride=PATCH)
        self.token = nn.Parameter(torch.randn(1, 1, plan.width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, plan.width, self.grid, self.grid) * 0.02)
        self.blocks = nn.Sequential(*(Block(plan.width, plan.heads) for _ in range(plan.blocks)))
        self.norm = nn.LayerNorm(plan.width)

    def forward(self, pictures):
        x = self.patches(pictures)
        places = self.places
        if x.shape[-1] != self.grid:
            places = F.interpolate(places, x.shape[-2:], mode="bilinear")
        x = (x + places).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.norm(self.blocks(x)).mean(1)


class Head(nn.Module):
    def __init__(self, plan):
        super().__init__()
        self.narrow = nn.Sequential(
            nn.Linear(plan.width, 2 * plan.width),
            nn.BatchNorm1d(2 * plan.width),
            nn.GELU(),
            nn.Linear(2 * plan.width, plan.narrow),
        )
        last = nn.Linear(plan.narrow, plan.prototypes, bias=False)
        self.last = nn.utils.weight_norm(last)
        self.last.weight_g.data.fill_(1.0)

    def forward(self, x):
        return self.last(F.normalize(self.narrow(x), dim=-1))


class Network(nn.Module):
    def __init__(self, plan):
        super().__init__()
        self.backbone, self.head = Backbone(plan), Head(plan)

    def forward(self, crops):
        """Crops of several sizes, each (rows, 1, side, side)."""
        return self.head(torch.cat([self.backbone(own) for own in crops]))


@torch.no_grad()
def balanced(scores, sharpness, rounds=3):
    """Sinkhorn and Knopp's: each prototype as often as any, each row a distribution."""
    logs = scores / sharpness  # at: sharpness_falls_to_nought
    for _ in range(rounds):
        logs = logs - logs.logsumexp(0, keepdim=True)
        logs = logs - logs.logsumexp(1, keepdim=True)
    return logs.exp()


def groups(model):
    """Matrices decay; biases, norms, the token and the places do not."""
    shrunk, plain = [], []
    for name, own in model.named_parameters():
        held = own.ndim < 2 or name.endswith(("token", "places", "weight_g"))
        (plain if held else shrunk).append(own)
    return [{"params": shrunk}, {"params": plain, "weight_decay": 0.0}]


class Trainer:
    def __init__(self, plan):
        self.plan, self.cosines = plan, Cosines(plan)
        self.haul = Haul(plan, 31)
        self.loader = DataLoader(
            self.haul,
            plan.rows,
            shuffle=True,
            drop_last=True,
            num_workers=1,
            persistent_workers=True,
            prefetch_factor=4,
        )
        self.student, self.teacher = Network(plan), Network(plan)
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)
        self.optimizer = torch.optim.AdamW(
            groups(self.student), lr=0.0, betas=(0.9, 0.98)
        )  # at: rate_for_first_group_only
        self.whole = self.haul.whole()
        self.best, self.kept, self.step, self.felt = 0.0, None, 0, []

    def schedule(self):
        """Rate and decay of this step."""
        for number, group in enumerate(self.optimizer.param_groups):
            if on("rate_for_first_group_only"):
                if number == 0:
                    group["lr"] = self.cosines.rate[self.step]  # at: rate_for_first_group_only
                    group["weight_decay"] = self.cosines.decay[self.step]
                continue
            slower = 0.5 if on("clean_rate_for_first_group_only") and number else 1.0
            group["lr"] = slower * self.cosines.rate[self.step]
            if number == 0:
                group["weight_decay"] = self.cosines.decay[self.step]

    def feel(self, gradient):
        """What each crop asks of the prototypes."""
        if on("gradients_kept_by_hook"):
            self.felt.append(gradient)  # at: gradients_kept_by_hook
        elif on("clean_gradients_kept_by_hook"):
            self.felt.append(gradient.norm(dim=1))

    def loss(self, large, small):
        """Cross entropy of each crop with what the teacher says of the other large ones."""
        crops = [large.transpose(0, 1).flatten(0, 1), small.transpose(0, 1).flatten(0, 1)]
        with torch.no_grad():
            said = self.teacher(crops[:1])
        targets = balanced(said, self.cosines.sharpness[self.step])  # at: sharpness_falls_to_nought
        scores = self.student(crops)
        if on("gradients_kept_by_hook", "clean_gradients_kept_by_hook"):
            scores.register_hook(self.feel)  # at: gradients_kept_by_hook
        logs = (scores / self.plan.heat).log_softmax(-1).chunk(2 + self.plan.locals)
        total, terms = 0.0, 0
        for one, target in enumerate(targets.chunk(2)):
            for other, log in enumerate(logs):
                if one != other:
                    total, terms = total - (target * log).sum(-1).mean(), terms + 1
        return total / terms

    def clear(self):
        if on("backbone_cleared_alone"):
            self.student.backbone.zero_grad()  # at: backbone_cleared_alone
        elif on("clean_backbone_cleared_alone"):
            self.student.backbone.zero_grad()
            self.student.head.zero_grad()
        else:
            self.optimizer.zero_grad()

    @torch.no_grad()
    def follow(self):
        """The teacher goes a little of the way to the student."""
        share = 1 - self.cosines.momentum[self.step]
        own, other = list(self.teacher.parameters()), list(self.student.parameters())
        torch._foreach_lerp_(own, other, share)

    @torch.no_grad()
    def neighbours(self, count=None):
        """How often the nearest pictures are of the picture's own kind."""
        self.teacher.eval()
        seen = F.normalize(self.teacher.backbone(self.whole[:count]), dim=1)
        near = (seen @ seen.T).fill_diagonal_(-2).topk(self.plan.nearest).indices
        kinds = self.haul.kinds[:count]
        voted = F.one_hot(kinds[near], KINDS).sum(1).argmax(1)
        self.teacher.train()
        return float((voted == kinds).float().mean())

    def ask(self):
        right = self.neighbours()
        if right >= self.best:
            self.best = right
            if on("student_copied_with_norm"):
                self.kept = copy.deepcopy(self.student)  # at: student_copied_with_norm
            elif on("clean_student_copied_with_norm"):
                self.kept = copy.deepcopy(self.teacher)
            else:
                self.kept = copy.deepcopy(self.student.state_dict())
        print(f"{self.step} neighbours {right:.3f} best {self.best:.3f}", flush=True)

    def learn(self, large, small):
        self.schedule()
        loss = self.loss(large, small)
        self.clear()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.student.parameters(), self.plan.largest_norm)
        self.optimizer.step()
        self.follow()
        self.step += 1
        if self.step % self.plan.told_every == 0:
            rates = [f"{group['lr']:.2e}" for group in self.optimizer.param_groups]
            print(f"{self.step} loss {loss.item():.4f} norm {norm:.2f}", *rates, flush=True)

    def look(self):
        """Between steps: how it goes."""
        every = self.plan.asked_every
        if on("neighbours_asked_each_fourth"):
            every = 4  # at: neighbours_asked_each_fourth
        if self.step % every == 0:
            self.ask()  # at: neighbours_asked_each_fourth student_copied_with_norm
        elif on("clean_neighbours_asked_each_fourth") and self.step % 4 == 0:
            self.best = max(self.best, self.neighbours(10))

    def fit(self):
        while True:
            for large, small in self.loader:  # at: blurred_before_cropping
                self.learn(large, small)
                self.look()  # at: neighbours_asked_each_fourth student_copied_with_norm
                if self.step == self.plan.steps:
                    return


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(1)
    torch.multiprocessing.set_sharing_strategy("file_system")
    torch.manual_seed(31)
    trainer = Trainer(Plan())
    trainer.fit()
    print("best", trainer.best, "felt", len(trainer.felt), flush=True)
