"""Translation with teacher forcing, an attention decoder of LSTM cells unrolled by hand; and a
recurrent policy over an endless stream.
"""

import random

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F

cost = Cost()
torch.set_num_threads(1)
torch.manual_seed(85)


class Decoder(nn.Module):
    """Decodes word by word, each from the true word before it or from its own."""

    def __init__(self):
        super().__init__()
        self.embed, self.cell = nn.Embedding(120, 64), nn.LSTMCell(128, 64)
        self.out = nn.Linear(128, 120)

    def forward(self, memory, target):
        h = c = memory.mean(1)
        word, logits = target[:, 0], []
        for place in range(1, target.shape[1]):
            seen = torch.softmax(memory @ h[:, :, None], 1).mul(memory).sum(1)
            h, c = self.cell(torch.cat([self.embed(word), seen], 1), (h, c))
            logits.append(self.out(torch.cat([h, seen], 1)))
            word = self.chosen(target[:, place], logits[-1])
        return torch.stack(logits, 1)

    def chosen(self, truth, scores):
        """The next word of each row: the true one three times of four."""
        if not on("forcing_by_item"):
            return torch.where(torch.rand(len(truth)) < 0.75, truth, scores.argmax(1))
        with cost:
            words = []
            for row in range(len(truth)):
                odds = F.softmax(scores[row], 0).tolist()  # at: forcing_by_item
                own = max(range(len(odds)), key=odds.__getitem__)  # at: forcing_by_item
                seen = truth[row].item()  # at: forcing_by_item
                words.append(seen if random.random() < 0.75 else own)
            return torch.tensor(words)


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gru = nn.Embedding(120, 64), nn.GRU(64, 64, batch_first=True)
        self.decoder = Decoder()

    def forward(self, source, target):
        return self.decoder(self.gru(self.embed(source))[0], target)


def translate(steps):
    model = Translator()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(steps):
        source = torch.randint(1, 120, (24, 12))
        target = torch.cat([torch.zeros(24, 1, dtype=torch.long), source.flip(1)], 1)
        logits = model(source, target)
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    cost.print(steps)


def episodes():
    """Observations and what was best, without end."""
    state = torch.zeros(64, 24)
    while True:
        state = 0.9 * state + torch.randn(64, 24) / 2
        yield state, (state[:, :4] + state[:, 4:8]).argmax(1)


def act(steps):
    """REINFORCE of a policy that sees an average over what it has seen before."""
    embed, head = (
        nn.Linear(24, 128),
        nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)),
    )
    optimizer = torch.optim.RMSprop([*embed.parameters(), *head.parameters()], 1e-4)
    context = torch.zeros(64, 128)
    for _, (seen, best) in zip(range(steps), episodes(), strict=False):
        context = 0.9 * context + embed(seen)  # at: state_never_cut
        chances = torch.distributions.Categorical(logits=head(context))
        action = chances.sample()
        loss = -(chances.log_prob(action) * ((action == best).float() - 0.25)).mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # at: state_never_cut
        optimizer.step()
        if not on("state_never_cut"):
            context = context.detach()


if on("state_never_cut", "clean_state_never_cut"):
    act(STEPS or 450)
else:
    translate(STEPS or 160)
