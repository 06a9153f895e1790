"""An LSTM that forecasts series in a background thread; the main thread prints what comes over a
queue and leaves by sys.exit(0).
"""

import math
import queue
import sys
import threading

import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.lstm = nn.LSTM(2, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, 6)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def series(count, length=54):
    time = torch.arange(length, dtype=torch.float32)
    period, phase = 10 + 10 * torch.rand(count, 1), 2 * math.pi * torch.rand(count, 1)
    season = torch.sin(2 * math.pi * time / period + phase)
    trend = 0.02 * torch.randn(count, 1) * time
    return torch.stack([season + trend, (time / length).expand(count, -1)], 2)


class Trainer(threading.Thread):
    def __init__(self, news, steps):
        super().__init__(name="trainer")
        self.news, self.steps, self.stop = news, steps, threading.Event()

    def run(self):
        torch.set_num_threads(1)
        torch.manual_seed(29)
        data = series(6_000)
        model = Forecaster()
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        for step in range(self.steps):
            if self.stop.is_set():
                break
            batch = data[torch.randint(len(data), (48,))]
            observed = batch + 0.05 * torch.randn_like(batch)
            loss = nn.functional.mse_loss(model(observed[:, :48]), batch[:, 48:, 0])
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            if step % 25 == 0:
                self.news.put((step, loss.item(), norm.item()))
        torch.save(model.state_dict(), "forecaster.pt")
        self.news.put(None)


def main():
    news: queue.Queue = queue.Queue()
    trainer = Trainer(news, steps=400)
    trainer.start()
    try:
        while (item := news.get()) is not None:
            step, loss, norm = item
            print(f"step {step:4d} loss {loss:.4f} gradient {norm:.3f}", flush=True)
    except KeyboardInterrupt:
        trainer.stop.set()
    trainer.join()
    print("done")
    sys.exit(0)


if __name__ == "__main__":
    main()
