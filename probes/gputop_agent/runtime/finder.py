"""Calls us back after an import, by the finder that ``inject/sitecustomize.py`` put in place."""

import sys
from typing import Any

from gputop_agent.runtime import guard

_finders: "list[Any]" = []  # the injector's, once it was handed over
_own_listeners = []


def use(finder):
    """Take over the injector's finder."""
    _finders[:] = [finder]


def after_import(name, callback):
    """``callback(module)`` once ``name`` is imported; now if it is already."""
    module = sys.modules.get(name)
    if module is not None and not getattr(
        getattr(module, "__spec__", None), "_initializing", False
    ):
        guard.safely(callback, module)
    elif _finders:
        _finders[0].targets[name] = lambda module: guard.safely(callback, module)


def after_own_import(listener):
    """``listener(module)`` for every module of the guest that is imported from now on."""
    _own_listeners.append(listener)
