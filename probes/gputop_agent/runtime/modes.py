"""Modes of the user's (``TorchFunctionMode``) see each attribute of a tensor that is asked for, but not by us."""

import sys
from functools import wraps
from typing import Any

_count: Any = None  # torch's number of function modes that are active in this thread
_off: Any = None  # torch's context in which none of them is asked


def install(torch):
    """Bind what every question asks."""
    global _count, _off
    _count = getattr(torch._C, "_len_torch_function_stack", None)
    _off = getattr(torch._C, "DisableTorchFunction", None)


def unseen(function):
    """Decorate a function that reads tensors."""

    @wraps(function)
    def quiet(*args, **kwargs):
        if not _count or not _count():
            return function(*args, **kwargs)
        with _off():
            return function(*args, **kwargs)

    return quiet


def watching():
    """Whether a mode is active that is not torch's own default device."""
    if not _count or not _count():
        return False
    context = getattr(sys.modules.get("torch.utils._device"), "DeviceContext", ())
    at = sys.modules["torch"]._C._get_function_stack_at
    return any(not isinstance(at(i), context) for i in range(_count()))
