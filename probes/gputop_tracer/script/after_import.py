"""Changes to a library right after a script imported it, so that none is imported for nothing."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from typing import Any, Callable, Dict


def after_import(wanted: Dict[str, Callable[[Any], Any]]) -> None:
    """Call each function once with the module of its name: now, or when it is imported."""
    there = [name for name in wanted if name in sys.modules]
    sys.meta_path.insert(
        0, _AfterImport({name: action for name, action in wanted.items() if name not in there})
    )
    for name in there:
        wanted[name](sys.modules[name])


class _AfterImport(importlib.abc.MetaPathFinder):
    def __init__(self, wanted: Dict[str, Callable[[Any], Any]]) -> None:
        self.wanted = wanted

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        action = self.wanted.pop(name, None)
        if action is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def execute(module: Any) -> None:
            run(module)
            action(module)

        spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec
