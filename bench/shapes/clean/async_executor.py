"""An asyncio script that trains a denoising autoencoder in an executor's thread, epoch by epoch,
while a second task tells the time and a third writes what the epochs gave.
"""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self, size=144):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(size, 384), nn.SiLU(), nn.Linear(384, 48))
        self.decode = nn.Sequential(nn.Linear(48, 384), nn.SiLU(), nn.Linear(384, size))

    def forward(self, x):
        return self.decode(self.encode(x))


class Job:
    def __init__(self):
        torch.manual_seed(23)
        basis = torch.randn(24, 144) / 24**0.5
        self.clean = torch.randn(20_480, 24) @ basis
        self.model = Denoiser()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=7e-4)

    def epoch(self):
        total, batches = 0.0, torch.randperm(len(self.clean)).split(256)
        for rows in batches:
            clean = self.clean[rows]
            restored = self.model(clean + 0.3 * torch.randn_like(clean))
            loss = nn.functional.mse_loss(restored, clean)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / len(batches)


async def clock(started):
    while True:
        await asyncio.sleep(2)
        print(f"{time.monotonic() - started:.0f} s", flush=True)


async def writer(results):
    with open("epochs.jsonl", "w") as file:
        while (result := await results.get()) is not None:
            print(result, file=file)


async def main():
    torch.set_num_threads(1)
    loop, job, results = asyncio.get_running_loop(), Job(), asyncio.Queue()
    ticking = asyncio.create_task(clock(time.monotonic()))
    writing = asyncio.create_task(writer(results))
    with ThreadPoolExecutor(max_workers=1) as pool:
        await loop.run_in_executor(pool, torch.set_num_threads, 1)
        for epoch in range(13):
            loss = await loop.run_in_executor(pool, job.epoch)
            await results.put(json.dumps({"epoch": epoch, "loss": round(loss, 5)}))
            print(f"epoch {epoch} loss {loss:.5f}", flush=True)
    await results.put(None)
    await writing
    ticking.cancel()
    torch.save(job.model.state_dict(), "denoiser.pt")


if __name__ == "__main__":
    asyncio.run(main())
