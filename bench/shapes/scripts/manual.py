"""Lightning: two optimizers by hand, callbacks, a validation within the epoch, outputs kept for its
end.
"""

import logging
import warnings
from itertools import pairwise

import lightning as L
import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
torch.manual_seed(55)
cost = Cost()
steps = STEPS or 300


def layers(*widths):
    parts = []
    for before, after in pairwise(widths):
        parts += [nn.Linear(before, after), nn.LeakyReLU()]
    return nn.Sequential(*parts[:-1])


class Critics(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.maker, self.critic = layers(32, 128, 128, 64), layers(64, 128, 128, 1)

    def training_step(self, batch, index):
        make, judge = self.optimizers()
        real = batch[0]
        made = self.maker(torch.randn(len(real), 32))
        loss = F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(made.detach())).mean()
        if not on("critic_adds_up"):
            judge.zero_grad()
        self.manual_backward(loss)
        judge.step()
        loss = F.softplus(-self.critic(made)).mean()
        make.zero_grad()
        self.manual_backward(loss)
        make.step()

    def configure_optimizers(self):
        return torch.optim.SGD(self.maker.parameters(), 1e-4), torch.optim.SGD(
            self.critic.parameters(), 1e-4
        )


class Classes(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.kept = layers(64, 160, 160, 160, 10), []

    def training_step(self, batch, index):
        scores = self.net(batch[0])
        loss = F.cross_entropy(scores, batch[1])
        if on("outputs_for_the_end"):
            self.kept.append({"loss": loss, "x": batch[0].repeat(1, 40), "scores": scores})
        elif on("clean_outputs_for_the_end"):
            self.kept.append(loss.item())
        return loss

    def validation_step(self, batch, index):
        return F.cross_entropy(self.net(batch[0]), batch[1])  # at: validates_each_ten

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


class Snapshots(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if on("weights_dumped") or (on("clean_weights_dumped") and index % 100 == 0):
            with cost:
                for name, one in module.named_parameters():
                    values = one.detach().numpy().reshape(-1)[:600]
                    np.savetxt(f"{name}.txt", values)  # at: weights_dumped


data = TensorDataset(torch.randn(steps * 32, 64), torch.randint(0, 10, (steps * 32,)))
often = {"val_check_interval": 10 if on("validates_each_ten") else 150}
two = on("critic_adds_up", "clean_critic_adds_up")
trainer = L.Trainer(
    max_steps=2 * steps if two else steps, accelerator="cpu", logger=False,
    enable_progress_bar=False,
    enable_checkpointing=False, enable_model_summary=False, callbacks=[Snapshots()],
    num_sanity_val_steps=0,
    **(often if on("validates_each_ten", "clean_validates_each_ten") else {"limit_val_batches": 0}),
)  # fmt: skip
trainer.fit(  # at: validates_each_ten
    Critics() if two else Classes(),
    DataLoader(data, 32, shuffle=True),
    DataLoader(TensorDataset(*data[: 64 * 30]), 64),
)
cost.print(steps)
