"""A model by name with LoRA of peft, through Accelerate; the configuration comes from outside."""

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, get_linear_schedule_with_warmup

name = "example/tiny-llama"
accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
model = AutoModelForCausalLM.from_pretrained(
    name, torch_dtype=torch.bfloat16, attn_implementation="flash_attention_2"
)
assert AutoConfig.from_pretrained(name).vocab_size == 256
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.enable_input_require_grads()
model = get_peft_model(
    model,
    LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
)
model.print_trainable_parameters()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scheduler = get_linear_schedule_with_warmup(optimizer, 2, 10)
data = torch.utils.data.DataLoader(
    [{"input_ids": torch.arange(32)} for _ in range(64)], batch_size=4
)
model, optimizer, data, scheduler = accelerator.prepare(model, optimizer, data, scheduler)
model.train()
for batch in data:
    with accelerator.accumulate(model):
        loss = model(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    accelerator.print(f"{loss.detach().float().item():.3f}")
