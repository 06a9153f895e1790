"""An evolution strategy without gradients (antithetic, by ranks), then a finetuning with Adam."""

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

torch.set_num_threads(1)
torch.manual_seed(17)
PAIRS, SIGMA = 16, 0.03

hidden = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 4)).requires_grad_(False)
inputs = torch.randn(12_000, 16)
outputs = 3 * hidden(inputs)
model = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 4))


def batch(count):
    rows = torch.randint(len(inputs), (count,))
    return inputs[rows], outputs[rows]


@torch.no_grad()
def fitness(weights, x, y):
    vector_to_parameters(weights, model.parameters())
    return -nn.functional.mse_loss(model(x), y).item()


@torch.no_grad()
def evolve(generations, rate=0.01):
    centre = parameters_to_vector(model.parameters()).clone()
    velocity = torch.zeros_like(centre)
    for generation in range(generations):
        x, y = batch(256)
        noise = torch.randn(PAIRS, len(centre))
        noise = torch.cat([noise, -noise])
        scores = torch.tensor([fitness(centre + SIGMA * one, x, y) for one in noise])
        ranks = scores.argsort().argsort().float() / (len(scores) - 1) - 0.5
        velocity = 0.9 * velocity + ranks @ noise / len(noise)
        centre += rate * velocity
        if generation % 50 == 0:
            print(f"generation {generation} mean error {-scores.mean().item():.4f}")
    vector_to_parameters(centre, model.parameters())


def finetune(steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, steps, power=1.5)
    for step in range(steps):
        x, y = batch(768)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 200 == 0:
            print(f"finetuning {step} error {loss.item():.5f}")


if __name__ == "__main__":
    evolve(300)
    finetune(1_500)
    torch.save(model.state_dict(), "evolved.pt")
