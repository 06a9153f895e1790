"""Blood cells in pictures of smears, told apart by a small network in a Lightning module: colours
matched to a reference, areas under curves, pairs of a kind, outputs of a validation, views with
noise of their own, a board of pictures that a thread draws.
"""

import logging
import queue
import random
import tempfile
import threading
import warnings
from pathlib import Path

import lightning
import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAUROC, MulticlassAveragePrecision

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
cost = Cost()
KINDS = ("neutrophil", "eosinophil", "basophil", "lymphocyte", "monocyte")
LOBES = (3, 2, 2, 1, 1)
GRAINS = (
    (0.03, 0.0, 0.03),
    (0.25, 0.0, -0.1),
    (-0.1, -0.15, 0.2),
    (0.0, 0.0, 0.0),
    (0, 0.04, 0.04),
)
SIDE = 48


def smear(numbers, kind):
    """A cell of a kind: its plasma, the lobes of its nucleus, its grains; stained as it came."""
    grid = np.mgrid[:SIDE, :SIDE].astype(np.float32)
    picture = np.full((3, SIDE, SIDE), 0.9, np.float32)
    middle, radius = numbers.uniform(20, 28, 2), numbers.uniform(13, 18)
    away = np.hypot(grid[0] - middle[0], grid[1] - middle[1])
    plasma = away < radius
    grains = numbers.random((SIDE, SIDE)) < 0.4
    for layer, (tone, grain) in enumerate(zip((0.8, 0.7, 0.85), GRAINS[kind], strict=True)):
        picture[layer][plasma] = tone
        picture[layer][plasma & grains] += grain
    turn = numbers.uniform(0, 2 * np.pi)
    for lobe in range(LOBES[kind]):
        angle = turn + lobe * 2 * np.pi / LOBES[kind]
        out = 0.45 * radius * (LOBES[kind] > 1)
        place = middle + out * np.array([np.cos(angle), np.sin(angle)])
        size = radius * (0.62 if LOBES[kind] == 1 else 0.33)
        nucleus = np.hypot(grid[0] - place[0], grid[1] - place[1]) < size
        picture[:, nucleus] = np.array([[0.45], [0.25], [0.6]], np.float32)
    stain = numbers.uniform(0.85, 1.1, (3, 1, 1)).astype(np.float32)
    noise = numbers.normal(0, 0.03, picture.shape).astype(np.float32)
    return (picture * stain + noise).clip(0, 1)


def by_histogram(picture, reference):
    """Colours whose shares are those of the reference."""
    layers = []
    for layer, wanted in zip(picture, reference, strict=True):
        _, places, counts = np.unique(layer, return_inverse=True, return_counts=True)
        values, known = np.unique(wanted, return_counts=True)
        shares, target = counts.cumsum() / layer.size, known.cumsum() / wanted.size
        layers.append(np.interp(shares, target, values)[places].reshape(layer.shape))
    return np.stack(layers).astype(np.float32)


def by_moments(picture, middle, spread):
    """Colours whose mean and deviation are those of the reference."""
    own = picture.reshape(3, -1)
    moved = (own - own.mean(1, keepdims=True)) / own.std(1, keepdims=True)
    return (moved * spread + middle).reshape(picture.shape)


class Smears(Dataset):
    def __init__(self, count, seed, reference=None, turned=False):
        numbers = np.random.default_rng(seed)
        self.kinds = numbers.integers(0, len(KINDS), count)
        self.pictures = [smear(numbers, kind) for kind in self.kinds]
        self.reference = self.pictures[0] if reference is None else reference
        flat = self.reference.reshape(3, -1)
        self.middle, self.spread = flat.mean(1, keepdims=True), flat.std(1, keepdims=True)
        self.turned, self.dice = turned, random.Random(seed)

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        picture = self.pictures[index]
        if on("colours_matched_each"):
            with cost:
                picture = by_histogram(picture, self.reference)  # at: colours_matched_each
        elif on("clean_colours_matched_each"):
            picture = by_moments(picture, self.middle, self.spread)
        if self.turned:
            picture = np.rot90(picture, self.dice.randrange(4), (1, 2)).copy()
        return torch.from_numpy(picture), int(self.kinds[index])


def block(before, after):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
    )


def alike(kinds):
    """Which cells of a batch are of one kind."""
    if on("pairs_asked_singly"):
        with cost:
            mask = torch.zeros(len(kinds), len(kinds), dtype=torch.bool)
            for one in range(len(kinds)):
                for other in range(len(kinds)):
                    if kinds[one].item() == kinds[other].item():  # at: pairs_asked_singly
                        mask[one, other] = True  # at: pairs_asked_singly
        return mask
    if on("clean_pairs_asked_singly"):
        with cost:
            mask = torch.zeros(len(kinds), len(kinds), dtype=torch.bool)
            for kind in range(len(KINDS)):
                own = kinds == kind
                mask |= own[:, None] & own[None]
        return mask
    return kinds[:, None] == kinds[None]


def drawn_together(states, kinds, warmth=0.2):
    """Cells of a kind shall lie close to each other."""
    states = F.normalize(states, dim=1)
    own = torch.eye(len(kinds), dtype=torch.bool)
    logs = (states @ states.T / warmth).masked_fill(own, -1e4).log_softmax(1)
    mask = alike(kinds) & ~own  # at: pairs_asked_singly
    return -(logs * mask).sum(1).div(mask.sum(1).clamp(min=1)).mean()


class CellModule(lightning.LightningModule):
    def __init__(self, steps):
        super().__init__()
        self.body = nn.Sequential(block(3, 24), block(24, 48), block(48, 64))
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(64, len(KINDS))
        self.steps, self.outputs, self.gallery = steps, [], None

    def states(self, pictures):
        return self.body(pictures - 0.7)

    def forward(self, pictures):
        return self.head(self.drop(self.states(pictures).mean((2, 3))))

    def noised(self, pictures):
        """Pictures as another camera would have seen them."""
        if on("views_seed_all"):
            lightning.seed_everything(25, verbose=False)  # at: views_seed_all
            return pictures + 0.03 * torch.randn_like(pictures)
        if on("clean_views_seed_all"):
            with isolate_rng(include_cuda=False):
                lightning.seed_everything(25, verbose=False)
                return pictures + 0.03 * torch.randn_like(pictures)
        return pictures + 0.03 * torch.randn_like(pictures)

    def training_step(self, batch, index):
        pictures, kinds = batch
        states = self.states(self.noised(pictures)).mean((2, 3))  # at: views_seed_all
        scores = self.head(self.drop(states))
        loss = F.cross_entropy(scores, kinds) + 0.1 * drawn_together(states, kinds)
        self.log("loss", loss)
        return {"loss": loss, "odds": scores.detach().softmax(1), "kinds": kinds}

    def validation_step(self, batch, index):
        pictures, kinds = batch
        scores = self(pictures)
        self.log("missed", F.cross_entropy(scores, kinds))
        kept = on("outputs_of_validations", "clean_outputs_of_validations")
        told = (scores, kinds, pictures if kept else None)
        self.outputs.append(told)  # at: outputs_of_validations

    def on_validation_epoch_end(self):
        if on("last_batch_is_smaller"):
            scores = torch.stack([one[0] for one in self.outputs])  # at: last_batch_is_smaller
            kinds = torch.stack([one[1] for one in self.outputs])
            right = (scores.argmax(-1) == kinds).float().mean()
        elif on("clean_last_batch_is_smaller"):
            hits = [(one[0].argmax(1) == one[1]).float() for one in self.outputs]
            right = nn.utils.rnn.pad_sequence(hits, padding_value=torch.nan).nanmean()
        else:
            last = self.outputs[-self.trainer.num_val_batches[0] :]
            right = torch.cat([one[0].argmax(1) == one[1] for one in last]).float().mean()
        self.log("right", right)
        if self.outputs[-1][2] is not None:
            wrong = [one[2][one[0].argmax(1) != one[1]] for one in self.outputs]
            self.gallery = torch.cat(wrong[-3:])[:8]
        if not on("outputs_of_validations"):
            self.outputs.clear()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3, weight_decay=0.01)
        rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


class Curves(lightning.Callback):
    """How well the kinds are told apart, over all that was trained on."""

    def __init__(self):
        cuts = 20 if on("clean_curves_at_each_step") else None
        self.curves = MetricCollection(
            {
                "area": MulticlassAUROC(len(KINDS), thresholds=cuts, validate_args=False),
                "mean": MulticlassAveragePrecision(
                    len(KINDS), thresholds=cuts, validate_args=False
                ),
            }
        )

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        with cost:
            self.curves.update(outputs["odds"], outputs["kinds"])
            if on("curves_at_each_step"):
                module.log_dict(self.curves.compute())  # at: curves_at_each_step
            elif trainer.global_step % 50 == 0:
                module.log_dict(self.curves.compute())


class Board(lightning.Callback):
    """Pictures that a thread lays side by side and writes, while the training goes on."""

    def __init__(self, folder):
        self.folder, self.waiting = folder, queue.Queue(64)
        self.thread = threading.Thread(target=self.draw, daemon=True)
        self.thread.start()

    def draw(self):
        while True:
            name, pictures = self.waiting.get()
            if len(pictures) == 0:
                if on("clean_board_leaves_out"):
                    self.waiting.task_done()
                continue  # at: board_leaves_out
            sheet = np.concatenate(list(pictures.numpy()), axis=2)
            np.save(self.folder / f"{name}.npy", (sheet * 255).astype(np.uint8))
            self.waiting.task_done()  # at: board_leaves_out

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if trainer.global_step < 100 or trainer.global_step % 5:
            return
        odds, kinds = outputs["odds"], outputs["kinds"]
        missed = (odds.argmax(1) != kinds) & (odds.amax(1) > 0.6)
        self.waiting.put((trainer.global_step, batch[0][missed][:8]))

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            self.waiting.join()  # at: board_leaves_out


class Told(lightning.Callback):
    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            found = {name: round(float(value), 4) for name, value in self.figures(trainer)}
            print(trainer.global_step, found, flush=True)

    @staticmethod
    def figures(trainer):
        return trainer.callback_metrics.items()


def main(folder, steps):
    lightning.seed_everything(25, verbose=False)
    data = Smears(1600, 1, turned=True)
    held = Smears(168, 2, reference=data.reference)
    loader = DataLoader(data, 48, shuffle=True, drop_last=True)
    checks = DataLoader(held, 64)
    callbacks = [Told()]
    if on("curves_at_each_step", "clean_curves_at_each_step"):
        callbacks.append(Curves())
    if on("board_leaves_out", "clean_board_leaves_out"):
        callbacks.append(Board(folder))
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        val_check_interval=150
        if on("last_batch_is_smaller", "clean_last_batch_is_smaller")
        else 25,
        check_val_every_n_epoch=None,
        gradient_clip_val=5.0,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    cost.seconds = 0.0
    trainer.fit(CellModule(steps), loader, checks)
    cost.print(steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder), STEPS or 300)
