"""Parameters without a gradient that had one lately, as of a head that each tenth step uses."""

from typing import Any


class UsedNowAndThen:
    """Updates that an optimizer had counted of a parameter when a look last met it without one."""

    def __init__(self):
        self.updates: "dict[int, int]" = {}

    def never(self, optimizer: Any, without: "list[Any]") -> "list[Any]":
        """Those of ``without``, a list of parameters, that were not updated since the last look;
        all of them where the optimizer counts no updates, as SGD.
        """
        return [parameter for parameter in without if not self._was_updated(optimizer, parameter)]

    def _was_updated(self, optimizer, parameter):
        count = _updates(optimizer, parameter)
        if count is None:
            return False
        before = self.updates.get(id(parameter), 0)
        self.updates[id(parameter)] = count
        return count > before


def _updates(optimizer, parameter):
    """None: not counted, or on a device, which it would have to wait for."""
    state = (getattr(optimizer, "state", None) or {}).get(parameter)
    count = state.get("step") if isinstance(state, dict) else None
    if count is None or getattr(count, "is_cuda", False):
        return None
    return int(count)
