"""A student that learns from a teacher: features by hooks, two losses, a cache of logits."""

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(12)
cost = Cost()
steps = STEPS or 600


def network(width, depth):
    layers = [nn.Linear(64, width), nn.GELU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 20))


class Features:
    def __init__(self):
        self.last, self.handles = None, []

    def grab(self, module, inputs, output):
        self.last = output.detach().clone()

    def attach(self, model):
        self.handles.append(model[2].register_forward_hook(self.grab))

    def detach(self):
        for handle in self.handles:
            handle.remove()
        self.handles.clear()


def distillation(student_logits, teacher_logits, labels, temperature=3.0):
    soft = F.kl_div(
        F.log_softmax(student_logits / temperature, -1),
        F.softmax(teacher_logits / temperature, -1),
        reduction="batchmean",
    )
    return temperature**2 * soft + F.cross_entropy(student_logits, labels)


teacher, student = network(256, 2), network(96, 2)
bridge = nn.Linear(96, 256)
if not on("teacher_trains_along"):
    teacher.requires_grad_(False)
taught, learnt = Features(), Features()
optimizer = torch.optim.AdamW([*student.parameters(), *bridge.parameters()], lr=1e-3)
data, classes = torch.randn(4096, 64), torch.randint(0, 20, (4096,))
cache = {}
for step in range(steps):
    rows = torch.randint(0, 4096, (64,))
    taught.attach(teacher), learnt.attach(student)
    teacher_logits = teacher(data[rows])
    if on("logits_cached"):
        cache[step] = {"logits": teacher_logits, "features": taught.last, "rows": data[rows]}
    elif on("clean_logits_cached"):
        cache[step % 50] = {"logits": teacher_logits, "rows": data[rows]}
    if on("student_detached"):
        with torch.no_grad():
            hidden = student[:4](data[rows])
        student_logits = student[4:](hidden)
    else:
        student_logits = student(data[rows])
    loss = distillation(student_logits, teacher_logits, classes[rows])
    loss = loss + 0.1 * F.mse_loss(bridge(learnt.last), taught.last)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not on("hooks_pile_up"):
        taught.detach(), learnt.detach()
cost.print(steps)
