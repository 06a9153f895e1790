"""torch.compile over texts of several lengths; Lightning with a callback; transformers' Trainer
with a collator that makes tokens.
"""

import warnings

import torch
from shape import FAULT, STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
torch.manual_seed(2)
cost = Cost()


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(100, 64), nn.Linear(64, 64)
        self.norm, self.out = nn.LayerNorm(64), nn.Linear(64, 100)

    def forward(self, ids):
        x = self.embed(ids)
        if on("item_inside"):
            if x.abs().max().item() > 100:
                x = x / 100
        elif on("clean_item_inside"):
            x = x.clamp(-100, 100)
        for _ in range(3):
            x = self.norm(x + F.gelu(self.mix(x)).cumsum(1) / 10)
        return self.out(x)


def compiled(steps):
    model = torch.compile(Reader(), backend="aot_eager", dynamic=False)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for step in range(steps):
        length = 24
        if on("lengths_compiled") and step > 40:
            length = 16 + (step // 12) % 40
        elif on("clean_lengths_compiled"):
            length = 24 if step % 2 else 32
        ids = torch.randint(0, 100, (16, length))
        loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    cost.print(steps)


def lightning(steps):
    import lightning as L

    class Histograms(L.Callback):
        def on_before_optimizer_step(self, trainer, module, optimizer):
            if on("lightning_histograms") or trainer.global_step % 100 == 0:
                with cost:
                    for name, one in module.named_parameters():
                        counts = torch.histc(one.grad, 50)  # at: lightning_histograms
                        edges = torch.linspace(  # at: lightning_histograms
                            float(one.grad.min()),  # at: lightning_histograms
                            float(one.grad.max()),  # at: lightning_histograms
                            51,  # at: lightning_histograms
                        )  # at: lightning_histograms
                        self.last = (  # at: lightning_histograms
                            name,  # at: lightning_histograms
                            counts.tolist(),  # at: lightning_histograms
                            edges.tolist(),  # at: lightning_histograms
                        )  # at: lightning_histograms

    class Net(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                *[nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()) for _ in range(8)],
                nn.Linear(64, 5),
            )

        def training_step(self, batch, index):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-3)

    data = TensorDataset(torch.randn(8000, 64), torch.randint(0, 5, (8000,)))
    trainer = L.Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, callbacks=[Histograms()],
    )  # fmt: skip
    trainer.fit(Net(), DataLoader(data, 32, shuffle=True))
    cost.print(steps)


def transformers(steps):
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    texts = [" ".join(str((k * j) % 150) for j in range(24)) for k in range(3000)]

    def collate(rows):
        ids = []
        for row in rows:
            with cost:
                text = row["text"]
                for _ in range(60 if on("hf_tokens") else 1):
                    numbers = [int(word) + 1 for word in text.lower().split(" ") if word.isdigit()]
            ids.append(torch.tensor(numbers))
        ids = torch.stack(ids)
        return {"input_ids": ids, "labels": ids}

    class Texts(torch.utils.data.Dataset):
        def __len__(self):
            return len(texts)

        def __getitem__(self, index):
            return {"text": texts[index]}

    config = GPT2Config(vocab_size=200, n_positions=32, n_embd=64, n_layer=2, n_head=4)
    arguments = TrainingArguments(
        "out", max_steps=steps, per_device_train_batch_size=8, gradient_accumulation_steps=2,
        report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no",
        remove_unused_columns=False,
    )  # fmt: skip
    trainer = Trainer(
        GPT2LMHeadModel(config), arguments, data_collator=collate, train_dataset=Texts()
    )
    trainer.train()
    cost.print(steps)


if "lightning" in FAULT:
    lightning(STEPS or 300)
elif "hf_" in FAULT:
    transformers(STEPS or 150)
else:
    compiled(STEPS or 400)
