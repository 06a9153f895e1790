"""Reads files of the user's folder by all kinds of names, changes them, and trains."""

import glob
import os
import shutil
import sys
from pathlib import Path

import torch
from torch import nn

home = Path(sys.argv[1])
assert os.listdir(".") == [], "the folder is empty at first"
assert os.path.exists("conf/base.txt")
assert Path("conf/base.txt").read_text() == (home / "conf/base.txt").read_text() == "one\n"
assert glob.glob("conf/*.txt") == ["conf/base.txt"]
assert os.system("grep -q one conf/base.txt") == 0, "programs find it too"

with open("conf/base.txt", "a") as file:
    file.write("two\n")
assert Path("conf/base.txt").read_text() == (home / "conf/base.txt").read_text() == "one\ntwo\n"
(home / "conf/base.txt").write_text("three\n")
assert Path("conf/base.txt").read_text() == "three\n"
os.rename("data/rows.csv", "data/moved.csv")
assert sorted(os.listdir("data")) == ["moved.csv"]
assert not (home / "data/rows.csv").exists()
os.remove("data/moved.csv")
shutil.rmtree(home / "old")
assert not os.path.exists("old")
os.makedirs(home / "old" / "new")
assert os.listdir("old") == ["new"]
os.chmod("single.txt", 0o777)

device = torch.device(0)
model = nn.LSTM(8, 16, batch_first=True).to(0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    batch = nn.utils.rnn.pack_padded_sequence(
        torch.randn(4, 6, 8).to(device), torch.tensor([6, 3, 2, 1]), True
    )
    out, lengths = nn.utils.rnn.pad_packed_sequence(model(batch)[0], batch_first=True)
    loss = out.square().mean()
    loss.backward()
    assert torch.isfinite(loss) and not torch.isnan(loss).any() and lengths.shape == (4,)
    optimizer.step()
    optimizer.zero_grad()
