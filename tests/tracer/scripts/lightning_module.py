"""Lightning with a module, automatic optimisation, mixed precision, accumulation and clipping."""

import lightning as L
import torch
from torch import nn


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))

    def training_step(self, batch, index):
        x, y = batch
        assert self.device.type == "cuda"
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("val", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


data = torch.utils.data.TensorDataset(torch.randn(64, 128), torch.randint(0, 10, (64,)))
loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2)
trainer = L.Trainer(
    max_epochs=2,
    accelerator="gpu",
    devices=1,
    precision="bf16-mixed",
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    callbacks=[L.pytorch.callbacks.ModelCheckpoint(monitor="val")],
)
trainer.fit(Model(), loader, loader)
