"""Old GPU tensor types, as ``torch.cuda.FloatTensor``, which make nothing undriven."""

# torch is patched from outside here, in places that its type hints do not know.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

import torch

from .fake import on_gpu

_DTYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


class _OfGpu(type):
    """Called with sizes or with values, and asked whether a tensor is of this type."""

    dtype: torch.dtype

    def __call__(cls, *given: Any) -> torch.Tensor:
        if len(given) == 1 and not isinstance(given[0], (int, torch.Size)):
            return torch.as_tensor(given[0], dtype=cls.dtype, device="cuda")
        if given and isinstance(given[0], torch.Size):
            sizes = given[0]
        else:
            sizes = given
        return torch.empty(*sizes, dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, tensor: Any) -> bool:
        return isinstance(tensor, torch.Tensor) and on_gpu(tensor) and tensor.dtype == cls.dtype


def replace() -> None:
    """Replace the types, and the default type that a script sets by one of them."""
    for name, dtype in _DTYPES.items():
        if hasattr(torch.cuda, name):
            setattr(
                torch.cuda, name, _OfGpu(name, (), {"dtype": dtype, "__module__": "torch.cuda"})
            )
    original = torch.set_default_tensor_type

    def set_default(kind: Any) -> None:
        dtype = dtype_of(kind)
        if dtype is None:
            original(kind)
            return
        torch.set_default_dtype(dtype)
        torch.set_default_device("cuda")

    torch.set_default_tensor_type = set_default


def dtype_of(kind: Any) -> Any:
    """That of a type on the GPU, by its name or itself; None for all else."""
    if isinstance(kind, _OfGpu):
        return kind.dtype
    if isinstance(kind, str):
        module_name, _, name = kind.rpartition(".")
    else:
        module_name, _, name = ("", "", "")
    return _DTYPES.get(name) if module_name == "torch.cuda" else None
