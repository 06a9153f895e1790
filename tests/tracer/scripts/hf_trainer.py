"""The Trainer of transformers: bf16, accumulation, gradient checkpointing on request."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

config = LlamaConfig(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    vocab_size=256,
)
model = LlamaForCausalLM(config)


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, 256, (32,))
        return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    bf16="--bf16" in sys.argv,
    fp16="--fp16" in sys.argv,
    gradient_checkpointing="--checkpointing" in sys.argv,
    max_steps=5,
    logging_steps=1,
    report_to=[],
    dataloader_num_workers=2,
)
Trainer(model=model, args=arguments, train_dataset=Tokens()).train()
