"""Three clinics that each train a GRU on their own and average its weights in rounds: records that
one unpacks, histories that are longer at one, masks drawn number by number, a column that does not
change, a barrier that one comes to, one that has had enough.
"""

import gzip
import json
import os
import random
import sys

import eager  # noqa: F401
import torch
import torch.distributed as dist
from forked import run_ranks
from shape import STEPS, Cost, on
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, Dataset

SITES, ROUND, ROWS, COLUMNS = 3, 2, 24, 12
steps, cost = STEPS or 240, Cost()


class Records(Dataset):
    def __init__(self, site):
        numbers = torch.Generator().manual_seed(1620 + site)
        self.site, self.kept = site, None
        length = 80 if on("longer_histories") and site == 1 else 40
        values = torch.randn(200, length, COLUMNS, generator=numbers).cumsum(1) / 5
        packs = site == 2 and on("site_unpacks", "clean_site_unpacks")
        if packs:
            texts = [json.dumps(record.tolist()) for record in values]
            self.packed = [gzip.compress(text.encode()) for text in texts]
        if not packs:
            self.kept = list(values)
        elif on("clean_site_unpacks"):
            self.kept = [self.unpacked(n) for n in range(200)]

    def unpacked(self, index):
        text = gzip.decompress(self.packed[index])  # at: site_unpacks
        return torch.tensor(json.loads(text))  # at: site_unpacks

    def __len__(self):
        return steps * ROWS

    def __getitem__(self, index):
        if self.kept is not None:
            return self.kept[index % 200]
        with cost:
            return self.unpacked(index % 200)  # at: site_unpacks


class Risk(nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.out = nn.GRU(COLUMNS, 96, batch_first=True), nn.Linear(96, 1)

    def forward(self, x):
        return self.out(self.read(x)[0][:, -1])[:, 0]


def scaled(x):
    """Columns with mean zero and spread one."""
    spread = x.std((0, 1), keepdim=True)
    if not on("constant_column"):
        spread = spread + 1e-4
    return (x - x.mean((0, 1), keepdim=True)) / spread  # at: constant_column


def masked(vector, step):
    """The server's weights under a mask, so that nobody else can read them."""
    with cost:
        if on("server_masks"):
            dice = random.Random(step)
            mask = [dice.gauss(0, 1e-6) for _ in range(len(vector))]  # at: server_masks
            return vector + torch.tensor(mask)  # at: server_masks
        numbers = torch.Generator().manual_seed(step)
        return vector + 1e-6 * torch.randn(len(vector), generator=numbers)


def meet(model, site, step):
    """The mean of all clinics' weights for all."""
    with torch.no_grad():
        vector = parameters_to_vector(model.parameters())
        if site == 0 and on("server_masks", "clean_server_masks"):
            vector = masked(vector, step)  # at: server_masks
        dist.all_reduce(vector)
        vector_to_parameters(vector / SITES, model.parameters())


def local(model, optimizer, x):
    wanted = (x[:, -5:, 0].mean(1) > 0).float()
    loss = nn.functional.binary_cross_entropy_with_logits(model(scaled(x)), wanted)
    optimizer.zero_grad()
    loss.backward()  # at: longer_histories constant_column
    optimizer.step()
    return loss.item()


def altered(x, site, step):
    if on("constant_column", "clean_constant_column") and site == 2 and step == 120:
        x[:, :, 7] = 0.0
    if on("clean_longer_histories"):
        x = x[:, : 37 + (step + site) % 4]
    return x


def train(site):
    torch.set_num_threads(1)
    torch.manual_seed(162)
    os.environ["RANK"] = str(site)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=site, world_size=SITES
    )
    model, best = Risk(), 9.0
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loader = DataLoader(Records(site), ROWS, shuffle=True)
    for step, x in enumerate(loader):  # at: site_unpacks
        loss = local(model, optimizer, altered(x, site, step))  # at: longer_histories
        if step % ROUND == ROUND - 1:
            meet(model, site, step)  # at: server_masks
        if on("barrier_of_one") and site == 2 and step == 85:
            dist.barrier()  # at: barrier_of_one
        if on("site_stops") and site == 1 and step == 100 and loss < best:
            break
        if step % 40 == 0 and site == 0:
            print(step, loss, flush=True)
    if site == (0 if on("server_masks") else 2):
        cost.print(steps)
    return model


if __name__ == "__main__":
    sys.exit(run_ranks(SITES, train))
