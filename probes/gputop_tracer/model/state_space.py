"""State-space layers of transformers by the kernels of mamba-ssm, by what these allocate and keep
(Gu and Dao 2023, Dao and Gu 2024).

After ``MambaInnerFn`` and ``SelectiveScanFn`` of ``mamba_ssm/ops/selective_scan_interface.py``, and
``MambaSplitConv1dScanCombinedFn`` of ``mamba_ssm/ops/triton/ssd_combined.py``. Transformers 5 calls
them by functions of its modules, which are replaced; its own loops over tokens keep many times as
much, and nobody trains by them.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, Tuple

import torch
from torch import nn
from torch.nn import functional

SCAN_CHUNK = 2048
"""Tokens between two states that the selective scan keeps (``selective_scan.cpp``)."""
NOTE = "state-space layers by the kernels of mamba-ssm, by hand: without them they keep far more"
WITHOUT = (
    "state-space layers as transformers writes them out in PyTorch: with the kernels of mamba-ssm "
    "they keep far less"
)


FAMILIES = (
    "bamba",
    "falcon_h1",
    "falcon_mamba",
    "granitemoehybrid",
    "jamba",
    "mamba",
    "mamba2",
    "nemotron_h",
    "zamba",
    "zamba2",
)
"""Models of transformers with such layers, as their modules are called."""


def replace(module: Any) -> bool:
    """Compute the layers of a module of transformers by the kernels from now on; whether it calls
    any.
    """
    called = [name for name in _BY_KERNEL if hasattr(module, name)]
    for name in called:
        setattr(module, name, _BY_KERNEL[name])
    return bool(called)


def are_in(model: nn.Module) -> bool:
    """Whether a model has layers whose kernels are known here."""
    return bool(_replaceable(model))


@contextmanager
def kernels(model: nn.Module) -> Iterator[None]:
    """While it is on, layers of the model's own kind are computed by the kernels."""
    before = _replaceable(model)
    for module, name in before:
        setattr(module, name, _BY_KERNEL[name])
    try:
        yield
    finally:
        for (module, name), function in before.items():
            setattr(module, name, function)


def _replaceable(model: nn.Module) -> Dict[Tuple[Any, str], Any]:
    """The functions of transformers' modules that stand for a kernel, by module and name."""
    paths = {type(module).__module__ for module in model.modules()}
    modules = [sys.modules[path] for path in paths if path.startswith("transformers.models.")]
    return {
        (module, name): getattr(module, name)
        for module in modules
        for name in _BY_KERNEL
        if hasattr(module, name)
    }


def _inner(*arguments: Any, **options: Any) -> torch.Tensor:
    xz, conv_weight, conv_bias, x_proj, dt_proj, out_proj, out_bias, decay = arguments[:8]
    return _MambaInner.apply(
        xz,
        conv_weight,
        conv_bias,
        x_proj,
        dt_proj,
        out_proj,
        out_bias,
        decay,
        options["delta_bias"],
    )


class _MambaInner(torch.autograd.Function):
    """Keeps its input, the small projections and the scan's output; the convolution and the steps
    are computed again in the backward pass (``checkpoint_lvl`` 1).
    """

    @staticmethod
    def forward(ctx: Any, xz: torch.Tensor, *weights: Any) -> torch.Tensor:
        _conv, _conv_bias, x_proj, _dt_proj, out_proj, out_bias, decay, _dt_bias = weights
        xz = xz.contiguous()
        batch, width, tokens = xz.shape
        inner, states = width // 2, decay.shape[-1]
        convolved = xz.new_empty((batch, inner, tokens))
        small = functional.linear(convolved.transpose(1, 2).reshape(-1, inner), x_proj)
        steps = xz.new_empty((batch, inner, tokens))
        inputs, outputs = (xz.new_empty((batch, 1, states, tokens)) for _ in range(2))
        chunks = -(-tokens // SCAN_CHUNK)
        between = xz.new_empty((batch, inner, chunks, 2 * states), dtype=torch.float32)
        scanned, gated = torch.empty_like(convolved), torch.empty_like(convolved)
        del convolved, steps
        ctx.save_for_backward(xz, small, inputs, outputs, between, scanned, *_tensors(weights))
        ctx.weights = weights
        return functional.linear(gated.transpose(1, 2), out_proj, out_bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        xz, small, _inputs, _outputs, _between, scanned = ctx.saved_tensors[:6]
        convolved, steps = torch.empty_like(scanned), torch.empty_like(scanned)
        of_xz = torch.empty_like(xz)
        of_scan, of_convolved, of_steps, gated = (torch.empty_like(scanned) for _ in range(4))
        of_small = torch.empty_like(small)
        of_weights = _gradients(ctx)
        del convolved, steps, of_scan, of_convolved, of_steps, gated, of_small
        return (of_xz, *of_weights)


def _scan(hidden: torch.Tensor, *rest: Any, **options: Any) -> Any:
    dt, decay, inputs, outputs = rest[:4]
    gate, skip = options.get("z"), options.get("D")
    scanned = _SelectiveScan.apply(hidden, dt, decay, inputs, outputs, gate, skip)
    if not options.get("return_last_state"):
        return scanned
    return scanned, hidden.new_empty((*hidden.shape[:2], decay.shape[-1]))


class _SelectiveScan(torch.autograd.Function):
    """Keeps all that it takes, its output before the gate and a state a chunk."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, *rest: Any) -> torch.Tensor:
        dt, decay, inputs, outputs, gate, skip = rest
        hidden, dt = hidden.contiguous(), dt.contiguous()
        batch, inner, tokens = hidden.shape
        chunks = -(-tokens // SCAN_CHUNK)
        between = hidden.new_empty((batch, inner, chunks, 2 * decay.shape[-1]), dtype=torch.float32)
        scanned = torch.empty_like(hidden)
        gated = scanned if gate is None else torch.empty_like(hidden)
        saved = (hidden, dt, inputs.contiguous(), outputs.contiguous(), between, scanned)
        ctx.save_for_backward(*saved, *_tensors((decay, gate, skip)))
        ctx.weights = rest
        return gated

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return (torch.empty_like(ctx.saved_tensors[0]), *_gradients(ctx))


def _split_scan(*arguments: Any, **options: Any) -> torch.Tensor:
    projected, conv_weight, conv_bias, dt_bias, decay = arguments[:5]
    return _ChunkedScan.apply(
        projected,
        (options["chunk_size"], options["headdim"], options["ngroups"]),
        conv_weight,
        conv_bias,
        dt_bias,
        decay,
        options["D"],
        options.get("rmsnorm_weight"),
        options.get("outproj_weight"),
        options.get("outproj_bias"),
    )


class _ChunkedScan(torch.autograd.Function):
    """Mamba-2's: keeps its input and the scan's output; states and products of the chunks are made
    again in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, projected: torch.Tensor, sizes: Tuple[int, int, int], *weights: Any
    ) -> Any:
        conv, _conv_bias, _dt_bias, decay, _skip, norm, out_proj, out_bias = weights
        ctx.weights, ctx.sizes = weights, sizes
        inner = decay.numel() * sizes[1]
        batch, tokens, _ = projected.shape
        convolved = projected.new_empty((batch, tokens, conv.shape[0]))
        chunks = _chunks(ctx, projected)
        scanned, out = (projected.new_empty((batch, tokens, inner)) for _ in range(2))
        del convolved, chunks
        if norm is None:
            scale = None
        else:
            scale = projected.new_empty((batch * tokens, sizes[2]), dtype=torch.float32)
        ctx.save_for_backward(projected, scanned, *_tensors((scale, *weights)))
        return out if out_proj is None else functional.linear(out, out_proj, out_bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        projected, scanned = ctx.saved_tensors[:2]
        scanned_again, of_out, of_scan = (torch.empty_like(scanned) for _ in range(3))
        shape = (*projected.shape[:2], ctx.weights[0].shape[0])
        convolved, of_convolved = (projected.new_empty(shape) for _ in range(2))
        of_projected = torch.empty_like(projected)
        chunks, of_chunks = _chunks(ctx, projected), _chunks(ctx, projected)
        del chunks, of_chunks
        of_weights = _gradients(ctx)
        del scanned_again, of_out, of_scan, convolved, of_convolved
        return (of_projected, None, *of_weights)


def _chunks(ctx: Any, projected: torch.Tensor) -> Any:
    """The chunks' states in fp32 and as they are multiplied, their products, and the steps."""
    chunk, width, groups = ctx.sizes
    conv, decay = ctx.weights[0], ctx.weights[3]
    batch, tokens, _ = projected.shape
    heads, count = decay.numel(), -(-tokens // chunk)
    states = (conv.shape[0] - heads * width) // groups // 2
    return (
        projected.new_empty((batch, count, heads, width, states), dtype=torch.float32),
        projected.new_empty((batch, count, heads, width, states)),
        projected.new_empty((batch, count, groups, chunk, chunk), dtype=torch.float32),
        projected.new_empty((2, batch, heads, count, chunk), dtype=torch.float32),
    )


def _tensors(values: Tuple[Any, ...]) -> Tuple[torch.Tensor, ...]:
    return tuple(value for value in values if value is not None)


def _gradients(ctx: Any) -> Tuple[Any, ...]:
    """Of the arguments that are in ``ctx.weights``, the last ones, where they need one."""
    needed = ctx.needs_input_grad[-len(ctx.weights) :]
    return tuple(
        torch.empty_like(weight) if needs else None for weight, needs in zip(ctx.weights, needed)
    )


_BY_KERNEL: Dict[str, Callable[..., Any]] = {
    "mamba_inner_fn": _inner,
    "mamba_selective_scan": _scan,
    "mamba2_split_conv1d_scan_combined": _split_scan,
}
