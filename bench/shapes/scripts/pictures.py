"""Pictures by a trainer class with callbacks: PIL and numpy in a dataset, two optimizers,
evaluation, checkpoints.
"""

import copy
import io
import time

import eager  # noqa: F401
import numpy as np
import torch
from PIL import Image
from shape import FAULT, STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(5)
cost = Cost()
rng = np.random.default_rng(0)
raw = rng.integers(0, 255, (200, 48, 48, 3), dtype=np.uint8)


def packed(picture):
    buffer = io.BytesIO()
    Image.fromarray(picture).resize((320, 320)).save(buffer, "JPEG")
    return buffer.getvalue()


files = [packed(one) for one in raw[:40]] if on("jpeg_large", "one_worker") else []


class Pictures(Dataset):
    def __len__(self):
        return 6400

    def __getitem__(self, index):
        if on("jpeg_large", "one_worker"):
            with cost:
                picture = np.asarray(Image.open(io.BytesIO(files[index % 40])).resize((48, 48)))
        else:
            picture = raw[index % 200]
        if on("numpy_loop"):
            with cost:
                picture = np.array([[p[::-1] for p in line] for line in picture[:24, :24]])
                picture = np.resize(picture, (48, 48, 3))
        elif on("clean_numpy_loop"):
            picture = np.ascontiguousarray(picture[:, :, ::-1])
        return torch.from_numpy(picture.astype(np.float32) / 255).permute(2, 0, 1), index % 10


class Callback:
    def on_step(self, trainer): ...


class Wait(Callback):
    def on_step(self, trainer):
        with cost:
            time.sleep(0.006)  # at: callback_waits


class Save(Callback):
    def __init__(self, every):
        self.every = every

    def on_step(self, trainer):
        if trainer.step % self.every == 0:
            state = {"model": trainer.model.state_dict(), "pad": torch.zeros(4_000_000)}
            torch.save(state, "save.pt")  # at: callback_saves


class Compare(Callback):
    def on_step(self, trainer):
        with cost:
            before = copy.deepcopy(trainer.model.state_dict())  # at: callback_compares
            for name, one in trainer.model.state_dict().items():
                for row in one.flatten(1) if one.dim() > 1 else ():  # at: callback_compares
                    float(row.norm() - before[name].flatten()[0])  # at: callback_compares


class Evaluate(Callback):
    def __init__(self, every):
        self.every = every

    def on_step(self, trainer):
        if trainer.step % self.every == 0:
            trainer.model.eval()
            with torch.no_grad():
                for _ in range(8):
                    trainer.model(torch.rand(32, 3, 48, 48))  # at: callback_evaluates
            trainer.model.train()


class Trainer:
    def __init__(self, model, callbacks, accumulate=1):
        self.model, self.callbacks, self.accumulate, self.step = model, callbacks, accumulate, 0
        body = [one for name, one in model.named_parameters() if not name.startswith("6")]
        self.body = torch.optim.SGD(body, 0.05, momentum=0.9)
        self.head = torch.optim.Adam(model[6].parameters(), 1e-3)
        if on("head_left_out"):
            self.body = torch.optim.SGD(body[:2], 0.05)
            for one in body[2:]:
                one.requires_grad_(True)

    def fit(self, loader, steps):
        while self.step < steps:
            for index, (pictures, labels) in enumerate(loader):
                if on("noise_on_host"):
                    with cost:
                        noise = [rng.normal() for _ in range(12_000)]  # at: noise_on_host
                        pictures = pictures + torch.tensor(noise).mean()
                elif on("clean_noise_on_host"):
                    pictures = pictures + torch.randn_like(pictures) * 0.01
                loss = F.cross_entropy(self.model(pictures), labels) / self.accumulate
                if on("sqrt_of_zero") and self.step > 100:
                    loss = loss + (self.model[6].bias * 0).sqrt().sum()
                elif on("clean_sqrt_of_zero"):
                    loss = loss + (self.model[6].bias * 0 + 1e-6).sqrt().sum()
                loss.backward()
                if (index + 1) % self.accumulate:
                    continue
                self.body.step(), self.head.step()
                if not on("never_zeroed"):
                    self.body.zero_grad(), self.head.zero_grad()
                self.step += 1
                for callback in self.callbacks:
                    callback.on_step(self)  # at: callback_evaluates
                if self.step >= steps:
                    return


model = nn.Sequential(
    nn.Conv2d(3, 8, 5, 2),
    nn.ReLU(),
    nn.Conv2d(8, 16, 3, 2),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(3),
    nn.Flatten(),
    nn.Linear(144, 10),
)
callbacks = {
    "callback_waits": [Wait()],
    "callback_saves": [Save(4)],
    "clean_callback_saves": [Save(100)],
    "callback_compares": [Compare()],
    "callback_evaluates": [Evaluate(3)],
    "clean_callback_evaluates": [Evaluate(60)],
}.get(FAULT, [Callback()])
workers = 1 if on("one_worker", "clean_one_worker") else 0
data = Pictures()
loader = DataLoader(data, 16, num_workers=workers)  # at: jpeg_large numpy_loop one_worker
steps = STEPS or 500
Trainer(model, callbacks, 2 if on("clean_never_zeroed") else 1).fit(loader, steps)
if not workers:
    cost.print(steps)
