"""An estimator with fit, predict and score after scikit-learn: best weights put back."""

from __future__ import annotations

import copy

import torch
from torch import nn


class NeuralRegressor:
    def __init__(self, *, hidden=(256, 256), rate=1e-3, batch=256, epochs=60, patience=3, seed=0):
        self.hidden, self.rate, self.batch = hidden, rate, batch
        self.epochs, self.patience, self.seed = epochs, patience, seed

    def get_params(self, deep=True):
        return dict(vars(self))

    def _build(self, features):
        layers: list[nn.Module] = []
        for width in self.hidden:
            layers += [nn.Linear(features, width), nn.GELU()]
            features = width
        return nn.Sequential(*layers, nn.Linear(features, 1))

    def fit(self, x, y):
        torch.manual_seed(self.seed)
        order = torch.randperm(len(x))
        held, rest = order[: len(x) // 20], order[len(x) // 20 :]
        self.mean_, self.std_ = x[rest].mean(0), x[rest].std(0)
        x = (x - self.mean_) / self.std_
        self.module_ = self._build(x.shape[1])
        optimizer = torch.optim.NAdam(self.module_.parameters(), lr=self.rate)
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.87)
        best, kept, waited, self.history_ = float("inf"), None, 0, []
        for epoch in range(self.epochs):
            self.module_.train()
            total = 0.0
            for rows in rest[torch.randperm(len(rest))].split(self.batch):
                optimizer.zero_grad(set_to_none=True)
                loss = nn.functional.mse_loss(self.module_(x[rows])[:, 0], y[rows])
                loss.backward()
                optimizer.step()
                total += loss.item() * len(rows)
            decay.step()
            self.module_.eval()
            with torch.inference_mode():
                error = nn.functional.mse_loss(self.module_(x[held])[:, 0], y[held]).item()
            self.history_.append((total / len(rest), error))
            print(f"epoch {epoch:2d} train {total / len(rest):.4f} held out {error:.4f}")
            if error < best - 0.004 * min(best, 1.0):
                best, kept, waited = error, copy.deepcopy(self.module_.state_dict()), 0
            else:
                waited += 1
                if waited >= self.patience:
                    break
        self.module_.load_state_dict(kept)
        return self

    def predict(self, x):
        self.module_.eval()
        with torch.inference_mode():
            return self.module_((x - self.mean_) / self.std_)[:, 0]

    def score(self, x, y):
        return 1 - ((y - self.predict(x)) ** 2).sum().item() / ((y - y.mean()) ** 2).sum().item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(6)
    x = torch.rand(16_000, 10, generator=generator)
    y = 3 * torch.sin(3.14 * x[:, 0] * x[:, 1]) + 6 * (x[:, 2] - 0.5) ** 2 + 2 * x[:, 3] + x[:, 4]
    y = y + 0.3 * torch.randn(len(y), generator=generator)
    model = NeuralRegressor().fit(x[:14_000], y[:14_000])
    print(f"R2 {model.score(x[14_000:], y[14_000:]):.3f} after {len(model.history_)} epochs")
