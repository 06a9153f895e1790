"""A GRU tagger decoded by Viterbi in Python; a monitor thread; a history in JSON."""

import json
import threading
import time

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(21)
steps, cost = STEPS or 400, Cost()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gru = (
            nn.Embedding(300, 48),
            nn.GRU(48, 64, batch_first=True, bidirectional=True),
        )
        self.tags, self.moves = nn.Linear(128, 9), nn.Parameter(torch.zeros(9, 9))

    def forward(self, words):
        return self.tags(self.gru(self.embed(words))[0])


def viterbi(scores, moves):
    """The best path, in plain Python."""
    best, back = list(scores[0]), []
    for row in scores[1:]:  # at: viterbi
        step, origin = [], []  # at: viterbi
        for tag in range(9):  # at: viterbi
            odds = [best[k] + moves[k][tag] for k in range(9)]  # at: viterbi
            k = max(range(9), key=odds.__getitem__)  # at: viterbi
            step.append(odds[k] + row[tag])  # at: viterbi
            origin.append(k)  # at: viterbi
        best = step  # at: viterbi
        back.append(origin)  # at: viterbi
    return best  # at: viterbi


class Monitor(threading.Thread):
    """Watches over something, without a pause."""

    def run(self):
        value, idle = 1, on("clean_monitor")
        while True:  # at: monitor
            value = (value * 48271) % 2147483647  # at: monitor
            if idle:  # at: monitor
                time.sleep(0.5)


model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), 2e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1 if on("step_lr") else 200, gamma=0.5)
history = []
if on("monitor", "clean_monitor"):
    Monitor(daemon=True).start()
for step in range(steps):
    words = torch.randint(0, 300, (16, 20))
    scores = model(words)
    loss = F.cross_entropy(scores.flatten(0, 1), (words % 9).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if on("viterbi") or (on("clean_viterbi") and step % 100 == 0):
        with cost:
            moves = model.moves.tolist()
            for sentence in scores[:4].tolist():
                viterbi(sentence, moves)  # at: viterbi
    if on("grad_items"):
        with cost:
            for _name, one in model.named_parameters():
                for row in one.grad if one.grad is not None else ():
                    row.norm().item()  # at: grad_items
    if on("clean_grad_items"):
        nn.utils.clip_grad_norm_(model.parameters(), 100.0)
    if on("json_history"):
        with cost:
            history.extend({"step": step, "loss": loss.item(), "k": k} for k in range(12))
            with open("history.json", "w") as file:
                json.dump(history, file)  # at: json_history
    if on("clean_json_history"):
        with open("history.jsonl", "a") as file:
            file.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")
cost.print(steps)
