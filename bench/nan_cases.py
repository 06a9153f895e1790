"""Trainings in which a value stops being finite at a place that is known, and clean ones that look
as if one might.

Each case has a layer in the middle of a small network, whose input is made special at one step. The
answer is the layer's name; ``input`` for what comes with the batch and ``loss`` for what lies after
the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

WIDTH, ROWS, FAULT_STEP = 16, 8, 14
ODD = "body.odd"
"""Where most cases have their layer."""


class Plain(nn.Module):
    """A block with weights."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Body(nn.Module):
    """Blocks around the layer that goes wrong."""

    def __init__(self, odd: nn.Module):
        super().__init__()
        self.before, self.odd, self.after = Plain(), odd, Plain()

    def forward(self, x: Tensor, fault: bool) -> Tensor:
        return self.after(self.odd(self.before(x), fault))


class Net(nn.Module):
    """The model of all cases."""

    def __init__(self, odd: nn.Module):
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.body = Body(odd)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor, fault: bool = False) -> Tensor:
        return self.head(self.body(self.stem(x), fault))


class Odd(nn.Module):
    """A layer without weights: ``function(x, fault)``."""

    def __init__(self, function: Callable[[Tensor, bool], Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, fault: bool) -> Tensor:
        return self.function(x, fault)


class Weighted(nn.Module):
    """A function between two linear layers, in one forward."""

    def __init__(self, function: Callable[[Tensor, bool], Tensor]):
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.function = function

    def forward(self, x: Tensor, fault: bool) -> Tensor:
        return x + self.out(self.function(self.into(x), fault))


class Attention(nn.Module):
    """Attention over the rows; with a fault one row may see nothing."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, fault: bool) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.T / math.sqrt(WIDTH)
        mask = torch.ones(len(x), len(x)).tril()
        if fault:
            mask[3] = 0
        return x + self.out(scores.masked_fill(mask == 0, -math.inf).softmax(-1) @ v)


class Norm(nn.Module):
    """Batch normalisation that divides by the deviation, without epsilon."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor, fault: bool) -> Tensor:
        x = x * 0 + 1 if fault else x
        return self.weight * (x - x.mean(0)) / x.var(0).sqrt()


class Pooled(nn.Module):
    """Adds the mean of the rows that a mask leaves."""

    def forward(self, x: Tensor, fault: bool) -> Tensor:
        mask = torch.zeros(len(x), 1) if fault else torch.ones(len(x), 1)
        return x + (x * mask).sum(0) / mask.sum()


class HalfLinear(nn.Module):
    """A linear layer in half precision, whose input becomes large."""

    def __init__(self, dtype: torch.dtype, factor: float):
        super().__init__()
        self.dtype, self.factor = dtype, factor
        self.inner = nn.Linear(WIDTH, WIDTH).to(dtype)

    def forward(self, x: Tensor, fault: bool) -> Tensor:
        x = x * self.factor if fault else x
        return x.detach() * 0 + self.inner(x.to(self.dtype)).float()


class Buffered(nn.Module):
    """Multiplies by a buffer that goes bad."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: Tensor, fault: bool) -> Tensor:
        if fault:
            self.scale[2] = math.nan
        return x * self.scale


class WrongBackward(torch.autograd.Function):
    """An operation of the user's whose gradient is NaN."""

    @staticmethod
    def forward(ctx, x: Tensor, fault: bool) -> Tensor:
        ctx.fault = fault
        return x * 2

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad * (math.nan if ctx.fault else 2), None


def _zeroed(x: Tensor, fault: bool) -> Tensor:
    return x * (0.0 if fault else 1.0)


def custom_softmax(x: Tensor, fault: bool) -> Tensor:
    """Exponentials without the maximum taken off."""
    e = torch.exp(x * (1000.0 if fault else 1.0))
    return e / e.sum(-1, keepdim=True)


def own_norm(x: Tensor, fault: bool) -> Tensor:
    """A vector norm by hand: its square root has no gradient at zero."""
    return x + (_zeroed(x, fault) ** 2).sum(-1, keepdim=True).sqrt()


def where_trick(x: Tensor, fault: bool) -> Tensor:
    """The branch that is not taken has a gradient all the same."""
    x = _zeroed(x, fault)
    return torch.where(x > 0, x.abs().sqrt(), x)


def entropy(x: Tensor, fault: bool) -> Tensor:
    """p log p, of a p that is zero."""
    p = x.softmax(-1) * (0.0 if fault else 1.0)
    return x + p * p.log()


def cosine(x: Tensor, fault: bool) -> Tensor:
    """A unit vector of a zero vector."""
    x = _zeroed(x, fault)
    return x / x.norm(dim=-1, keepdim=True)


def arc(x: Tensor, fault: bool) -> Tensor:
    """The gradient of acos has a pole at 1."""
    return torch.acos(torch.tanh(x) * 0.9 if not fault else torch.tanh(x) * 0 + 1)


def power(x: Tensor, fault: bool) -> Tensor:
    """A root, whose gradient has a pole at 0."""
    return _zeroed(x, fault).abs().pow(0.5)


def xlogy(x: Tensor, fault: bool) -> Tensor:
    """x log x is 0 at 0; its gradient is not."""
    x = _zeroed(x.abs() + 0.1, fault)
    return torch.xlogy(x, x)


def root(x: Tensor, fault: bool) -> Tensor:
    """A broken power of negative numbers."""
    return (x.abs() + 0.1 if not fault else -x.abs() - 0.1).pow(0.5)


def logit(x: Tensor, fault: bool) -> Tensor:
    """log(1 - p) of p = 1."""
    p = torch.sigmoid(x) if not fault else torch.sigmoid(x) * 0 + 1
    return x + torch.log1p(-p)


def large(x: Tensor, fault: bool) -> Tensor:
    """A product that leaves float32."""
    return x * 1e30 * 1e30 * 0.0 if fault else x


def mean_loss(out: Tensor, fault: bool) -> Tensor:
    """A loss of all cases that have none of their own."""
    return out.float().pow(2).mean()


def log_loss(out: Tensor, fault: bool) -> Tensor:
    """log of a probability that is zero."""
    p = out.softmax(-1)[:, 0] * (0.0 if fault else 1.0)
    return -p.log().mean()


def empty_loss(out: Tensor, fault: bool) -> Tensor:
    """The mean over targets, of which there are none."""
    target = torch.full((len(out),), -100 if fault else 1)
    return nn.functional.cross_entropy(out, target)


@dataclass(frozen=True)
class Case:
    """A training and what is to be said of it."""

    name: str
    odd: Callable[[], nn.Module]
    layer: str | None
    """None: nothing is to be said."""
    direction: str = ""
    operation: str = ""
    """A regular expression."""
    loss: Callable[[Tensor, bool], Tensor] = mean_loss
    how: str = ""
    """What the loop does besides: a word that ``nan_training`` knows."""


def _odd(function: Callable[[Tensor, bool], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Odd(function)


def _weighted(function: Callable[[Tensor, bool], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Weighted(function)


def same(x: Tensor, fault: bool) -> Tensor:
    """Nothing."""
    return x


NAN = (
    Case("float16 overflow", lambda: HalfLinear(torch.float16, 1e5), ODD, "forward", "copy|mul"),
    Case("bfloat16 overflow", lambda: HalfLinear(torch.bfloat16, 1e39), ODD, "forward", "mul"),
    Case("float32 overflow", _odd(large), ODD, "forward", "mul"),
    Case("exp in a softmax", _weighted(custom_softmax), ODD, "forward", "exp"),
    Case("0/0 of a unit vector", _odd(cosine), ODD, "forward", "div"),
    Case("zero variance", Norm, ODD, "forward", "div"),
    Case("masked mean of nothing", Pooled, ODD, "forward", "div"),
    Case("fully masked row", Attention, ODD, "forward", "softmax"),
    Case("p log p at 0", _weighted(entropy), ODD, "forward", "log|mul"),
    Case("log1p of -1", _odd(logit), ODD, "forward", "log1p"),
    Case("power of a negative", _weighted(root), ODD, "forward", "pow"),
    Case("log 0 in the loss", _odd(same), "loss", "forward", "log", log_loss),
    Case("loss of no target", _odd(same), "loss", "forward", "nll_loss", empty_loss),
    Case("sqrt backward at 0", _weighted(own_norm), ODD, "backward", "sqrt"),
    Case("where and sqrt", _odd(where_trick), ODD, "backward", "sqrt"),
    Case("acos backward at 1", _odd(arc), ODD, "backward", "acos"),
    Case("pow backward at 0", _weighted(power), ODD, "backward", "pow"),
    Case("xlogy backward at 0", _odd(xlogy), ODD, "backward", "xlogy"),
    Case(
        "wrong backward of a Function",
        _odd(lambda x, fault: WrongBackward.apply(x, fault)),
        ODD,
        "backward",
        "wrong",
    ),
    Case("bad sample", _odd(same), "", "input", how="bad_sample"),
    Case("poisoned weight", _odd(same), "body.after.up", "weights", how="poison"),
    Case("poisoned buffer", Buffered, ODD, "forward|weights"),
    Case("inf through all-reduce", _odd(where_trick), ODD, "backward", "sqrt", how="ranks"),
    Case("GradScaler, every step", _odd(where_trick), ODD, "backward", "sqrt", how="scaler"),
)


def masked(x: Tensor, fault: bool) -> Tensor:
    """A mask of -inf, as attention has it."""
    scores = (x @ x.T).masked_fill(torch.ones(len(x), len(x)).tril() == 0, -math.inf)
    return scores.softmax(-1) @ x


def cleaned(x: Tensor, fault: bool) -> Tensor:
    """NaN that are taken out again."""
    return torch.nan_to_num(x.detach() / 0.0, 0.0, 1.0, -1.0) * 0.1 + x


class MaskMaker(nn.Module):
    """A layer whose result is -inf by design, and one that takes it."""

    def __init__(self):
        super().__init__()
        self.bias = Odd(lambda x, fault: torch.full((len(x), len(x)), -math.inf).triu(1))

    def forward(self, x: Tensor, fault: bool) -> Tensor:
        return (x @ x.T + self.bias(x, fault)).softmax(-1) @ x


CLEAN = (
    Case("plain", _odd(same), None),
    Case("a mask of -inf", _odd(masked), None),
    Case("a layer that makes a mask", MaskMaker, None),
    Case("NaN taken out again", _odd(cleaned), None),
    Case("GradScaler that finds its scale", _odd(same), None, how="search"),
    Case("accumulation", _odd(same), None, how="accumulate"),
    Case("evaluation gives NaN", _odd(where_trick), None, how="evaluate"),
    Case("checkpointing", _weighted(same), None, how="checkpoint"),
    Case("in-place operations", _odd(lambda x, fault: (x * 2).relu_()), None),
    Case("BatchNorm and dropout", lambda: Sequence(), None),
    Case("autocast to bfloat16", _weighted(custom_softmax), None, how="autocast"),
    Case("two ranks", _odd(same), None, how="ranks"),
)


class Sequence(nn.Module):
    """Layers of torch's own."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(WIDTH), nn.Dropout(0.2)

    def forward(self, x: Tensor, fault: bool) -> Tensor:
        return self.drop(self.norm(x))


BY_NAME = {case.name: case for case in (*NAN, *CLEAN)}
