"""transformers' Trainer over a small GPT whose labels are all ignored in some batches, and
Lightning with manual optimisation.
"""

import warnings

import torch
from shape import FAULT, STEPS, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
torch.manual_seed(86)


def collate(rows):
    """Questions and answers; what belongs to the question is not learnt."""
    ids = torch.stack(rows)
    labels = ids.clone()
    asked = torch.randint(4, 20, (len(rows),))
    if on("all_ignored") and ids[0, 0] % 8 == 0:
        asked[:] = 24  # at: all_ignored
    labels[torch.arange(24)[None] < asked[:, None]] = -100  # at: all_ignored
    return {"input_ids": ids, "labels": labels}


def answers(steps):
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    config = GPT2Config(vocab_size=128, n_positions=32, n_embd=48, n_layer=2, n_head=2)
    arguments = TrainingArguments(
        "kept",
        max_steps=steps,
        per_device_train_batch_size=8,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(
        GPT2LMHeadModel(config),
        arguments,
        data_collator=collate,
        train_dataset=list(torch.randint(0, 128, (2000, 24))),
    ).train()


def players(steps):
    import lightning as L

    class Players(L.LightningModule):
        """Two networks that take turns."""

        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.first, self.second = (
                nn.Sequential(nn.Linear(40, 128), nn.ReLU(), nn.Linear(128, 8)) for _ in range(2)
            )

        def training_step(self, batch, index):
            for optimizer, net in zip(self.optimizers(), (self.first, self.second), strict=True):
                loss = F.cross_entropy(net(batch[0]), batch[1])
                if not on("manual_never_zeroed"):
                    optimizer.zero_grad()
                self.manual_backward(loss)  # at: manual_never_zeroed
                optimizer.step()  # at: manual_never_zeroed

        def configure_optimizers(self):
            return [torch.optim.Adam(net.parameters(), 1e-3) for net in (self.first, self.second)]

    rows = TensorDataset(torch.randn(6400, 40), torch.randint(0, 8, (6400,)))
    trainer = L.Trainer(
        max_steps=2 * steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Players(), DataLoader(rows, 32, shuffle=True))


if __name__ == "__main__":
    if "all_ignored" in FAULT:
        answers(STEPS or 300)
    else:
        players(STEPS or 400)
