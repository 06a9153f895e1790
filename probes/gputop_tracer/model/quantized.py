"""Linear layers whose frozen weights are quantised, with the memory of bitsandbytes, and LoRA on
them as peft adds it.

bitsandbytes needs CUDA, so its layers are written by hand: packed weights and block constants are
held, and the matrix products make the whole weight in the type of the computation for as long as
they run (``bitsandbytes/nn/modules.py``, ``autograd/_functions.py``, ``functional.py``).
"""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import torch
from torch import nn

NF4_BLOCK = 64
"""Weights that share one constant (Dettmers et al. 2023, QLoRA, section 3)."""
CONSTANTS_BLOCK = 256
"""Constants that share one constant under double quantisation."""
_KEPT_WHOLE = ("lm_head", "embed_out", "output_embedding", "score", "classifier")
"""Heads, which transformers does not quantise."""

Named = Callable[[str], Any]


class QuantizerHabits(NamedTuple):
    """What releases of bitsandbytes, and those who call it, do in their own way."""

    keeps_inputs: bool = False
    """Until 0.43.1, for the backward pass."""
    double: bool = True
    """Constants are quantised again."""
    casts: bool = False
    """Weights were quantised from fp16, and are dequantised to it first (Fabric)."""


def quantize(
    model: nn.Module,
    kind: str,
    compute: torch.dtype,
    named: Named,
    habits: QuantizerHabits = QuantizerHabits(),
) -> int:
    """Replace the linear layers by quantised ones; how many. ``kind`` is ``nf4`` or ``int8``.

    The head stays, and what the model's class keeps in fp32, such as ``wo`` of T5
    (``get_modules_to_not_convert`` of ``transformers/quantizers/base.py``).
    """
    not_quantized = {*_KEPT_WHOLE, *(getattr(model, "_keep_in_fp32_modules", None) or ())}
    count = 0
    for path, module in list(model.named_modules()):
        if _widths(module) is None or _named(path, not_quantized):
            continue
        parent = model.get_submodule(path.rpartition(".")[0])
        if kind == "nf4":
            layer = Linear4bit(module, compute, named, habits)
        else:
            layer = Linear8bit(module, named)
        setattr(parent, path.rpartition(".")[2], layer)
        count += 1
    return count


def _widths(module: Any) -> Optional[Tuple[int, int]]:
    """(in, out) of a layer that transformers quantises: a linear one, or GPT-2's with its weight
    lying the other way (``_replace_with_bnb_linear`` of
    ``transformers/integrations/bitsandbytes.py``).
    """
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if type(module).__name__ == "Conv1D" and module.weight.dim() == 2:
        return module.weight.shape[0], module.weight.shape[1]
    return None


class Linear4bit(nn.Module):
    """4-bit NormalFloat."""

    def __init__(
        self,
        linear: Any,
        compute: torch.dtype,
        named: Named,
        habits: QuantizerHabits = QuantizerHabits(),
    ) -> None:
        super().__init__()
        self.habits = habits
        self.in_features, self.out_features = _widths(linear) or (0, 0)
        count = linear.weight.numel()
        blocks = self.blocks = -(-count // NF4_BLOCK)
        self.compute, self.named = compute, named
        self.weight = nn.Parameter(
            torch.empty((count + 1) // 2, 1, dtype=torch.uint8), requires_grad=False
        )
        self.bias = linear.bias
        if habits.double:
            self.register_buffer("absmax", torch.empty(blocks, dtype=torch.uint8))
            self.register_buffer("nested_absmax", torch.empty(-(-blocks // CONSTANTS_BLOCK)))
            self.register_buffer("nested_code", torch.empty(256))
            self.register_buffer("offset", torch.empty(()))
        else:
            self.register_buffer("absmax", torch.empty(blocks, dtype=torch.float32))
        self.register_buffer("code", torch.empty(16))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        came_in = value.dtype
        out = _Matmul4bit.apply(value.to(self.compute), self)
        if self.bias is not None:
            out = out + self.bias.to(self.compute)
        return out.to(came_in)

    def dequantize(self) -> torch.Tensor:
        """The whole weight; its constants are made first and then freed."""
        with self.named("dequantize_4bit"):
            constants = torch.empty(self.blocks if self.habits.double else 0, dtype=torch.float32)
            stored = torch.float16 if self.habits.casts else self.compute
            weight = torch.empty(self.out_features, self.in_features, dtype=stored)
            del constants
            return weight.to(self.compute)


class _Matmul4bit(torch.autograd.Function):
    """``MatMul4Bit``: keeps no whole weight, and the input in older releases only."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, layer: Linear4bit) -> torch.Tensor:
        ctx.layer = layer
        ctx.kept = value if layer.habits.keeps_inputs else None
        return nn.functional.linear(value, layer.dequantize())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return torch.matmul(grads[0], ctx.layer.dequantize()), None


class Linear8bit(nn.Module):
    """LLM.int8 (Dettmers et al. 2022) with a threshold of 6 and no columns above it."""

    def __init__(self, linear: Any, named: Named) -> None:
        super().__init__()
        self.in_features, self.out_features = _widths(linear) or (0, 0)
        self.named = named
        self.weight = nn.Parameter(
            torch.empty(linear.weight.shape, dtype=torch.int8), requires_grad=False
        )
        self.bias = linear.bias
        self.register_buffer("row_constants", torch.empty(self.out_features))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        out = _Matmul8bit.apply(value, self)
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The whole weight."""
        with self.named("int8_dequantize"):
            return torch.empty(self.out_features, self.in_features, dtype=dtype)


class _Matmul8bit(torch.autograd.Function):
    """``MatMul8bitLt``: int8 input and int32 product are temporary; backward makes the weight."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, layer: Linear8bit) -> torch.Tensor:
        ctx.layer, ctx.came_in = layer, value.dtype
        with layer.named("int8_matmul"):
            half = value.to(torch.float16)
            flat = half.reshape(-1, half.shape[-1])
            rows = torch.empty(flat.shape, dtype=torch.int8)
            constants = torch.empty(flat.shape[0], dtype=torch.float32)
            product = torch.empty(flat.shape[0], layer.out_features, dtype=torch.int32)
            out = torch.empty(flat.shape[0], layer.out_features, dtype=torch.float16)
            del rows, constants, product
            return out.to(value.dtype).reshape(*value.shape[:-1], layer.out_features)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        layer = ctx.layer
        weight = layer.dequantize(grads[0].dtype)
        return torch.matmul(grads[0], weight).to(ctx.came_in), None


class QuantizedLora(nn.Module):
    """peft's ``lora.Linear4bit`` and ``Linear8bitLt``: the base's result is copied, then the
    adapter's added.
    """

    def __init__(
        self, base: nn.Module, rank: int, dropout: float, dtype: torch.dtype, dora: bool = False
    ) -> None:
        super().__init__()
        self.base_layer = base
        if dora:
            self.magnitude = nn.Parameter(torch.empty(int(base.out_features), dtype=dtype))  # type: ignore[arg-type]
        else:
            self.magnitude = None
        self.lora_A = nn.Linear(int(base.in_features), rank, bias=False, dtype=dtype)  # type: ignore[arg-type]
        self.lora_B = nn.Linear(rank, int(base.out_features), bias=False, dtype=dtype)  # type: ignore[arg-type]
        self.lora_dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        result = self.base_layer(value)
        if isinstance(self.base_layer, Linear4bit):
            result = result.clone()
        converts = not torch.is_autocast_enabled()
        if converts:
            value = value.to(self.lora_A.weight.dtype)
        if self.magnitude is not None:
            return (result + self._by_magnitude(value, result)).to(result.dtype)
        added = self.lora_B(self.lora_A(self.lora_dropout(value))) * 1.0
        return result + (added.to(result.dtype) if converts else added)

    def _by_magnitude(self, value: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        """``DoraLinearLayer.forward`` of peft's ``tuners/lora/dora.py``."""
        unit = torch.eye(self.lora_A.weight.shape[1], dtype=self.lora_A.weight.dtype)
        product = self.lora_B(self.lora_A(unit)).T.to(value.dtype)
        weight = self.base_layer.dequantize().to(value.dtype)  # type: ignore[operator]
        norm = torch.linalg.norm(weight + 1.0 * product.detach(), dim=1).to(weight.dtype)
        scale = (self.magnitude / norm.detach()).view(1, -1)
        dropped = isinstance(self.lora_dropout, nn.Dropout)
        if dropped:
            value = self.lora_dropout(value)
        added = self.lora_B(self.lora_A(value))
        base_result = nn.functional.linear(value, weight) if dropped else result
        return (scale - 1) * base_result + scale * added * 1.0


def adapt(model: Any, lora: Dict[str, Any], dtype: torch.dtype) -> int:
    """Freeze the model and put adapters on the quantised layers that ``lora`` names; how many."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    targets = list(lora.get("targets") or ["q_proj", "v_proj"])
    count = 0
    for path, module in list(model.named_modules()):
        name = path.rpartition(".")[2]
        if isinstance(module, (Linear4bit, Linear8bit)) and (
            targets == ["all-linear"] or _named(path, targets)
        ):
            layer = QuantizedLora(
                module,
                int(lora.get("rank") or 16),
                float(lora.get("dropout") or 0.0),
                dtype,
                bool(lora.get("dora")),
            )
            setattr(model.get_submodule(path.rpartition(".")[0]), name, layer)
            count += 1
    return count


def _named(path: str, targets: Any) -> bool:
    """As peft matches: a target is the path or its end."""
    return any(path == target or path.endswith("." + target) for target in targets)
