"""Hogwild: two processes step on the same shared parameters without a lock; the parent waits."""

import torch
import torch.multiprocessing as mp
from torch import nn

FEATURES, CLASSES, STEPS = 96, 12, 500


def build():
    return nn.Sequential(
        nn.Linear(FEATURES, 384), nn.ReLU(),
        nn.Linear(384, 384), nn.ReLU(),
        nn.Linear(384, CLASSES),
    )  # fmt: skip


def dataset(seed, count):
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    noise = torch.randn(count, FEATURES, generator=generator)
    return 0.35 * centres[labels] + noise, labels


def train(number, model):
    torch.set_num_threads(1)
    torch.manual_seed(100 + number)
    features, labels = dataset(number + 1, 30_000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, weight_decay=1e-4)
    for step in range(STEPS):
        chosen = torch.randint(len(features), (384,))
        loss = nn.functional.cross_entropy(model(features[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"process {number} step {step} loss {loss.item():.4f}", flush=True)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = build()
    model.share_memory()
    context = mp.get_context("spawn")
    processes = [context.Process(target=train, args=(number, model)) for number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    features, labels = dataset(99, 4_000)
    with torch.no_grad():
        accuracy = (model(features).argmax(1) == labels).float().mean().item()
    print(f"accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
