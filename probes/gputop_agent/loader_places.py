"""Where a DataLoader is built: the line of user code that its settings stand in."""

import sys
import weakref

from . import frames, guard

#: packages that build loaders of their own from what the user gave them
_TRAINERS = ("accelerate", "deepspeed", "lightning", "lightning_fabric", "pytorch_lightning", "transformers", "trl")

_built = weakref.WeakKeyDictionary()  # DataLoader -> site, None where a package built it


def noting(original):
    """``DataLoader.__init__`` that notes its caller."""

    def wrapper(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        try:
            _built[self] = _site(self, sys._getframe(1))
        except Exception:
            guard.failed("DataLoader.__init__")
        return result

    return guard.dress(wrapper, original)


def of(loader):
    """The site where a loader was built; None where a package did it, or nobody saw it."""
    try:
        return _built.get(loader)
    except TypeError:  # cannot be weakly referenced
        return None


def packages(frame):
    """Top-level packages between a frame and the innermost line of user code, the inner ones first."""
    found = []
    for one in frames.stack(frame):
        origin = frames.origin(one.f_code.co_filename)
        if origin == frames.USER:
            break
        name = frames.package(one)
        if origin == frames.LIBRARY and name not in found:
            found.append(name)
    return found[:8]


def _site(loader, frame):
    """Of the line that calls the constructor, past constructors of subclasses and what is wrapped around them.

    A package that only passes the user's arguments on leaves its caller's line; one that owns the loop has made a
    loader anew, whose settings stand where the one of the same data was built.
    """
    while frame is not None and _first_argument(frame) is loader:
        frame = frame.f_back
    if any(name in _TRAINERS for name in packages(frame)):
        return _of_same_data(loader)
    for one in frames.stack(frame):
        if frames.is_user(one):
            return frames.site(one)
    return None


def _of_same_data(loader):
    data = getattr(loader, "dataset", None)
    for other, site in list(_built.items()):
        if site and data is not None and getattr(other, "dataset", None) is data:
            return site
    return None


def _first_argument(frame):
    """Of the function that a frame runs: a constructor's, or of what a package has put around one, is the loader."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
