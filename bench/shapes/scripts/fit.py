"""Lightning: an autoencoder with a callback, a checkpoint callback and a loader."""

import time
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
steps, cost = STEPS or 300, Cost()


class Vectors(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        if on("lightning_data"):
            with cost:
                time.sleep(0.001)
        return torch.randn(128)


class Auto(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128)
        )

    def training_step(self, batch, index):
        loss = F.mse_loss(self.net(batch), batch)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


class Watcher(L.Callback):
    """Counts weights near zero."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        if on("lightning_callback") or (on("clean_lightning_callback") and batch_index % 50 == 0):
            with cost:
                small = 0
                for one in module.parameters():
                    for value in one.detach().flatten()[:2000].tolist():  # at: lightning_callback
                        small += abs(value) < 1e-4  # at: lightning_callback
                time.sleep(0.006)  # at: lightning_callback


saver = ModelCheckpoint(
    dirpath="ckpt", every_n_train_steps=4 if on("lightning_ckpt") else 150, save_top_k=-1
)
trainer = L.Trainer(
    max_steps=steps, accelerator="cpu", logger=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[saver, Watcher()],
)  # fmt: skip
trainer.fit(Auto(), DataLoader(Vectors(), batch_size=16))  # at: lightning_data
cost.print(steps)
