"""Lightning that optimizes by hand and validates, transformers' Trainer that saves, and two ranks
with BatchNorm.
"""

import os
import sys
import time
import warnings

import torch
from shape import FAULT, STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
torch.manual_seed(23)
cost = Cost()
data = TensorDataset(torch.randn(4096, 64), torch.randint(0, 7, (4096,)))


def lightning(steps):
    import lightning as L

    class Net(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 7)
            )
            self.automatic_optimization = False

        def training_step(self, batch, index):
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

        def validation_step(self, batch, index):
            self.log("valid", F.cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.05)

    trainer = L.Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_checkpointing=False,
        val_check_interval=5 if on("lightning_valid") else 60, limit_val_batches=8,
        num_sanity_val_steps=0, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Net(), DataLoader(data, 32, shuffle=True), DataLoader(data, 64))
    cost.print(steps)


def transformers(steps):
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    config = GPT2Config(vocab_size=200, n_positions=32, n_embd=96, n_layer=2, n_head=4)
    rows = [{"input_ids": one, "labels": one} for one in torch.randint(0, 200, (3000, 24))]
    arguments = TrainingArguments(
        "out", max_steps=steps, per_device_train_batch_size=8, report_to=[], use_cpu=True,
        disable_tqdm=True,
        save_strategy="steps" if on("hf_save") else "no", save_steps=8, save_total_limit=2,
    )  # fmt: skip
    Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows).train()
    cost.print(steps)


def ranks(rank, steps=400):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    os.environ["RANK"] = str(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=2
    )
    torch.manual_seed(rank)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1),
        nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    net = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    many = 28 if on("larger_share") and rank == 1 else 8
    for step in range(STEPS or steps):
        images, labels = torch.randn(many, 3, 32, 32), torch.randint(0, 10, (many,))
        if on("slow_augment") and rank == 1:
            time.sleep(0.008)  # at: slow_augment
        loss = F.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (on("rank0_metrics") or (on("clean_rank0_metrics") and step % 100 == 0)) and rank == 0:
            sorted(str(x) for x in images.flatten().tolist()[:9000])  # at: rank0_metrics
    if rank == 0:
        cost.print(STEPS or steps)


if "lightning" in FAULT:
    lightning(STEPS or 300)
elif "hf_" in FAULT:
    transformers(STEPS or 200)
else:
    from forked import run_ranks

    sys.exit(run_ranks(2, ranks))
