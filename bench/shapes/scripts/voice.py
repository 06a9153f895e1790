"""Speech with CTC: spectra cut in the loop, word errors counted by hand, targets longer than what
is heard, and texts of any length beside each other.
"""

import random
import time

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn

steps, cost = STEPS or 160, Cost()
torch.set_num_threads(1)
torch.manual_seed(112)
random.seed(112)
window = torch.hann_window(128)


def clips(size=8):
    """Waves of a second or less, and their letters."""
    longest = 40 if on("targets_longer") and random.random() < 0.06 else 12
    waves = [torch.randn(random.randint(1600, 2000)) for _ in range(size)]
    letters = [torch.randint(1, 28, (longest if i == 0 else 10,)) for i in range(size)]
    return waves, letters


def spectra(waves):
    """Log spectra of all waves, (batch, frames, 65)."""
    length = max(len(wave) for wave in waves)
    if on("spectra_by_frame"):
        with cost:
            rows = []
            for wave in waves:
                wave = nn.functional.pad(wave, (0, length - len(wave) + 128))
                frames = []
                for start in range(0, length, 16):
                    frame = wave[start : start + 128] * window  # at: spectra_by_frame
                    frames.append(torch.fft.rfft(frame).abs().log1p())  # at: spectra_by_frame
                rows.append(torch.stack(frames)[::4])  # at: spectra_by_frame
            return torch.stack(rows)
    whole = torch.stack([nn.functional.pad(wave, (0, length - len(wave))) for wave in waves])
    return torch.stft(whole, 128, 64, window=window, return_complex=True).abs().log1p().mT


def distance(a, b):
    """Levenshtein's distance."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = (  # at: errors_by_hand
                row[j],  # at: errors_by_hand
                min(  # at: errors_by_hand
                    row[j] + 1,  # at: errors_by_hand
                    row[j - 1] + 1,  # at: errors_by_hand
                    last + (x != y),  # at: errors_by_hand
                ),
            )
    return row[-1]


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.cut = nn.Conv1d(65, 64, 3, padding=1)
        self.gru = nn.GRU(64, 64, batch_first=True, bidirectional=True)
        self.out = nn.Linear(128, 28)

    def forward(self, x):
        x = torch.relu(self.cut(x.mT)).mT
        return self.out(self.gru(x)[0]).log_softmax(-1)


model = Listener()
ctc = nn.CTCLoss(zero_infinity=on("clean_targets_longer"))  # at: targets_longer
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
wrong = 0
for step in range(steps):
    waves, letters = clips()
    said = model(spectra(waves))  # at: spectra_by_frame
    frames = torch.full((8,), said.shape[1])
    sizes = torch.tensor([len(one) for one in letters])
    loss = ctc(said.transpose(0, 1), torch.cat(letters), frames, sizes)  # at: targets_longer
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if on("errors_by_hand") or (on("clean_errors_by_hand") and step % 40 == 39):
        with cost:
            for row, truth in zip(said.argmax(-1).tolist(), letters, strict=True):
                wrong += distance(row * 12, truth.tolist())  # at: errors_by_hand
    if on("device_polled"):
        with cost:
            for _ in range(3):
                time.sleep(0.003)  # at: device_polled
    if step % 40 == 0:
        print(step, loss.item(), flush=True)
cost.print(steps)
