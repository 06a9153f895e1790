"""Where a DataLoader is built: the line of user code that its settings stand in."""

import sys

from gputop_agent.runtime import frames, guard, living, variables

_built = living.Living()  # DataLoader -> site, None where a package built it


def noting(original):
    """``DataLoader.__init__`` that notes its caller."""

    def wrapper(self, *args, **kwargs):
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            guard.vanish(error, "DataLoader.__init__")
            raise
        try:
            _built.put(self, _site(self, sys._getframe(1)))
        except Exception:
            guard.failed("DataLoader.__init__")
        return result

    return guard.dress(wrapper, original)


def of(loader):
    """The site where a loader was built; None where a package did it, or nobody saw it."""
    return _built.get(loader)


def _site(loader, frame):
    """Of the line that calls the constructor, past constructors of subclasses and what is wrapped
    around them.

    A package that only passes the user's arguments on leaves its caller's line; one that has made a
    loader anew leaves the place of the one of the same data, where the settings stand.
    """
    while frame is not None and _first_argument(frame) is loader:
        frame = frame.f_back
    packages = frames.packages(frame)
    same_data_at = _of_same_data(loader) if packages else None
    if same_data_at or any(name in frames.TRAINERS for name in packages):
        return same_data_at
    for frame_ in frames.stack(frame):
        if frames.is_user(frame_):
            return frames.site(frame_)
    return None


def _of_same_data(loader):
    data = getattr(loader, "dataset", None)
    for other, site in _built.items():
        if site and data is not None and getattr(other, "dataset", None) is data:
            return site
    return None


def _first_argument(frame):
    """The loader of a frame: a constructor's, or of what a package has put around one."""
    return variables.first(frame) if frame.f_code.co_argcount else None
