"""Fine-tuning by the Trainer of transformers: a slow collator, evaluations and checkpoints too
often, a callback that waits, a rate that is too large.
"""

import time
import warnings

import torch
from shape import STEPS, Cost, on
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

warnings.simplefilter("ignore")
steps, cost = STEPS or 150, Cost()
torch.set_num_threads(1)
torch.manual_seed(123)


class Reviews(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, number):
        ids = torch.randint(5, 400, (24,))
        return {"input_ids": ids, "labels": int(ids[0] > 200)}


def collate(rows):
    if on("collator_checks"):
        with cost:
            for row in rows:
                for _ in range(30):
                    ids = row["input_ids"]
                    assert all(0 <= int(one) < 400 for one in ids)  # at: collator_checks
    return {
        "input_ids": torch.stack([row["input_ids"] for row in rows]),
        "labels": torch.tensor([row["labels"] for row in rows]),
    }


class Waits(TrainerCallback):
    """Tells a server how far it is."""

    def on_step_end(self, arguments, state, control, **_):
        if on("callback_sends") or state.global_step % 50 == 0:
            with cost:
                time.sleep(0.008)  # at: callback_sends


sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
model = BertForSequenceClassification(BertConfig(vocab_size=400, intermediate_size=128, **sizes))
arguments = TrainingArguments(
    "out",
    max_steps=steps,
    per_device_train_batch_size=8,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    logging_steps=25,
    save_strategy="steps" if on("saved_often") else "no",
    save_steps=4,
    save_total_limit=2,
    eval_strategy="steps" if on("evaluated_often", "clean_evaluated_often") else "no",
    eval_steps=6 if on("evaluated_often") else 75,
    max_grad_norm=1.0,
    learning_rate=5.0 if on("rate_of_five") else 5e-4,
)
trainer = Trainer(model, arguments, collate, Reviews(steps * 8), Reviews(80), callbacks=[Waits()])
trainer.train()  # at: evaluated_often saved_often rate_of_five collator_checks
cost.print(steps)
