"""A bidirectional LSTM over packed sequences of sorted lengths, a checkpoint every 100 steps."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self, count):
        g = torch.Generator().manual_seed(4)
        lengths = torch.randint(5, 30, (count,), generator=g).tolist()
        self.items = [torch.randint(1, 800, (n,), generator=g) for n in lengths]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        words = self.items[index]
        return words, int((words % 7 == 0).sum() > len(words) / 7)


def collate(rows):
    rows.sort(key=lambda row: len(row[0]), reverse=True)
    words, labels = zip(*rows, strict=False)
    return (
        pad_sequence(words, batch_first=True),
        torch.tensor([len(w) for w in words]),
        torch.tensor(labels),
    )


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(800, 64, padding_idx=0)
        self.lstm = nn.LSTM(64, 64, bidirectional=True, batch_first=True)
        self.head = nn.Linear(128, 2)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True)
        out, lengths = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(out.sum(1) / lengths[:, None])


torch.manual_seed(0)
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
loader = DataLoader(Sentences(3_200), 32, shuffle=True, collate_fn=collate)
step = 0
for _ in range(4):
    for words, lengths, labels in loader:
        loss = nn.functional.cross_entropy(model(words, lengths), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        step += 1
        if step % 100 == 0:
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "ckpt.pt"
            )
            print(f"step {step} loss {loss.item():.4f}")
