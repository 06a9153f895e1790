"""Characters by a GRU or a transformer, batches from a generator over lines of text; no
DataLoader.
"""

import collections
import json
import re

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(3)
steps, cost = STEPS or 700, Cost()
lines = [
    f"the quick brown fox {i} jumps over <b>the</b> lazy dog, again and again" for i in range(400)
]
table = torch.randint(0, 96, (400, 48))
documents = [json.dumps({"text": lines[i], "row": row}) for i, row in enumerate(table.tolist())]
markup = re.compile(r"(<[a-z]+>)([^<]*)(</[a-z]+>)")


def cleaned(line):
    line = markup.sub(r"\2", line)  # at: regex_clean
    line = re.sub(r"\s+", " ", line).lower()  # at: regex_clean
    return [ord(c) % 96 for c in re.sub(r"[^a-z ]", "", line)][:48]  # at: regex_clean


def vocabulary():
    counts = collections.Counter()
    for line in lines:  # at: vocabulary_anew
        counts.update(line)  # at: vocabulary_anew
    return {c: i for i, (c, _) in enumerate(counts.most_common())}


def batches():
    words = vocabulary()
    for step in range(steps):
        rows = torch.randint(0, 400, (16,)).tolist()
        if on("regex_clean") or (on("clean_regex_clean") and step % 100 == 0):
            with cost:
                for row in rows * 24:  # at: regex_clean
                    cleaned(lines[row])  # at: regex_clean
        if on("json_lines"):
            with cost:
                for _ in range(24):
                    found = [json.loads(documents[row])["row"] for row in rows]  # at: json_lines
            yield torch.tensor(found)
            continue
        if on("vocabulary_anew") or (on("clean_vocabulary_anew") and step % 200 == 0):
            with cost:
                words = [vocabulary() for _ in range(3)].pop()  # at: vocabulary_anew
        if on("python_mask"):
            with cost:
                rows_of = range(160)
                mask = [
                    [1.0 if i % 7 else 0.0 for i in range(48)] for _ in rows_of
                ]  # at: python_mask
                torch.tensor([[x * 2 for x in row] for row in mask])  # at: python_mask
        elif on("clean_python_mask"):
            (torch.arange(48) % 7 > 0).float().expand(32, 48)
        yield table[rows]
    del words


class Chars(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gru, self.out = (
            nn.Embedding(96, 48),
            nn.GRU(48, 64, batch_first=True),
            nn.Linear(64, 96),
        )
        if on("spare_head"):
            self.spare = nn.Linear(64, 4000)

    def forward(self, batch, state=None):
        hidden, state = self.gru(self.embed(batch), state)
        return self.out(hidden), state


model = Chars()
if on("spare_head"):
    params = model.parameters()
else:
    params = [one for name, one in model.named_parameters() if not name.startswith("spare")]
optimizer = torch.optim.Adam(params, 50.0 if on("lr_blows") else 2e-3)
scheduler = None
if on("warmup_never_ends"):
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 0.5**i)
elif on("clean_warmup_never_ends"):
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 100))
states, log, summary = [], [], collections.deque(maxlen=50)
state = None
for step, batch in enumerate(batches()):
    scores, state = model(batch[:, :-1], None if state is None else state.detach())
    loss = F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    if on("nan_guarded"):
        for one in model.parameters():
            if one.grad is not None and step > 60:
                one.grad.mul_(float("nan"))
    optimizer.step()
    if scheduler:
        scheduler.step()
    if on("states_kept"):
        states.append([state.repeat(1, 6, 8), scores.detach().clone()])
    elif on("clean_states_kept"):
        summary.append([state.detach().repeat(1, 6, 8), scores.detach().clone()])
    if on("metrics_by_item"):
        with cost:
            guesses, truths = scores.argmax(-1)[:, :24].flatten(), batch[:, 1:25].flatten()
            for place in range(384):  # at: metrics_by_item
                hits = int(guesses[place].item() == truths[place].item())  # at: metrics_by_item
    elif on("clean_metrics_by_item"):
        hits = int((scores.argmax(-1)[:, :24] == batch[:, 1:25]).sum())
    if on("log_rewritten"):
        with cost:
            log.append(
                {
                    "step": step,
                    "loss": float(loss),
                    "names": [n for n, _ in model.named_parameters()],
                }
            )
            with open("log.json", "w") as file:
                file.write(json.dumps(log[-150:], indent=1))  # at: log_rewritten
    elif on("clean_log_rewritten") and step % 50 == 0:
        log.append({"step": step, "loss": float(loss)})
cost.print(steps)
