"""The way in: Python imports this at start because its directory is on PYTHONPATH.

It puts one finder on sys.meta_path that waits for torch, takes itself off sys.path and hands over
to the sitecustomize that it hides. It must parse on any Python and cost next to nothing where torch
is never imported.
"""

import os
import sys
import time

_HERE = os.path.dirname(os.path.abspath(__file__))


class GputopFinder(object):
    """Calls ``targets[name](module)`` once a module was executed."""

    def __init__(self, targets):
        self.targets = targets
        self.searching = set()
        self.began = {}  # when the execution of each target began
        self.awake_ns = 0  # when the interpreter had come to us

    def find_spec(self, name, path=None, target=None):
        """Let the other finders find it, and watch the loader while it executes the module."""
        if name not in self.targets or name in self.searching:
            return None
        self.searching.add(name)
        try:
            spec = self._ask_others(name, path, target)
            if spec is not None and hasattr(spec.loader, "exec_module"):
                self._watch(spec.loader, name)
            return spec
        finally:
            self.searching.discard(name)

    def _ask_others(self, name, path, target):
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if find is not None and finder is not self:
                spec = find(name, path, target)
            else:
                spec = None
            if spec is not None:
                return spec
        return None

    def _watch(self, loader, name):
        original = loader.exec_module

        def exec_module(module):
            try:
                del loader.exec_module
            except AttributeError:
                pass
            try:
                self.began[name] = time.monotonic_ns()
                original(module)
            except BaseException as error:  # its traceback is the one without us
                error.__traceback__ = error.__traceback__.tb_next
                raise
            callback = self.targets.pop(name, None)
            if callback is not None:
                try:
                    callback(module)
                except Exception:
                    pass

        _hide(exec_module)
        try:
            loader.exec_module = exec_module
        except Exception:
            pass


def _hide(function):
    """Pass for a function of importlib's, whose frames Python leaves out of tracebacks."""
    if hasattr(function.__code__, "replace"):
        function.__code__ = function.__code__.replace(co_filename="<frozen importlib._bootstrap>")


for _name in ("find_spec", "_ask_others", "_watch"):
    _hide(GputopFinder.__dict__[_name])


def _load_agent(torch):
    """Load the package from its directory: nothing beside it comes onto the user's path."""
    import importlib.util

    folder = os.environ["GPUTOP_AGENT_DIR"]
    spec = importlib.util.spec_from_file_location(
        "gputop_agent", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    package = importlib.util.module_from_spec(spec)
    sys.modules["gputop_agent"] = package
    spec.loader.exec_module(package)
    from gputop_agent.injection import core

    core.install(torch, _FINDER)


_FINDER = GputopFinder({"torch": _load_agent})


def _is_wanted():
    return (
        sys.version_info >= (3, 8)
        and os.environ.get("GPUTOP_AGENT_DIR")
        and os.environ.get("GPUTOP_SOCKET")
        and os.environ.get("GPUTOP_DISABLE") != "1"
        and not any(type(finder).__name__ == "GputopFinder" for finder in sys.meta_path)
    )


if __name__ == "sitecustomize":  # a process that has begun without us only wants the finder
    if _is_wanted():
        _FINDER.awake_ns = time.monotonic_ns()
        sys.meta_path.insert(0, _FINDER)

    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    _ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as _error:
        if getattr(_error, "name", "sitecustomize") not in (None, "sitecustomize"):
            raise
    finally:
        if "sitecustomize" not in sys.modules and _ours is not None:
            sys.modules["sitecustomize"] = _ours
