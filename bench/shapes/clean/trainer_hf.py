"""transformers' Trainer on a small BERT with evaluation and saving every 60 steps."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Rows(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(5, 400, (count, 32), generator=g)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        row = self.tokens[index]
        return {
            "input_ids": row,
            "attention_mask": torch.ones_like(row),
            "labels": int((row < 200).sum() > 16),
        }


config = BertConfig(
    vocab_size=400, hidden_size=96, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=192, max_position_embeddings=64,
)  # fmt: skip
arguments = TrainingArguments(
    "out", per_device_train_batch_size=16, max_steps=240, eval_strategy="steps", eval_steps=60,
    save_steps=60, save_total_limit=1, logging_steps=20, learning_rate=5e-4, report_to=[],
    warmup_steps=20, use_cpu=True, load_best_model_at_end=True,
)  # fmt: skip
trainer = Trainer(
    BertForSequenceClassification(config), arguments,
    train_dataset=Rows(4_000, 0), eval_dataset=Rows(160, 1),
)  # fmt: skip
trainer.train()
print(trainer.evaluate())
