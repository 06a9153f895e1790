"""Trainings of many kinds with nothing wrong in them; KIND chooses one. Each is written as people
write such loops.
"""

import copy
import math
import os
import tempfile

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

KIND = os.environ["KIND"]
torch.manual_seed(1)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            self.qkv(self.norm_1(x))
            .view(b, t, 3, self.heads, c // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm_2(x))


class TinyGPT(nn.Module):
    def __init__(self, vocabulary=256, width=96, depth=2):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(64, width)
        self.blocks = nn.Sequential(*[Block(width, 4) for _ in range(depth)])
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, targets=None):
        x = self.blocks(self.words(tokens) + self.places(torch.arange(tokens.shape[1])))
        logits = self.head(x)
        return logits, None if targets is None else F.cross_entropy(
            logits.flatten(0, 1), targets.flatten()
        )


def language_model():
    """Random windows of one tensor, warm-up and cosine, clipping, a look at the validation loss now
    and then.
    """
    data = (torch.arange(20_000) * 7 % 251).long()
    model = TinyGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)

    def get_batch():
        starts = torch.randint(len(data) - 65, (8,))
        return torch.stack([data[s : s + 64] for s in starts]), torch.stack(
            [data[s + 1 : s + 65] for s in starts]
        )

    @torch.no_grad()
    def estimate_loss():
        model.eval()
        losses = [model(*get_batch())[1].item() for _ in range(4)]
        model.train()
        return sum(losses) / len(losses)

    for step in range(70):
        lr = 3e-4 * min(1.0, (step + 1) / 10) * (0.55 + 0.45 * math.cos(step / 70 * math.pi))
        for group in optimizer.param_groups:
            group["lr"] = lr
        if step % 35 == 0:
            print("val", estimate_loss())
        for _ in range(2):
            _, loss = model(*get_batch())
            (loss / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


class Pictures(Dataset):
    def __init__(self, n):
        self.pictures = torch.randint(256, (n, 3, 36, 36), dtype=torch.uint8)

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, i):
        x = self.pictures[i].float() / 255
        top, left = torch.randint(4, (2,)).tolist()
        return x[:, top : top + 32, left : left + 32], i % 10


def picture_classifier():
    """Epochs over a loader with workers, augmentation, one-cycle schedule, validation and a
    checkpoint each epoch.
    """
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, 2, 1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    train = DataLoader(Pictures(2560), 64, shuffle=True, num_workers=1, persistent_workers=True)
    valid = DataLoader(Pictures(128), 64)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=2 * len(train))
    for _ in range(2):
        model.train()
        for x, y in train:
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        model.eval()
        with torch.no_grad():
            print("valid", sum((model(x).argmax(1) == y).sum().item() for x, y in valid))
        torch.save(
            model.state_dict(), os.path.join(tempfile.gettempdir(), f"clean-{os.getpid()}.pt")
        )
    os.remove(os.path.join(tempfile.gettempdir(), f"clean-{os.getpid()}.pt"))


def gan():
    """Two models, two optimizers, a detached fake."""
    generator = nn.Sequential(
        nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64)
    )
    critic = nn.Sequential(
        nn.Linear(64, 256), nn.LeakyReLU(0.2), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
    )
    for_generator = torch.optim.Adam(generator.parameters(), 2e-4, betas=(0.5, 0.999))
    for_critic = torch.optim.Adam(critic.parameters(), 2e-4, betas=(0.5, 0.999))
    for (real,) in DataLoader(TensorDataset(torch.randn(200 * 128, 64)), 128):
        fake = generator(torch.randn(len(real), 32))
        loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
        for_critic.zero_grad()
        loss.backward()
        for_critic.step()
        loss = F.softplus(-critic(fake)).mean()
        for_generator.zero_grad()
        loss.backward()
        for_generator.step()


def averaged_weights():
    """A teacher that follows the student, as in self-distillation."""
    student = nn.Sequential(
        nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 256), nn.GELU(), nn.Linear(256, 128)
    )
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), 1e-4)
    for (x,) in DataLoader(TensorDataset(torch.randn(150 * 128, 128)), 128):
        with torch.no_grad():
            target = teacher(x + 0.1 * torch.randn_like(x))
        loss = F.mse_loss(student(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 0.01)


def recurrent():
    """Packed sequences of many lengths, sorted into batches of like length."""
    words, net = nn.Embedding(500, 64), nn.LSTM(64, 128, batch_first=True)
    head = nn.Linear(128, 500)
    parameters = [*words.parameters(), *net.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, 1e-3)
    model = nn.ModuleList([words, net, head])
    lengths = sorted(int(n) for n in torch.randint(28, 33, (150 * 16,)))
    rows = [torch.randint(500, (n,)) for n in lengths]
    loader = DataLoader(rows, 16, collate_fn=lambda batch: nn.utils.rnn.pad_sequence(batch, True))
    for tokens in loader:
        out, _ = net(words(tokens))
        loss = F.cross_entropy(head(out[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()


def adapters():
    """A frozen base with low-rank adapters, mixed precision in bf16."""

    class Adapted(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.base = nn.Linear(width, width).requires_grad_(False)
            self.down, self.up = nn.Linear(width, 8, bias=False), nn.Linear(8, width, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    model = nn.Sequential(Adapted(384), nn.GELU(), Adapted(384), nn.GELU(), Adapted(384))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    inputs = torch.randn(200 * 64, 384)
    for x, y in DataLoader(TensorDataset(inputs, inputs.roll(1, 1)), 64, shuffle=True):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(model(x).float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def compiled():
    """torch.compile without a C++ compiler."""
    model = TinyGPT()
    fast = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    rows = (torch.arange(70 * 8 * 65) * 11 % 253).view(-1, 65)
    for x in DataLoader(rows, 8):
        _, loss = fast(x[:, :-1], x[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def closure():
    """L-BFGS, which calls the model several times a step."""
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    x = torch.randn(2048, 64)
    y = x[:, :1].sin()

    def evaluate():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(50):
        optimizer.step(evaluate)


def resumed():
    """Saves once, loads what was saved, goes on."""
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-4)
    loader = DataLoader(TensorDataset(torch.randn(100 * 64, 256)), 64, shuffle=True, drop_last=True)
    path = os.path.join(tempfile.gettempdir(), f"clean-{os.getpid()}.pt")
    for epoch in range(2):
        for (x,) in loader:
            loss = F.l1_loss(model(x), x)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        if epoch == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
            kept = torch.load(path, weights_only=True)
            model.load_state_dict(kept["model"])
            optimizer.load_state_dict(kept["optimizer"])
    os.remove(path)


if __name__ == "__main__":
    globals()[KIND]()
