"""transformers.Trainer with a small BERT: a collator, a callback and evaluations; and a loop by
accelerate.
"""

import time

import torch
from shape import STEPS, Cost, on

torch.set_num_threads(1)
torch.manual_seed(10)
cost = Cost()


def with_trainer(steps):
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    config = BertConfig(
        vocab_size=300,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
    )
    rows = [{"input_ids": torch.randint(0, 300, (24,)), "labels": k % 2} for k in range(4000)]

    def collate(batch):
        if on("hf_collator"):
            with cost:
                for row in batch:
                    time.sleep(0.001)
                    sorted(row["input_ids"].tolist() * 40)
        ids = torch.stack([row["input_ids"] for row in batch])
        return {"input_ids": ids, "labels": torch.tensor([row["labels"] for row in batch])}

    class Slow(TrainerCallback):
        def on_step_end(self, arguments, state, control, **rest):
            if on("hf_callback"):
                with cost:
                    time.sleep(0.007)  # at: hf_callback

    options = {"eval_strategy": "steps", "eval_steps": 6} if on("hf_eval") else {}
    arguments = TrainingArguments(
        "out", max_steps=steps, per_device_train_batch_size=8, report_to=[], logging_steps=25,
        use_cpu=True, save_strategy="no", disable_tqdm=True, **options,
    )  # fmt: skip
    trainer = Trainer(
        BertForSequenceClassification(config), arguments, data_collator=collate, train_dataset=rows,
        eval_dataset=rows[:80], callbacks=[Slow()],
    )  # fmt: skip
    trainer.train()
    cost.print(steps)


def with_accelerate(steps):
    from accelerate import Accelerator
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(4000, 64), torch.randint(0, 5, (4000,)))
    net = nn.Sequential(
        nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 5)
    )
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net, optimizer, loader = accelerator.prepare(
        net,
        torch.optim.AdamW(net.parameters(), 1e-3),
        DataLoader(data, batch_size=32, shuffle=True),
    )
    done = 0
    while done < steps:
        for x, y in loader:
            with accelerator.accumulate(net):
                loss = nn.functional.cross_entropy(net(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            done += 1
            if on("accelerate_metric"):
                with cost:
                    gathered = accelerator.gather_for_metrics(net(x).detach())
                    confusion = [[0] * 5 for _ in range(5)]
                    for row, label in zip(gathered, y, strict=True):  # at: accelerate_metric
                        scores = [float(value) for value in row]  # at: accelerate_metric
                        guess = scores.index(max(scores))  # at: accelerate_metric
                        confusion[int(label)][guess] += 1  # at: accelerate_metric
            if on("accelerate_save") and done % 6 == 0:
                with cost:
                    accelerator.save_state("state")  # at: accelerate_save
            if on("clean_accelerate_save") and done == steps:
                accelerator.save_state("state")
            if done >= steps:
                break
    cost.print(steps // 2)


if on("accelerate_metric", "accelerate_save", "clean_accelerate_save", "clean_accelerate"):
    with_accelerate(STEPS or 300)
else:
    with_trainer(STEPS or 220)
