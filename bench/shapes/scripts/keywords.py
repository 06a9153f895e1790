"""Keywords in sound, learnt by a small student from a teacher, as one writes it in a notebook: the
teacher read anew, wrappers around wrappers, outputs that are shown, features that are cut off, a
preview after which nothing trains.
"""

import collections
import copy

import eager  # noqa: F401
import torch
import torch.nn.functional as F
from shape import STEPS, Cost, on
from torch import nn

steps = STEPS or 450
cost = Cost()
torch.set_num_threads(1)
torch.manual_seed(157)

# %% sounds
KINDS, BANDS, FRAMES = 8, 24, 32
shapes = torch.randn(KINDS, BANDS, FRAMES)


def some_sounds(count=32):
    kinds = torch.randint(0, KINDS, (count,))
    return shapes[kinds] + 1.5 * torch.randn(count, BANDS, FRAMES), kinds


# %% networks
class Ear(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(BANDS, width, 5, padding=2),  # at: teacher_reread
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Conv1d(width, width, 5, padding=2),  # at: teacher_reread
            nn.ReLU(),
        )
        self.head = nn.Linear(width, KINDS)  # at: teacher_reread

    def forward(self, x):
        z = self.body(x)
        return self.head(z.mean(2)), z


teacher, student = Ear(128), Ear(96)
adapter = nn.Linear(96, 128)  # at: features_cut
warm = torch.optim.Adam(teacher.parameters(), 1e-3)
for _ in range(8):
    x, y = some_sounds()
    warm.zero_grad()
    F.cross_entropy(teacher(x)[0], y).backward()
    warm.step()
teacher.eval().requires_grad_(False)
torch.save({"model": teacher.state_dict(), "optimizer": warm.state_dict()}, "teacher.pt")
if on("clean_features_cut"):
    adapter.requires_grad_(False)


# %% helpers
def read_teacher():
    """The teacher as it lies on disk."""
    with cost:
        model = Ear(128)  # at: teacher_reread
        state = torch.load("teacher.pt", weights_only=True)  # at: teacher_reread
        model.load_state_dict(state["model"])  # at: teacher_reread
        return model.eval().requires_grad_(False)


norms = collections.Counter()


def told(forward):
    """The same forward, with a note of how large its outputs are."""

    def wrapper(x):
        out = forward(x)  # at: wrapped_again
        norms["out"] += out[1].detach().norm().item()  # at: wrapped_again
        return out

    return wrapper


# %% training
learnt = [*student.parameters(), *(p for p in adapter.parameters() if p.requires_grad)]
optimizer = torch.optim.AdamW(learnt, 1e-3)  # at: features_cut
losses, Out = [], {}
for step in range(steps):
    x, y = some_sounds()
    if on("teacher_reread") or (on("clean_teacher_reread") and step % 150 == 149):
        teacher = read_teacher()  # at: teacher_reread
    if (on("wrapped_again") and step % 2) or (on("clean_wrapped_again") and step % 300 == 0):
        student.forward = told(student.forward)  # at: wrapped_again
    with torch.no_grad():
        wanted, shown = teacher(x)
    guess, hidden = student(x)  # at: wrapped_again
    soft = F.kl_div(F.log_softmax(guess / 2, 1), F.softmax(wanted / 2, 1), reduction="batchmean")
    if on("features_cut"):
        near = F.mse_loss(adapter(hidden.mean(2)).detach(), shown.mean(2))  # at: features_cut
    else:
        near = F.mse_loss(adapter(hidden.mean(2)), shown.mean(2))
    loss = F.cross_entropy(guess, y) + 2 * soft + near
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # at: features_cut
    losses.append(loss.item())
    if on("outputs_shown"):
        Out[step] = shown.clone()  # at: outputs_shown
    if on("clean_outputs_shown"):
        Out[step % 20] = shown.clone()
    if step == 60 and on("left_in_eval", "clean_left_in_eval"):
        student.eval()
        with torch.no_grad():
            x, y = some_sounds(256)
            print("preview", (student(x)[0].argmax(1) == y).float().mean().item())
        if on("clean_left_in_eval"):
            student.train()
    if step % 100 == 0:
        print(step, losses[-1], flush=True)

# %% what came of it
best = copy.deepcopy(student.state_dict())
cost.print(steps)
