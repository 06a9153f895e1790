"""Values where a model looks at them: masks, grids and token ids keep theirs through a trace.

Models that see ask how many places are images, and select by masks. A small fake tensor whose
values are known answers; what is computed from such alone is known as well.
"""

from __future__ import annotations

from typing import Any, Callable, List

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from . import values

_aten = torch.ops.aten
_UNKNOWN = {
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.empty_strided.default,
    _aten.new_empty.default,
}
_INDEXED = {_aten.index.Tensor}


class Knowing(TorchDispatchMode):
    """Enter it between the ``FakeTensorMode`` and the tracker; ``wanted``: when values matter."""

    def __init__(self, wanted: Callable[[], bool]) -> None:
        super().__init__()
        self.wanted = wanted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.wanted():
            return func(*args, **kwargs)
        if func is _aten._local_scalar_dense.default:
            with unset_fake_temporarily():
                return values.item(args[0])
        if func is _aten.nonzero.default:
            return torch.empty((_true_rows(args[0]), args[0].dim()), dtype=torch.long)
        if func is _aten.masked_select.default:
            return torch.empty((_true_rows(args[1]),), dtype=args[0].dtype)
        if func in _INDEXED:
            return func(args[0], _without_masks(args[1]), *args[2:], **kwargs)
        if func is _aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:
            kwargs = dict(kwargs, output_size=_total(args[0]))
        try:
            out = func(*args, **kwargs)
        except DynamicOutputShapeException:
            return _by_values(func, args, kwargs)
        if func not in _UNKNOWN and _few(out):
            with unset_fake_temporarily():
                values.carry(func, args, kwargs, out)
        return out


def _true_rows(mask: torch.Tensor) -> int:
    with unset_fake_temporarily():
        return values.true_rows(mask)


def _total(repeats: torch.Tensor) -> int:
    total = values.known(repeats)
    with unset_fake_temporarily():
        return repeats.numel() if total is None else int(total.sum())


def _without_masks(indices: Any) -> List[Any]:
    """Integers in place of each boolean mask, as many as it lets through."""
    out: List[Any] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            out.append(index)
        else:
            rows = _true_rows(index)
            out.extend(torch.empty((rows,), dtype=torch.long) for _ in range(index.dim()))
    return out


def _by_values(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operation whose shape hangs on values, where these are known.

    Raises:
        DynamicOutputShapeException: they are not.
    """
    with unset_fake_temporarily():
        numbers = values.known_arguments(args, kwargs)
        if numbers is None:
            raise DynamicOutputShapeException(func)
        computed = func(*numbers[0], **numbers[1])
    return tree_map(_remembered, computed)


def _remembered(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    fake = torch.empty(value.shape, dtype=value.dtype)
    with unset_fake_temporarily():
        values.remember(fake, value)
    return fake


def _few(out: Any) -> bool:
    sizes = [leaf.numel() for leaf in values.leaves(out)]
    return bool(sizes) and max(sizes) * 8 <= values.KNOWN_BYTES
