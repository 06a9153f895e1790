"""Values of fake tensors: the true ones where they are known, plausible ones elsewhere.

A fake tensor that came from a small real one, and whatever is computed from such alone, keeps
*known* values. Masks, lengths and token ids then answer ``.item()``, ``if`` and boolean indexing
with the truth. Everything else, as a loss, answers 1.0 or 1, and a comparison of such values what
it is for these: a training loop prints, compares and averages them, asks whether a loss is finite
or not a number, and none of the answers ends it early.
"""

# torch is patched from outside here, in places that its type hints do not know.
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
from __future__ import annotations

from typing import Any, List, Optional

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_flatten, tree_map

KNOWN_BYTES = 4 << 20
"""Tensors up to this size keep their values when they go to the GPU."""

_RANDOM = torch.Tag.nondeterministic_seeded if hasattr(torch, "Tag") else None


def leaves(tree: Any) -> List[torch.Tensor]:
    """All tensors in nested arguments."""
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def known(tensor: Any) -> Optional[torch.Tensor]:
    """The true values of a tensor, or None."""
    if isinstance(tensor, FakeTensor):
        return tensor.__dict__.get("_known")
    return tensor


def remember(fake: Any, values: torch.Tensor) -> None:
    """Keep a copy of the true values, if they are few."""
    if values.device.type == "cpu" and values.numel() * values.element_size() <= KNOWN_BYTES:
        fake.__dict__["_known"] = values.detach().clone()


def known_arguments(args: Any, kwargs: Any) -> Any:
    """(args, kwargs) with true values in place of fake tensors, or None where one is unknown."""
    if any(known(leaf) is None for leaf in leaves((args, kwargs))):
        return None
    return tree_map(
        lambda leaf: known(leaf) if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs)
    )


def carry(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Compute the operation on known values too; forget those an unknown one is written into."""
    values = None if _RANDOM in func.tags else known_arguments(args, kwargs)
    if values is not None:
        try:
            computed = func(*values[0], **values[1])
        except Exception:  # a kernel of CUDA alone: the values are not known then
            return
        results = leaves(computed)
        for fake, result in zip(leaves(out), results):
            if isinstance(fake, FakeTensor) and fake.shape == result.shape and known(fake) is None:
                fake.__dict__["_known"] = result
    elif func._schema.is_mutable:
        for argument, value in zip(func._schema.arguments, args):
            if (
                argument.alias_info is not None
                and argument.alias_info.is_write
                and isinstance(value, FakeTensor)
            ):
                value.__dict__.pop("_known", None)


def judge(func: Any, args: Any, out: Any) -> None:
    """Give a comparison's result, or a combination's, the truth that it has for ones."""
    if (
        not isinstance(out, FakeTensor)
        or out.dtype != torch.bool
        or known(out) is not None
        or func._schema.is_mutable
    ):
        return
    try:
        ones = tree_map(
            lambda leaf: _one_value(leaf) if isinstance(leaf, torch.Tensor) else leaf, args
        )
        out.__dict__["_truth"] = bool(func(*ones).all())
    except Exception:  # its shape says more than its values
        return


def _one_value(tensor: torch.Tensor) -> torch.Tensor:
    values = known(tensor)
    if values is not None and values.numel() == 1:
        return values
    return torch.full(
        (1,) * tensor.dim(), item(tensor) if tensor.dtype == torch.bool else 1, dtype=tensor.dtype
    )


def item(tensor: torch.Tensor) -> Any:
    """What ``.item()`` answers."""
    values = known(tensor)
    if values is not None:
        return values.item()
    if tensor.dtype == torch.bool:
        return tensor.__dict__.get("_truth", False)
    return 1.0 if tensor.is_floating_point() else 1


def real(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with memory, for ``.numpy()`` and ``.tolist()``."""
    values = known(tensor)
    if values is not None:
        return values.clone()
    fill = item(tensor) if tensor.dtype == torch.bool else 1
    return torch.full(tuple(tensor.shape), fill, dtype=tensor.dtype, device="cpu")


def true_rows(mask: torch.Tensor) -> int:
    """How many places a mask lets through; all of them where its values are not known."""
    values = known(mask)
    return mask.numel() if values is None else int(values.count_nonzero())


def without_masks(indices: Any, make: Any) -> List[Any]:
    """Indices of ``x[...]`` with masks replaced by as many integers as they let through."""
    out: List[Any] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            out.append(index)
        else:
            rows = true_rows(index)
            out.extend(make((rows,)) for _ in range(index.dim()))
    return out


def packed_lengths(lengths: torch.Tensor, longest: int) -> torch.Tensor:
    """How many sequences of a packed batch are 1, 2, ... tokens or longer; all if unknown."""
    values = known(lengths)
    if values is None:
        return torch.full((longest,), lengths.numel(), dtype=torch.long)
    return torch.stack([(values > step).sum() for step in range(int(values.max()))])
