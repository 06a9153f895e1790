"""Modules that another one holds in a plain list, tuple or dict, which hides their parameters."""

import re
from typing import Any

from gputop_agent.runtime.living import alive
from gputop_agent.runtime.session import session
from gputop_agent.watchers.looks import used_at

_MAX_MODULES, _MAX_HELD = 2000, 1000
_PLAIN = (list, tuple, dict)


def holder_of(parameters):
    """``{"stray_held_in": "Critics.heads, a list", "stray_held_at": "model.py:51"}`` of the first
    module with such a collection that holds most of these parameters; empty without one.
    """
    wanted = {id(parameter) for parameter in parameters}
    torchs_own = session.torch.nn.Module().__dict__.keys()
    count = 0
    for root in alive([*session.roots, *session.untrained]):
        for module in root.modules():
            count += 1
            if count > _MAX_MODULES:
                return {}
            for name, value in list(module.__dict__.items()):
                is_plain = type(value) in _PLAIN and name not in torchs_own
                if is_plain and 2 * len(_ids_within(value) & wanted) > len(wanted):
                    return _fields(module, name, value)
    return {}


def _ids_within(value: Any):
    """Ids of the parameters of the modules in a collection."""
    values = list(value.values() if type(value) is dict else value)[:_MAX_HELD]
    modules = [item for item in values if isinstance(item, session.torch.nn.Module)]
    return {id(parameter) for module in modules for parameter in module.parameters()}


def _fields(module, name, value):
    kind = type(module)
    pattern = re.compile(r"\bself\.%s *(:[^=]+)?=[^=]" % re.escape(name))
    return {
        "stray_held_in": "%s.%s, a %s" % (kind.__name__, name, type(value).__name__),
        "stray_held_at": used_at.line_in_methods(kind, pattern),
    }
