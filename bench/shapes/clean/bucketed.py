"""Texts of 20 to 160 tokens in batches of like length (a batch sampler by buckets), two workers,
key padding masks.
"""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler


class Texts(Dataset):
    def __init__(self):
        chooser = random.Random(2)
        self.lengths = [int(20 + 140 * chooser.random() ** 2) for _ in range(2_400)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        return torch.randint(1, 500, (self.lengths[index],), generator=g)


class Buckets(Sampler):
    def __init__(self, lengths, size):
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.batches = [order[i : i + size] for i in range(0, len(order), size)]

    def __iter__(self):
        return iter(random.sample(self.batches, len(self.batches)))

    def __len__(self):
        return len(self.batches)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(500, 64), nn.Embedding(200, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 500)

    def forward(self, x, padding):
        z = self.embed(x) + self.place(torch.arange(x.shape[1]))
        return self.head(self.encoder(z, src_key_padding_mask=padding))


def main():
    torch.manual_seed(0)
    data = Texts()
    loader = DataLoader(
        data, batch_sampler=Buckets(data.lengths, 24), num_workers=2, persistent_workers=True,
        collate_fn=lambda rows: nn.utils.rnn.pad_sequence(rows, batch_first=True),
    )  # fmt: skip
    model = Masked()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4)
    for epoch in range(4):
        for number, tokens in enumerate(loader):
            padding = tokens == 0
            hide = (torch.rand(tokens.shape) < 0.15) & ~padding
            out = model(tokens.masked_fill(hide, 0), padding)
            loss = nn.functional.cross_entropy(out[hide], tokens[hide])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if number % 25 == 0:
                print(f"epoch {epoch} [{number}/{len(loader)}] loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
