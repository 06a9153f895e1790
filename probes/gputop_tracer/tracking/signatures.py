"""What CUDA kernels allocate besides results, by operator: freed after the launch."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

FP32 = 4
CUBLAS_WORKSPACE = 8_519_680
"""Bytes that cuBLAS keeps a handle: ``:4096:2:16:8``, before Hopper (``CUDABlas.cpp``)."""
MATMULS = frozenset(("mm", "addmm", "bmm", "baddbmm"))


def temporaries(operator: str, args: Any) -> List[int]:
    """Sizes in bytes of what ``operator`` allocates for the length of its own work."""
    signature = _SIGNATURES.get(operator)
    return signature(args) if signature is not None else []


def _flash_backward(args: Any) -> List[int]:
    """``mha_bwd`` of FlashAttention 2: fp32 dq, an fp32 value a row; dk, dv of all heads."""
    query, key = args[1], args[2]
    batch, heads, tokens, width = query.shape
    tokens, width = _up(tokens, 128), _up(width, 32 if width <= 128 else 64)
    sizes = [batch * heads * tokens * FP32, batch * tokens * heads * width * FP32]
    if key.shape[1] != heads:
        sizes += 2 * [batch * key.shape[2] * heads * query.shape[-1] * query.element_size()]
    return sizes


def _efficient_backward(args: Any) -> List[int]:
    """``_efficient_attention_backward``: an fp32 value a row, fp32 dq for half inputs."""
    query = args[1]
    batch, heads, tokens, width = query.shape
    sizes = [batch * heads * tokens * FP32]
    if query.element_size() == 2:
        return sizes + [batch * heads * tokens * width * FP32]
    return sizes


def _embedding_backward(args: Any) -> List[int]:
    """``embedding_dense_backward_cuda`` sorts above 3072 indices: two copies of both."""
    count = args[1].numel()
    return 4 * [count * 8] if count > 3072 else []


_SIGNATURES: Dict[str, Callable[[Any], List[int]]] = {
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "embedding_dense_backward": _embedding_backward,
}


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
