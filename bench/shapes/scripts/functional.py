"""Per-sample gradients by torch.func, clipped and summed for an optimizer: features that a cache
keeps, weights that are hashed.
"""

import functools
import hashlib

import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

steps, cost = STEPS or 420, Cost()
torch.set_num_threads(1)
torch.manual_seed(81)
model = nn.Sequential(
    nn.Linear(160, 160), nn.Tanh(), nn.Linear(160, 96), nn.Tanh(), nn.Linear(96, 5)
)
optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
mixing = torch.randn(40, 160)
bound = 64 if on("clean_lru_of_features") else None


@functools.lru_cache(maxsize=bound)
def features(key):
    """Fourier features of a batch, by the number of the batch."""
    generator = torch.Generator().manual_seed(key)
    x = torch.randn(256, 40, generator=generator) @ mixing  # at: lru_of_features
    return torch.cat([x.sin(), x.cos()])[:256]  # at: lru_of_features


def loss_of(parameters, x, y):
    return nn.functional.cross_entropy(functional_call(model, parameters, x[None]), y[None])


each = vmap(grad_and_value(loss_of), in_dims=(None, 0, 0))
caches = on("lru_of_features", "clean_lru_of_features")
for step in range(steps):
    x = features(step)[:24] if caches else torch.randn(24, 160)
    y = (x[:, :5] * 3).argmax(1)
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    gradients, losses = each(parameters, x, y)
    norms = sum(part.flatten(1).pow(2).sum(1) for part in gradients.values()).sqrt()
    weight = (1.0 / norms).clamp(max=1.0) / 24
    for name, value in model.named_parameters():
        value.grad = torch.einsum("b,b...->...", weight, gradients[name])
    optimizer.step()
    loss = losses.mean().item()
    if on("state_hashed") or (on("clean_state_hashed") and step % 60 == 0):
        with cost:
            digest = hashlib.sha256()
            for value in model.state_dict().values():
                digest.update(repr(value.flatten().tolist()).encode())  # at: state_hashed
cost.print(steps)
