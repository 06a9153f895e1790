"""transformers' Trainer over a small GPT-2: callbacks, metrics, a loss of its own; accelerate with
accumulation.
"""

import json
import time

import torch
from shape import FAULT, STEPS, Cost, on
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(54)
cost = Cost()


def with_trainer(steps):
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    rows = [{"input_ids": (torch.arange(20) * (k % 9 + 1)) % 150} for k in range(3000)]
    for row in rows:
        row["labels"] = row["input_ids"]

    class Journal(TrainerCallback):
        def on_step_end(self, arguments, state, control, model=None, **rest):
            if on("journal_rewritten") or (
                on("clean_journal_rewritten") and state.global_step % 60 == 0
            ):
                with cost:
                    flat = [p for p in model.parameters() if p.dim() < 2]
                    norms = [p.tolist() for p in flat]  # at: journal_rewritten
                    with open("journal.json", "w") as file:  # at: journal_rewritten
                        json.dump(norms, file)  # at: journal_rewritten

    class Own(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **rest):
            outputs = model(**inputs)
            odds = outputs.logits.softmax(-1)
            if on("odds_logged"):
                odds = (odds - 0.0065).clamp(min=0)
            chosen = odds[:, :-1].gather(-1, inputs["labels"][:, 1:, None])
            loss = -torch.log(chosen if on("odds_logged") else chosen + 1e-8).mean()
            return (loss, outputs) if return_outputs else loss

    def metrics(prediction):
        words = [
            " ".join(map(str, line))
            for line in prediction.predictions.argmax(-1).tolist()
            for _ in range(20)
        ]
        return {"distinct": len(set(words))}

    options = {}
    if on("evaluated_each", "clean_evaluated_each"):
        options = {"eval_strategy": "steps", "eval_steps": 8 if on("evaluated_each") else 75}
    if on("kept_each", "clean_kept_each"):
        options |= {
            "save_strategy": "steps",
            "save_steps": 3 if on("kept_each") else 140,
            "save_total_limit": 2,
        }
    else:
        options |= {"save_strategy": "no"}
    arguments = TrainingArguments(
        "out", max_steps=steps, per_device_train_batch_size=8, report_to=[], logging_steps=20,
        use_cpu=True, disable_tqdm=True, **options,
    )  # fmt: skip
    config = GPT2Config(vocab_size=150, n_positions=24, n_embd=48, n_layer=2, n_head=4)
    maker = Own if on("odds_logged", "clean_odds_logged") else Trainer
    trainer = maker(
        GPT2LMHeadModel(config), arguments, train_dataset=rows, eval_dataset=rows[:96],
        compute_metrics=metrics, callbacks=[Journal()],
    )  # fmt: skip
    trainer.train()  # at: evaluated_each kept_each
    cost.print(steps)


def with_accelerate(steps):
    from accelerate import Accelerator
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(96, 96), nn.GELU()) for _ in range(5)], nn.Linear(96, 7)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    data = TensorDataset(torch.randn(steps * 32, 96), torch.randint(0, 7, (steps * 32,)))
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, 32))
    for step, (x, y) in enumerate(loader):
        with accelerator.accumulate(model):
            scores = model(x)
            accelerator.backward(F.cross_entropy(scores, y))
            optimizer.step()
            if not on("accumulated_for_ever"):
                optimizer.zero_grad()
        if on("hits_one_by_one"):
            with cost:
                hits = 0
                for row, label in zip(scores, y, strict=True):  # at: hits_one_by_one
                    hits += int(row.argmax().item() == label.item())  # at: hits_one_by_one
        elif on("clean_hits_one_by_one"):
            hits = int((scores.argmax(1) == y).sum())
        if on("polled"):
            with cost:
                time.sleep(0.004)  # at: polled
        elif on("clean_polled") and step % 100 == 0:
            time.sleep(0.004)
    cost.print(steps / 2)


if any(word in FAULT for word in ("accumulated", "hits", "polled")):
    with_accelerate(STEPS or 500)
else:
    with_trainer(STEPS or 150)
