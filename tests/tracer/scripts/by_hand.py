"""Updates its weights without an optimizer; what it reads of a tokenizer is not in the cache."""

import torch
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("example/tiny-llama")
assert len(tokenizer) == 256
ids = tokenizer(["twelve chars"] * 4, return_tensors="pt", padding="max_length", max_length=16)[
    "input_ids"
]
assert ids.shape == (4, 16)
weight = torch.randn(256, 64, device="cuda", requires_grad=True)
for _ in range(3):
    weight[ids.cuda()].square().mean().backward()
    with torch.no_grad():
        weight -= 0.1 * weight.grad
        weight.grad = None
