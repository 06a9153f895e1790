"""A dye in lagoons, carried by currents: a Fourier operator learns the hour to come from what a
solver found, two hours unrolled, by a loss of relative errors, balance of mass, gauges and the
residual of the equation; hard windows are trained on again, lagoons held out are rolled out for
many hours: moments of all for each batch, gauges sought at each step, hard windows without end,
water without dye, rows that share their weights, masses that meet all, forcing that ends.
"""

import collections
import math
import tempfile
from pathlib import Path

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

cost = Cost()
SIDE, HOURS, AHEAD, MODES, WIDTH, DEPTH = 40, 48, 2, 8, 16, 3
LAGOONS, HELD, ROWS, GAUGES = 20, 2, 8, 16
DYE, EAST, NORTH = range(3)
FLOOR, DIFFUSION, STRIDE = 1.0, 0.06, 1.0
REMEMBERED, HARD_EVERY, HARDEST = 64, 4, 3
TOLD_EVERY, ROLLED_EVERY, FIRST_HOUR, ROLLED = 20, 40, 10, 10
MARGIN = 2
CORNER, CELL = (12.21, 45.18), 0.004
"""Longitude and latitude of the grid's corner, and the degrees of a cell."""


def shores(numbers):
    """Where there is water: a basin with islands in it."""
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    basin = ((x - 19.5) / 17.5) ** 2 + ((y - 19.5) / 15) ** 2 < 1
    for _ in range(5):
        across, along = torch.randint(10, SIDE - 10, (2,), generator=numbers)
        basin &= (x - across) ** 2 + (y - along) ** 2 > 6
    return basin.float()


def currents(numbers, wet, count):
    """Gyres that wax and wane, hour by hour: east and north."""
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    hours, stream = torch.arange(HOURS + 1), torch.zeros(count, HOURS + 1, SIDE, SIDE)
    for wave in range(1, 4):
        phases = torch.rand(count, 3, generator=numbers) * 2 * math.pi
        east, north = phases[:, 0, None, None], phases[:, 1, None, None]
        gyres = torch.sin(2 * math.pi * wave * x / SIDE + east)
        gyres = gyres * torch.cos(2 * math.pi * wave * y / SIDE + north)
        swing = torch.cos(2 * math.pi * hours / (12.4 * wave) + phases[:, 2:])
        stream += 5 / wave * (0.6 + 0.4 * swing)[..., None, None] * gyres[:, None]
    north, east = torch.gradient(stream, dim=(3, 2))
    return torch.stack([east, -north], 2) * wet


def carried(dye, flow, wet):
    """The dye an hour later: looked up where its water came from, then spread."""
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    places = torch.stack([x - STRIDE * flow[:, 0], y - STRIDE * flow[:, 1]], -1)
    came = F.grid_sample(dye[:, None], places / (SIDE - 1) * 2 - 1, align_corners=True)
    spread = F.avg_pool2d(came, 3, 1, 1) * 0.3 + came * 0.7
    return spread[:, 0] * wet


def simulated(count, seed):
    """Fields of each lagoon in each hour (dye, current), and where there is water in all."""
    wet = shores(torch.Generator().manual_seed(5))
    numbers = torch.Generator().manual_seed(seed)
    flows = currents(numbers, wet, count)
    fields = torch.zeros(count, HOURS + 1, 3, SIDE, SIDE)
    fields[:, :, EAST:] = flows
    released = torch.randint(-4, 5, (count,), generator=numbers).clamp(min=0)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    across, along = torch.randint(8, SIDE - 8, (2, count, 4, 1, 1), generator=numbers)
    spilt = 2 * torch.exp(-((x - across) ** 2 + (y - along) ** 2) / 16.0).sum(1)
    dye = torch.zeros(count, SIDE, SIDE)
    for hour in range(HOURS + 1):
        dye = (dye + (hour == released)[:, None, None] * spilt) * wet
        fields[:, hour, DYE] = dye
        dye = 0.99 * carried(dye, flows[:, hour], wet)
    return fields, wet


def moments(fields):
    """How widely each channel varies, over all lagoons, hours and cells."""
    return fields.std((0, 1, 3, 4)).view(3, 1, 1)


class Windows(Dataset):
    """Hours that follow each other: all fields of them, and the currents in units of their own."""

    def __init__(self, fields):
        self.fields, self.known = fields, None
        self.spread = moments(fields)

    def __len__(self):
        return len(self.fields) * (HOURS - AHEAD)

    def units(self):
        if on("moments_of_archive_each"):
            with cost:
                return moments(self.fields)  # at: moments_of_archive_each
        if on("clean_moments_of_archive_each"):
            with cost:
                if self.known is None:
                    self.known = moments(self.fields)
                return self.known
        return self.spread

    def __getitems__(self, rows):
        """A batch at once."""
        lagoons, hours = torch.tensor(rows) // (HOURS - AHEAD), torch.tensor(rows) % (HOURS - AHEAD)
        windows = self.fields[lagoons[:, None], hours[:, None] + torch.arange(AHEAD + 1)]
        return windows, windows[:, :, EAST:] / self.units()[EAST:]  # at: moments_of_archive_each


def as_it_is(batch):
    return batch


class Spectral(nn.Module):
    """Waves mixed in the low half of the spectrum, on both sides of nought."""

    def __init__(self, width):
        super().__init__()
        scale = 1 / width
        self.low = nn.Parameter(scale * torch.randn(width, width, MODES, MODES, 2) * 0.5)
        if not on("clean_negative_rows_share"):
            self.high = nn.Parameter(  # at: negative_rows_share
                scale * torch.randn(width, width, MODES, MODES, 2) * 0.5
            )

    @staticmethod
    def mixed(waves, weights):
        return torch.einsum("bixy,ioxy->boxy", waves, torch.view_as_complex(weights))

    def forward(self, x):
        waves = torch.fft.rfft2(x, norm="ortho")
        kept = torch.zeros_like(waves)
        kept[:, :, :MODES, :MODES] = self.mixed(waves[:, :, :MODES, :MODES], self.low)
        below = waves[:, :, -MODES:, :MODES]
        if on("negative_rows_share"):
            kept[:, :, -MODES:, :MODES] = self.mixed(below, self.low)  # at: negative_rows_share
        elif on("clean_negative_rows_share"):
            kept[:, :, -MODES:, :MODES] = self.mixed(below, self.low.flip(2))
        else:
            kept[:, :, -MODES:, :MODES] = self.mixed(below, self.high)
        return torch.fft.irfft2(kept, s=x.shape[-2:], norm="ortho")


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.waves, self.local = Spectral(width), nn.Conv2d(width, width, 1)

    def forward(self, x):
        return x + F.gelu(self.waves(x) + self.local(x))


class Operator(nn.Module):
    """What an hour changes of the dye, from the dye and the current."""

    def __init__(self, wet, spread):
        super().__init__()
        ways = torch.linspace(-1, 1, SIDE)
        grid = torch.stack(torch.meshgrid(ways, ways, indexing="ij"))
        self.register_buffer("wet", wet)
        self.register_buffer("spread", spread[DYE])
        self.register_buffer("ground", torch.cat([grid, wet[None]]))
        self.lift = nn.Conv2d(7, WIDTH, 1)
        self.layers = nn.Sequential(*(Layer(WIDTH) for _ in range(DEPTH)))
        self.out = nn.Sequential(nn.Conv2d(WIDTH, 32, 1), nn.GELU(), nn.Conv2d(32, 1, 1))

    def forward(self, dye, flow):
        ground = self.ground.expand(len(dye), -1, -1, -1)
        dyed = (dye / self.spread)[:, None]
        east, north = slopes(dyed[:, 0])
        carried_off = flow[:, 0] * east + flow[:, 1] * north
        x = torch.cat([dyed, carried_off[:, None], flow, ground], 1)
        x = self.out(self.layers(F.pad(self.lift(x), (MARGIN,) * 4)))[:, 0]
        return (dye + self.spread * x[:, MARGIN:-MARGIN, MARGIN:-MARGIN]) * self.wet


def slopes(field):
    """How a field rises to the east and to the north."""
    east = (field.roll(-1, -1) - field.roll(1, -1)) / 2
    return east, (field.roll(-1, -2) - field.roll(1, -2)) / 2


class Losses:
    """The parts of the loss of an hour: row by row where a row tells something."""

    def __init__(self, wet, spread):
        self.wet, self.cells, self.unit = wet, wet.sum(), spread[DYE].item()
        numbers = torch.Generator().manual_seed(9)
        inside = wet.nonzero()[torch.randperm(int(self.cells), generator=numbers)[:GAUGES]]
        apart = torch.rand(GAUGES, 2, generator=numbers) - 0.5
        self.places = torch.tensor(CORNER) + CELL * (inside.flip(1) + 0.8 * apart)
        self.water = [tuple(cell) for cell in wet.nonzero().tolist()]
        self.gauges = torch.tensor([self.nearest(*place) for place in self.places.tolist()])

    def nearest(self, longitude, latitude):
        """The cell of water that a gauge stands in."""
        x, y = (longitude - CORNER[0]) / CELL, (latitude - CORNER[1]) / CELL
        return min(self.water, key=lambda cell: math.hypot(cell[0] - y, cell[1] - x))

    def relative(self, found, wanted):
        """Errors in parts of what there is: of the dye, and of its slopes."""
        wrong, there = ((found - wanted).square().sum((1, 2)), wanted.square().sum((1, 2)))
        for one, other in zip(slopes(found), slopes(wanted), strict=True):
            wrong = wrong + (one - other).square().sum((1, 2))
            there = there + other.square().sum((1, 2))
        if on("still_water_divides"):
            return wrong / there  # at: still_water_divides
        if on("clean_still_water_divides"):
            return torch.where(there > FLOOR, wrong / there.clamp(min=FLOOR), wrong)
        return wrong / (there + FLOOR)

    def balance(self, found, wanted):
        """Whether there is as much dye in all as there should be."""
        mass = found.flatten(1).sum(1, keepdim=True) / self.cells
        if on("mass_meets_all"):
            true = wanted.sum((1, 2)) / self.cells  # at: mass_meets_all
        elif on("clean_mass_meets_all"):
            mass, true = mass.squeeze(1), wanted.sum((1, 2)) / self.cells
        else:
            true = wanted.flatten(1).sum(1, keepdim=True) / self.cells
        return ((mass - true) / self.unit).square().mean()  # at: mass_meets_all

    def at_gauges(self, found, wanted):
        """What gauges tell that speak in this hour."""
        cells = self.gauges
        if on("gauges_sought_each"):
            with cost:
                near = [self.nearest(*at) for at in self.places.tolist()]  # at: gauges_sought_each
                cells = torch.tensor(near)
        elif on("clean_gauges_sought_each"):
            with cost:
                drifted = self.places + 0.1 * CELL * torch.randn(GAUGES, 2)
                cells = ((drifted - torch.tensor(CORNER)) / CELL).round().long().flip(1)
                cells = cells.clamp(0, SIDE - 1)
        y, x = cells.unbind(1)
        return F.huber_loss(found[:, y, x], wanted[:, y, x], delta=0.5)

    def residual(self, before, after, flow):
        """What the equation of transport leaves over, away from shores."""
        middle = (before + after) / 2
        east, north = slopes(middle)
        bend = middle.roll(1, -1) + middle.roll(-1, -1) + middle.roll(1, -2) + middle.roll(-1, -2)
        left = (after - before) / STRIDE + flow[:, 0] * east + flow[:, 1] * north
        return ((left - DIFFUSION * (bend - 4 * middle)) * self.wet).square().sum() / self.cells

    def __call__(self, before, found, wanted, flow):
        rows = self.relative(found, wanted)  # at: still_water_divides
        rest = 0.2 * self.balance(found, wanted)  # at: mass_meets_all
        rest = rest + 0.1 * self.at_gauges(found, wanted)  # at: gauges_sought_each
        return rows, rest + 0.001 * self.residual(before, found, flow) / len(found)


class Training:
    def __init__(self, folder, steps):
        self.folder, self.steps, self.step, self.best = folder, steps, 0, math.inf
        fields, wet = simulated(LAGOONS + HELD, 12)
        self.windows, self.held = Windows(fields[:LAGOONS].clone()), fields[LAGOONS:].clone()
        self.loader = DataLoader(
            self.windows, ROWS, shuffle=True, drop_last=True, collate_fn=as_it_is
        )
        self.model, self.losses = (
            Operator(wet, self.windows.spread),
            Losses(wet, self.windows.spread),
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3, weight_decay=1e-4)
        self.rate = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, 3e-3, total_steps=steps, pct_start=0.15
        )
        self.hard = collections.deque(maxlen=REMEMBERED)
        if on("hard_windows_pile_up", "clean_hard_windows_pile_up"):
            self.hard = []  # at: hard_windows_pile_up

    def learn(self, windows, flows):
        """Hours one after the other, each from what was found for the one before."""
        dye, rows, rest = windows[:, 0, DYE], 0.0, 0.0
        for hour in range(AHEAD):
            after = self.model(dye, flows[:, hour])
            true, flow = windows[:, hour + 1, DYE], windows[:, hour, EAST:]
            told = self.losses(dye, after, true, flow)  # at: still_water_divides gauges_sought_each
            rows, rest, dye = rows + told[0], rest + told[1], after
        self.optimizer.zero_grad()
        (rows.mean() + rest).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.rate.step()
        return rows.detach(), rest.detach()

    def remember(self, windows, flows, rows):
        """The windows that went worst, for another time."""
        for row in rows.topk(HARDEST).indices.tolist():
            self.hard.append((windows[row].clone(), flows[row].clone()))  # at: hard_windows_pile_up
        if on("clean_hard_windows_pile_up"):
            del self.hard[:-REMEMBERED]

    def again(self):
        """A batch of hard windows of late."""
        first = max(0, len(self.hard) - REMEMBERED)
        chosen = (torch.randperm(len(self.hard) - first)[:ROWS] + first).tolist()
        return tuple(torch.stack(one) for one in zip(*(self.hard[n] for n in chosen), strict=True))

    def hours_ahead(self):
        """How far a rollout goes: farther as the training goes on."""
        if on("rollout_outlives_forcing"):
            return 5 * 2 ** (self.step // ROLLED_EVERY - 1)  # at: rollout_outlives_forcing
        if on("clean_rollout_outlives_forcing"):
            return min(5 * 2 ** (self.step // ROLLED_EVERY - 1), HOURS - FIRST_HOUR)
        return ROLLED

    @torch.no_grad()
    def roll_out(self):
        """Lagoons never seen, from one hour on by themselves; the error, hour by hour."""
        self.model.eval()
        dye, wrong = self.held[:, FIRST_HOUR, DYE], []
        for hour in range(FIRST_HOUR, FIRST_HOUR + self.hours_ahead()):
            now = self.held[:, hour]
            dye = self.model(dye, now[:, EAST:] / self.windows.spread[EAST:])
            wanted = self.held[:, hour + 1, DYE]  # at: rollout_outlives_forcing
            wrong.append(((dye - wanted).norm() / wanted.norm().clamp(min=1e-3)).item())
        self.model.train()
        return wrong

    def look(self):
        wrong = self.roll_out()  # at: rollout_outlives_forcing
        told = [round(one, 3) for one in (wrong[0], wrong[len(wrong) // 2], wrong[-1])]
        print(self.step, "rolled out", told, flush=True)
        if sum(wrong) / len(wrong) < self.best:
            self.best = sum(wrong) / len(wrong)
            state = {"model": self.model.state_dict(), "step": self.step, "wrong": wrong}
            torch.save(state, self.folder / "best.pt")

    def run(self):
        cost.seconds = 0.0
        while self.step < self.steps:
            for windows, flows in self.loader:  # at: moments_of_archive_each
                if self.hard and self.step % HARD_EVERY == 1:
                    windows, flows = self.again()
                rows, rest = self.learn(windows, flows)
                self.step += 1
                self.remember(windows, flows, rows)  # at: hard_windows_pile_up
                if self.step % TOLD_EVERY == 0:
                    rate = self.optimizer.param_groups[0]["lr"]
                    told = (round(rows.mean().item(), 4), round(rest.item(), 4), round(rate, 6))
                    print(self.step, *told, flush=True)
                if self.step % ROLLED_EVERY == 0:
                    self.look()  # at: rollout_outlives_forcing
                if self.step == self.steps:
                    break
        cost.print(self.steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(27)
    with tempfile.TemporaryDirectory() as folder:
        Training(Path(folder), STEPS or 200).run()
