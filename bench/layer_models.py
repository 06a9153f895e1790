"""Twenty small models of many kinds, each with a batch: ``build(name) -> (model, make_loss)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 4, feed: nn.Module | None = None):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.feed = feed or nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.feed(self.norm_2(x))


class Experts(nn.Module):
    def __init__(self, width: int, count: int = 4):
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.router(x).softmax(-1)
        chosen = weights.argmax(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            mask = chosen == index
            out[mask] = expert(x[mask]) * weights[mask][:, index : index + 1]
        return out


class Gpt(nn.Module):
    def __init__(self, layers: int = 4, width: int = 192, moe: bool = False, keep: bool = True):
        super().__init__()
        self.keep = keep
        self.embedding = nn.Embedding(1000, width)
        self.blocks = nn.ModuleList(
            Block(width, feed=Experts(width) if moe else None) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1000, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x) if self.keep else checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x))


class Reentrant(Gpt):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return self.head(self.norm(x))


class Unet(nn.Module):
    def __init__(self, width: int = 16):
        super().__init__()

        def double(inside: int, outside: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(inside, outside, 3, padding=1),
                nn.GroupNorm(4, outside),
                nn.SiLU(),
                nn.Conv2d(outside, outside, 3, padding=1),
            )

        self.down_1, self.down_2 = double(3, width), double(width, 2 * width)
        self.middle = double(2 * width, 4 * width)
        self.up_2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.mix_2 = double(4 * width, 2 * width)
        self.up_1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.mix_1 = double(2 * width, width)
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.down_1(x)
        two = self.down_2(F.max_pool2d(one, 2))
        deep = self.middle(F.max_pool2d(two, 2))
        two = self.mix_2(torch.cat([self.up_2(deep), two], 1))
        return self.out(self.mix_1(torch.cat([self.up_1(two), one], 1)))


class Vit(nn.Module):
    def __init__(self, width: int = 128):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(4)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 96)
        self.lstm_1 = nn.LSTM(96, 128, batch_first=True)
        self.lstm_2 = nn.LSTM(128, 128, batch_first=True, bidirectional=True)
        self.head = nn.Linear(256, 1000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, _ = self.lstm_1(self.embedding(tokens))
        x, _ = self.lstm_2(x)
        return self.head(x)


class Residual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv_1 = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.conv_2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.conv_2(F.relu(self.norm(self.conv_1(x)))))


def cnn(width: int = 24, count: int = 3) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        *(Residual(width) for _ in range(count)),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(16 * width, 10),
    )


def lora() -> nn.Module:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=8, target_modules=["qkv", "out"])
    return get_peft_model(Gpt(), config)  # pyright: ignore[reportArgumentType]


def mlp() -> nn.Module:
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(256, 768), nn.GELU(), nn.Linear(768, 256)) for _ in range(6)),
        nn.Linear(256, 10),
    )


_TOKENS, _IMAGES, _PLAIN = "tokens", "images", "plain"
MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "cnn": (cnn, _IMAGES),
    "cnn_wide": (lambda: cnn(48, 2), _IMAGES),
    "lstm": (Tagger, _TOKENS),
    "gpt": (Gpt, _TOKENS),
    "gpt_deep": (lambda: Gpt(8, 128), _TOKENS),
    "gpt_checkpoint": (lambda: Gpt(keep=False), _TOKENS),
    "gpt_reentrant": (Reentrant, _TOKENS),
    "moe": (lambda: Gpt(3, 128, moe=True), _TOKENS),
    "unet": (Unet, _IMAGES),
    "vit": (Vit, _IMAGES),
    "lora": (lora, _TOKENS),
    "mlp": (mlp, _PLAIN),
}
CASES = [
    *((name, "eager") for name in MODELS),
    ("gpt", "compiled"),
    ("gpt", "compiled_blocks"),
    ("mlp", "compiled"),
    ("vit", "compiled_blocks"),
    ("cnn", "ddp"),
    ("gpt", "ddp"),
    ("gpt", "fsdp2"),
    ("mlp", "fsdp2"),
]
"""Twenty: a model and how it is run."""


def build(name: str) -> tuple[nn.Module, Callable[[Any], torch.Tensor]]:
    """The model, and a function that makes the loss of a step with it."""
    torch.manual_seed(0)
    make, kind = MODELS[name]
    model = make()

    def loss_of(model: Any) -> torch.Tensor:
        if kind == _TOKENS:
            tokens = torch.randint(0, 1000, (4, 64))
            return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        if kind == _IMAGES:
            return model(torch.randn(4, 3, 32, 32)).pow(2).mean()
        return model(torch.randn(128, 256)).pow(2).mean()

    return model, loss_of
