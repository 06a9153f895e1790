"""Parameters without a gradient that learn all the same: from a head that each tenth step uses, or
by another optimizer that has them too.
"""

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


def not_updated_by(others: "list[Any]", parameters: "list[Any]") -> "list[Any]":
    """Those of ``parameters`` that none of ``others``, optimizers that step too, has updated, as of
    InfoGAN, whose third optimizer shares the discriminator's body.

    One that counts no updates, as plain SGD, is taken to have updated all that it has.
    """
    updated = {
        id(parameter)
        for other in others
        for group in other.param_groups
        for parameter in group["params"]
        if not other.state or parameter in other.state
    }
    return [parameter for parameter in parameters if id(parameter) not in updated]


def _updates(optimizer, parameter):
    """None: not counted, or on a device, which it would have to wait for."""
    state = (getattr(optimizer, "state", None) or {}).get(parameter)
    count = state.get("step") if isinstance(state, dict) else None
    if count is None or getattr(count, "is_cuda", False):
        return None
    return int(count)
