"""Lightning with two optimizers' worth of habit: a module that logs, validates each epoch, keeps
the best checkpoint and stops early.
"""

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(48, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 5)
        )

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        self.log("valid", nn.functional.cross_entropy(self.net(x), y), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


L.seed_everything(1)
x = torch.randn(8_000, 48)
y = (x @ torch.randn(48, 5)).argmax(1)
train = DataLoader(TensorDataset(x[:7_000], y[:7_000]), 64, shuffle=True)
valid = DataLoader(TensorDataset(x[7_000:], y[7_000:]), 256)
L.Trainer(
    max_epochs=8, accelerator="cpu", logger=CSVLogger("logs"), gradient_clip_val=1.0,
    callbacks=[ModelCheckpoint(monitor="valid"), EarlyStopping("valid"), LearningRateMonitor()],
).fit(Module(), train, valid)  # fmt: skip
