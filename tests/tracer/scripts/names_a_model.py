"""Fails before its first step, and names a model."""

from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments

NAME = "example/unknown-7b"
tokenizer = AutoTokenizer.from_pretrained(NAME)
model = AutoModelForCausalLM.from_pretrained(NAME)
arguments = TrainingArguments(
    "out", per_device_train_batch_size=2, bf16=True, gradient_checkpointing=True
)
