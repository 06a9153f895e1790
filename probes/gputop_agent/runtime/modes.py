"""The user's modes (``TorchFunctionMode``) see each attribute asked for, but not by us."""

import sys
from functools import wraps

from gputop_agent.runtime.bound import bound


def _active():
    """How many function modes are active in this thread."""
    if bound.count_function_modes is not None:
        return bound.count_function_modes()
    return 0


def unseen(function):
    """Decorate a function that reads tensors."""

    @wraps(function)
    def quiet(*args, **kwargs):
        if not _active():
            return function(*args, **kwargs)
        with bound.without_function_modes():
            return function(*args, **kwargs)

    return quiet


def watching():
    """Whether a mode is active that is not torch's own default device."""
    n_modes = _active()
    if not n_modes:
        return False
    context = getattr(sys.modules.get("torch.utils._device"), "DeviceContext", ())
    at = sys.modules["torch"]._C._get_function_stack_at
    return any(not isinstance(at(i), context) for i in range(n_modes))
