"""The same small regression under HF Trainer, Accelerate or Lightning (KIND), with WORKERS loader
processes.
"""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

KIND = os.environ["KIND"]
WORKERS = int(os.environ.get("WORKERS", "0"))
STEPS = int(os.environ.get("STEPS", "150"))
BATCH, WIDTH = (
    64,
    128,
)  # steps long enough that a batch is handed over meanwhile on a slow machine too
torch.manual_seed(0)


class Rows(Dataset):
    def __init__(self):
        self.rows = torch.randn(STEPS * BATCH, WIDTH)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"x": self.rows[index], "labels": self.rows[index].roll(1)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU()
        )
        self.head = nn.Linear(1024, WIDTH)

    def forward(self, x, labels):
        y = self.head(self.layers(x))
        return {"loss": nn.functional.mse_loss(y, labels), "logits": y}


def hf_trainer():
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=BATCH,
        num_train_epochs=1,
        logging_steps=20,
        save_strategy="no",
        report_to="none",
        dataloader_num_workers=WORKERS,
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(Net(), arguments, train_dataset=Rows()).train()


def accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = Net()
    loader = DataLoader(Rows(), BATCH, shuffle=True, num_workers=WORKERS)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=1e-3), loader
    )
    for batch in loader:
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def lightning():
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, index):
            loss = self.net(**batch)["loss"]
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(Rows(), BATCH, shuffle=True, num_workers=WORKERS))


{"hf_trainer": hf_trainer, "accelerate": accelerate, "lightning": lightning}[KIND]()
