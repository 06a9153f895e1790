"""Parameters that were given an attribute which is nearly called ``requires_grad``: torch takes any
name, and nothing is frozen or thawed by it.
"""

import re

from gputop_agent.runtime import source
from gputop_agent.watchers.looks import gradients

_NAMES = frozenset(
    (
        "require_grad",
        "require_grads",
        "required_grad",
        "requires_grads",
        "require_gradient",
        "requires_gradient",
        "require_gradients",
        "requires_gradients",
    )
)


def fields():
    """``{"misspelt": "require_grad", "misspelt_to": False, "misspelt_values": 4160,
    "misspelt_names": [...], "misspelt_at": "train.py:9"}`` of those that it changes nothing for;
    empty without one.
    """
    misspellings = [
        (path, parameter, name)
        for path, _, parameter in gradients.in_roots()
        for name in _NAMES.intersection(parameter.__dict__)
        if bool(parameter.__dict__[name]) != parameter.requires_grad
    ]
    if not misspellings:
        return {}
    _, first, name = misspellings[0]
    return {
        "misspelt": name,
        "misspelt_to": not first.requires_grad,
        "misspelt_values": sum(parameter.numel() for _, parameter, _ in misspellings),
        "misspelt_names": [path for path, _, _ in misspellings[: gradients.MAX_NAMES]],
        "misspelt_at": source.place_matching(r"\.%s\s*=[^=]" % re.escape(name)),
    }
