"""Quantisation-aware training: fake quantisation of weights and activations, observers frozen after
half the steps.
"""

import torch
from torch import nn


class Fake(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("low", torch.zeros(1))
        self.register_buffer("high", torch.zeros(1))
        self.observe = True

    def forward(self, x):
        if self.observe:
            self.low.copy_(torch.minimum(self.low, x.detach().min()))
            self.high.copy_(torch.maximum(self.high, x.detach().max()))
        scale = ((self.high - self.low) / 255).clamp(min=1e-8)
        zero = (-self.low / scale).round().int()
        return torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255)


class Linear(nn.Linear):
    def __init__(self, i, o):
        super().__init__(i, o)
        self.weights, self.outputs = Fake(), Fake()

    def forward(self, x):
        return self.outputs(nn.functional.linear(x, self.weights(self.weight), self.bias))


torch.manual_seed(0)
model = nn.Sequential(Linear(100, 200), nn.ReLU(), Linear(200, 200), nn.ReLU(), Linear(200, 10))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(900):
    if step == 450:
        for module in model.modules():
            if isinstance(module, Fake):
                module.observe = False
    x = torch.randn(64, 100)
    loss = nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 90 == 0:
        print(step, loss.item(), flush=True)
