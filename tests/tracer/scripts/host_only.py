"""No word of a GPU; a while loop, two inputs, a mask that decides a shape, a tensor data set."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

tokens = torch.randint(1, 100, (200, 24))
lengths = torch.randint(4, 24, (200,))
tokens[torch.arange(24)[None, :] >= lengths[:, None]] = 0
loader = DataLoader(TensorDataset(tokens, lengths), batch_size=10, shuffle=True)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32, padding_idx=0)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 100)

    def forward(self, ids, lengths):
        longest = int(lengths.max().item())
        ids = ids[:, :longest]
        mask = ids == 0
        hidden = self.encoder(self.embed(ids), src_key_padding_mask=mask)
        kept = hidden[~mask]
        assert kept.shape[0] == int((~mask).sum())
        return self.head(kept), ids[~mask]


model = Tagger()
optimizer = optim.Adam(model.parameters(), lr=3e-4)
loss_value = 10.0
done = 0
while loss_value > 0.01 and done < 50:
    for ids, sizes in loader:
        optimizer.zero_grad()
        logits, target = model(ids, sizes)
        loss = nn.functional.cross_entropy(logits, target)
        loss.backward()
        optimizer.step()
        loss_value = loss.item()
        done += 1
