"""fp16 autocast with a GradScaler, accumulation, a real data loader with workers and
pinned memory.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randn(256), torch.tensor(index % 4)


model = nn.Sequential(
    nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Dropout(0.1), nn.Linear(1024, 4)
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = (
    torch.cuda.amp.GradScaler()
    if not hasattr(torch.amp, "GradScaler")
    else torch.amp.GradScaler("cuda")
)
criterion = nn.CrossEntropyLoss().cuda()
loader = DataLoader(
    Samples(), batch_size=8, shuffle=True, num_workers=4, pin_memory=True, persistent_workers=True
)
for index, (x, y) in enumerate(loader):
    x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(x), y) / 2
    assert model(x).dtype == torch.float32
    scaler.scale(loss).backward()
    if (index + 1) % 2 == 0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
