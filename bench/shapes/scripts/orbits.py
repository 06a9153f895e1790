"""Orbits of four bodies by a neural differential equation whose steps adapt, in one flat script:
errors looked at row by row, a tolerance that tightens, paths that are kept, a step that is never
accepted, an energy in half precision, a cycle that is over too soon.
"""

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(164)
steps, cost = STEPS or 300, Cost()
ROWS, SIZE = 192, 16
pull = 0.15 * torch.randn(SIZE, SIZE)
pull = pull - pull.T
turn = torch.matrix_exp(pull)


class Field(nn.Module):
    """Where a state goes next: a known pull, and what is learnt."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(SIZE, 160, bias=False)
        self.second = nn.Linear(160, 160, bias=False)
        self.last = nn.Linear(160, SIZE, bias=False)

    def forward(self, y):
        learnt = self.last(self.second(self.first(y).tanh()).tanh())  # at: never_accepted
        return 0.9 * y @ pull + learnt  # at: never_accepted


class Flow(nn.Module):
    """States after a time of one, by Heun's method with steps that suit the tolerance."""

    def __init__(self):
        super().__init__()
        self.field, self.tolerance, self.calls = Field(), 6e-3, 0

    def error(self, better, worse):
        gaps = (better - worse).detach()  # at: never_accepted
        if on("errors_by_row"):
            with cost:
                largest = 0.0
                for gap, state in zip(gaps, better.detach(), strict=True):  # at: errors_by_row
                    size = state.norm().item() + 1e-6  # at: errors_by_row
                    largest = max(largest, gap.norm().item() / size)  # at: errors_by_row
                return largest
        sizes = better.detach().norm(dim=1)  # at: never_accepted
        if not on("never_accepted"):
            sizes = sizes + 1e-6
        return (gaps.norm(dim=1) / sizes).max().item()  # at: never_accepted

    def forward(self, y):
        t, dt, path = 0.0, 0.2, [y]
        while t < 1 - 1e-6:  # at: never_accepted
            dt = min(dt, 1 - t)  # at: never_accepted
            k1 = self.field(y)  # at: never_accepted tolerance_tightens
            k2 = self.field(y + dt * k1)  # at: never_accepted tolerance_tightens
            worse, better = y + dt * k1, y + dt * (k1 + k2) / 2  # at: never_accepted
            error = self.error(better, worse)  # at: errors_by_row never_accepted
            self.calls += 2  # at: never_accepted
            if error <= self.tolerance:  # at: never_accepted
                t, y = t + dt, better
                path.append(y)
            factor = 0.9 * (self.tolerance / max(error, 1e-9)) ** 0.5  # at: never_accepted
            dt *= min(2.0, max(0.3, factor))  # at: never_accepted
        return y, path


flow = Flow()
optimizer = torch.optim.AdamW(flow.parameters(), 2e-3)
total = steps - 90 if on("cycle_over") else steps + 1
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=total)
paths = []

for step in range(steps):
    start = torch.randn(ROWS, SIZE)
    if on("never_accepted", "clean_never_accepted") and step == 90:
        start[11] = 0
    if on("energy_in_half", "clean_energy_in_half") and step >= 140:
        start = 1.4 * start
    if on("tolerance_tightens") or (on("clean_tolerance_tightens") and step < 12):
        flow.tolerance *= 0.99
    end, path = flow(start)  # at: errors_by_row never_accepted tolerance_tightens
    loss = (end - start @ turn).pow(2).mean()
    moved = torch.cat([start, end]) * 2.6
    if on("energy_in_half"):
        energy = moved.half().pow(2).sum().float()  # at: energy_in_half
    else:
        energy = moved.pow(2).sum()
    loss = loss + 1e-8 * energy  # at: energy_in_half
    optimizer.zero_grad()
    loss.backward()  # at: energy_in_half
    optimizer.step()
    schedule.step()  # at: cycle_over
    if on("paths_kept"):
        paths.append(path)  # at: paths_kept
    elif on("clean_paths_kept"):
        paths = [*paths, [state[0].tolist() for state in path]][-20:]
    if step % 40 == 0:
        print(step, loss.item(), flow.calls, len(paths), flush=True)
        flow.calls = 0
cost.print(steps)
