"""Patches of three-dimensional scans for a small U-Net: patches are looked for, volumes are
unpacked, the overlap has a zero below it, and whole volumes are predicted window by window.
"""

import gzip
import io

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.utils.data import DataLoader, Dataset

steps, cost = STEPS or 250, Cost()
torch.set_num_threads(1)
torch.manual_seed(111)
volumes = [torch.randn(24, 24, 24) for _ in range(6)]
labels = [(volume > 2.2).float() for volume in volumes]
packed = []
for volume in volumes:
    raw = io.BytesIO()
    torch.save(volume.repeat(4, 2, 2), raw)
    packed.append(gzip.compress(raw.getvalue(), 1))


class Patches(Dataset):
    def __len__(self):
        return steps * 4

    def __getitem__(self, index):
        scan = index % 6
        volume, label = volumes[scan], labels[scan]
        if on("scan_unpacked"):
            with cost:
                raw = gzip.decompress(packed[scan])  # at: scan_unpacked
                volume = torch.load(io.BytesIO(raw))[:24, :24, :24]  # at: scan_unpacked
        wanted = 36 if on("patch_rejected") else 1
        with cost:
            while True:
                x, y, z = torch.randint(0, 13, (3,)).tolist()  # at: patch_rejected
                cut = label[x : x + 12, y : y + 12, z : z + 12]  # at: patch_rejected
                if cut.sum() >= wanted or torch.rand(1) < 0.02:  # at: patch_rejected
                    break
        if on("no_lesion", "clean_no_lesion") and index % 90 == 89:
            cut = torch.zeros_like(cut)
        return volume[x : x + 12, y : y + 12, z : z + 12][None], cut[None]


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv3d(1, 12, 3, padding=1)
        self.low = nn.Conv3d(12, 24, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose3d(24, 12, 2, stride=2)
        self.out = nn.Conv3d(24, 1, 1)

    def forward(self, x):
        high = torch.relu(self.down(x))
        low = torch.relu(self.low(high))
        return self.out(torch.cat([high, self.up(low)], 1))


def dice(scores, truth):
    """One minus the overlap, of the mean of all patches."""
    hard = torch.sigmoid(scores)
    if on("no_lesion"):
        both = (hard * truth).flatten(1).sum(1)
        return 1 - (both / truth.flatten(1).sum(1)).mean()  # at: no_lesion
    both = (hard * truth).sum()
    return 1 - (2 * both + 1) / (hard.sum() + truth.sum() + 1)


def predict(volume):
    """Predict a volume window by window."""
    model.eval()
    with torch.no_grad():
        whole = torch.zeros(24, 24, 24)
        for x in range(0, 13, 6):
            for y in range(0, 13, 6):
                for z in range(0, 13, 6):
                    cut = slice(x, x + 12), slice(y, y + 12), slice(z, z + 12)
                    whole[cut] = model(volume[cut][None, None])[0, 0]  # at: windows
    model.train()
    return whole


model = UNet()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
loader = DataLoader(Patches(), batch_size=4)  # at: scan_unpacked patch_rejected
for step, (scan, truth) in enumerate(loader):  # at: scan_unpacked patch_rejected
    loss = dice(model(scan), truth)  # at: no_lesion
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (on("windows") and step % 4 == 3) or (on("clean_windows") and step % 80 == 79):
        predict(volumes[step % 6])  # at: windows
    if step % 40 == 0:
        print(step, loss.item(), flush=True)
cost.print(steps)
