"""A recurrent language model whose gradients are clipped in most of its first steps, hidden state
carried over and cut, perplexity printed.
"""

import math

import torch
from torch import nn

torch.manual_seed(9)
corpus = torch.randint(0, 60, (20, 6_000)).cumsum(1) % 60


class RNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(60, 96)
        self.rnn = nn.GRU(96, 128, 2, dropout=0.2)
        self.out = nn.Linear(128, 60)

    def forward(self, x, state):
        y, state = self.rnn(self.embed(x), state)
        return self.out(y), state


model = RNN()
optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
for epoch in range(3):
    state, total, count = None, 0.0, 0
    for at in range(0, corpus.shape[1] - 36, 35):
        x, y = corpus[:, at : at + 35].T, corpus[:, at + 1 : at + 36].T
        if state is not None:
            state = state.detach()
        model.zero_grad()
        logits, state = model(x, state)
        loss = nn.functional.cross_entropy(logits.reshape(-1, 60), y.reshape(-1))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        total, count = total + loss.item(), count + 1
        if count % 50 == 0:
            print(
                f"| epoch {epoch} | batch {count} | norm "
                f"{norm:.2f} | ppl {math.exp(total / count):.1f}"
            )
    optimizer.param_groups[0]["lr"] /= 2
