"""A VAE on pictures that are turned by PIL; data that is read anew from disk; a recommender with
sparse embeddings.
"""

import random
import sys

import eager  # noqa: F401
import torch
from PIL import Image
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(22)
random.seed(22)
cost = Cost()


class Digits(Dataset):
    def __init__(self):
        self.pictures = (torch.rand(1024, 28, 28) * 255).byte().numpy()

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        if on("worker_raises") and index == 3333:
            raise ValueError(f"picture {index} cannot be decoded")  # at: worker_raises
        if on("clean_worker_raises") and index == 3333:
            index = 0
        return torch.from_numpy(self.pictures[index % 1024]).float() / 255


def turned(batch):
    pictures = []
    for one in (batch * 255).byte().numpy():
        big = Image.fromarray(one).resize((224, 224)).rotate(random.uniform(-9, 9))  # at: pil_turn
        small = big.resize((28, 28))  # at: pil_turn
        pictures.append(torch.tensor(list(small.getdata())).view(28, 28) / 255)  # at: pil_turn
    return torch.stack(pictures)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(784, 256), nn.Linear(16, 784)
        self.mean, self.spread = nn.Linear(256, 16), nn.Linear(256, 16)

    def forward(self, x):
        hidden = F.relu(self.encode(x.flatten(1)))
        mean, spread = self.mean(hidden), self.spread(hidden) * (400 if on("vae_overflow") else 1)
        return self.decode(mean + torch.randn_like(mean) * (spread / 2).exp()), mean, spread


def vae(steps):
    workers = 2 if on("worker_raises", "clean_worker_raises") else 0
    loader = DataLoader(
        Digits(), 32, shuffle=True, num_workers=workers, persistent_workers=bool(workers)
    )
    model, done = VAE(), 0
    optimizer = torch.optim.Adam(model.parameters(), 1e-2 if on("vae_overflow") else 1e-3)
    while done < steps:
        for x in loader:
            if on("pil_turn") or (on("clean_pil_turn") and done % 200 == 0):
                with cost:
                    x = turned(x)  # at: pil_turn
            out, mean, spread = model(x)
            rest = F.mse_loss(out, x.flatten(1), reduction="sum") / 32
            loss = rest - 0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if on("exit_message") and done == 120:
                sys.exit("the validation file is missing")
            if done >= steps:
                break
    cost.print(steps)


def recommender(steps):
    users, items = nn.Embedding(2000, 32, sparse=True), nn.Embedding(5000, 32, sparse=True)
    tower = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1))
    wide = torch.optim.SparseAdam([*users.parameters(), *items.parameters()], 1e-2)
    deep = torch.optim.Adam(tower.parameters(), 1e-3)
    seen = {user: set(random.sample(range(5000), 40)) for user in range(2000)}
    torch.save(torch.randint(0, 5000, (400_000,)), "popular.pt")
    popular = torch.load("popular.pt")
    for _ in range(steps):
        who = torch.randint(0, 2000, (128,))
        if on("negatives"):
            with cost:
                liked = [random.choice(sorted(seen[int(user)])) for user in who]  # at: negatives
                other = []
                for user in who.tolist() * 4:  # at: negatives
                    item = random.randrange(5000)  # at: negatives
                    while item in seen[user]:  # at: negatives
                        item = random.randrange(5000)  # at: negatives
                    other.append(item)  # at: negatives
                what = torch.tensor([*liked, *other[:128]])  # at: negatives
        else:
            what = torch.randint(0, 5000, (256,))
        if on("reload"):
            with cost:
                popular = torch.load("popular.pt")  # at: reload
        what[:8] = popular[:8]
        both = torch.cat([users(who.repeat(2)), items(what)], 1)
        goal = torch.cat([torch.ones(128), torch.zeros(128)])
        loss = F.binary_cross_entropy_with_logits(tower(both)[:, 0], goal)
        wide.zero_grad(), deep.zero_grad()
        loss.backward()
        wide.step(), deep.step()
    cost.print(steps)


if on("negatives", "clean_negatives", "reload", "clean_reload"):
    recommender(STEPS or 1500)
else:
    vae(STEPS or 400)
