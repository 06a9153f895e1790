"""Where a Python frame's code comes from, and how it is named to the user."""

import linecache
import os
import sys
import types
from typing import Any, Dict, NamedTuple

from gputop_agent.runtime import interrupts
from gputop_agent.runtime.lines import line_of

USER, LIBRARY, TORCH, STDLIB, AGENT = range(5)

_AGENT_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STDLIB_DIRS = (
    os.path.dirname(os.path.abspath(os.__file__)) + os.sep,
    os.path.join(sys.base_prefix, "lib", "python"),
)
_PACKAGES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_COMPILED = (".pyx", ".pxd", ".pxi")
_MAX_KNOWN = 4096

_origins = {}  # file name of a code object -> origin
_names = {}  # file name of a code object -> short name
_places = {}  # site -> (file name, line number)
_MAX_SOURCE_CHARS = 120


def origin(filename):
    """USER, LIBRARY, TORCH, STDLIB or AGENT for the file name of a code object."""
    origin_ = _origins.get(filename)
    if origin_ is None:
        if len(_origins) >= _MAX_KNOWN:
            _origins.clear()
        origin_ = _origins[filename] = _find_origin(filename)
    return origin_


def site(frame):
    """``"train.py:118"``: file relative to the working directory (or package), current line."""
    file, line = frame.f_code.co_filename, line_of(frame)
    site_ = "%s:%d" % (short_name(file), line)
    if site_ not in _places:
        if len(_places) >= _MAX_KNOWN:
            _places.clear()
        _places[site_] = file, line
    return site_


def source(site):
    """The text of the line that a site names, as on the disk now; empty: not readable."""
    file, line = _places.get(site, ("", 0))
    if origin(file) == USER:
        return linecache.getline(file, line).strip()[:_MAX_SOURCE_CHARS]
    return ""


def file_of(site):
    """The file that a site lies in, as its code names it; empty: not known."""
    return _places.get(site, ("", 0))[0]


def package(frame):
    """Top-level package that a frame of a library belongs to: ``lightning``."""
    return short_name(frame.f_code.co_filename).replace("\\", "/").partition("/")[0]


def label(frame):
    """``"train.py:118 get_batch"``."""
    return "%s %s" % (site(frame), frame.f_code.co_name)


def short_name(filename):
    """A file name for users: relative to the working directory or site-packages, or its base."""
    name = _names.get(filename)
    if name is None:
        if len(_names) >= _MAX_KNOWN:
            _names.clear()
        name = _names[filename] = _shorten(filename)
    return name


def stack(frame, limit=64):
    """The frames from ``frame`` (innermost) outwards, at most ``limit``."""
    frames = []
    while frame is not None and len(frames) < limit:
        frames.append(frame)
        frame = frame.f_back
    return frames


class Still(NamedTuple):
    """A frame as it stood: the thread that it belongs to may go on while it is described."""

    f_code: types.CodeType
    f_lineno: int
    f_lasti: int
    f_globals: Dict[str, Any]


def still(frame):
    """The frames from ``frame`` (innermost) outwards, as they stand now."""
    return [Still(f.f_code, line_of(f), f.f_lasti, f.f_globals) for f in stack(frame)]


def is_optimizer_step(frame):
    """Whether the frame is torch's wrapper around an optimizer's ``step``."""
    return frame.f_code.co_name == "wrapper" and frame.f_code.co_filename.endswith("optimizer.py")


def is_user(frame):
    """Whether the frame runs the user's code: no package, no torch, no standard library."""
    return origin(frame.f_code.co_filename) == USER


def caller():
    """The innermost user frame of the calling thread; None if there is none."""
    return next(filter(is_user, stack(sys._getframe(1))), None)


def caller_site():
    """Its site; None if there is none."""
    frame = caller()
    return site(frame) if frame is not None else None


#: packages that own a loop, and build what the loop needs from the user's arguments
TRAINERS = (
    "accelerate",
    "deepspeed",
    "lightning",
    "lightning_fabric",
    "pytorch_lightning",
    "transformers",
    "trl",
)


_HELPERS = ("accelerate", "lightning_fabric")  # of them, those that leave the loop to the user


def packages(frame):
    """Top-level packages between a frame and the innermost line of the user's, inner first."""
    packages_ = []
    for frame_ in stack(frame):
        where = origin(frame_.f_code.co_filename)
        if where == USER:
            break
        name = package(frame_)
        if name == "lightning" and "/fabric/" in frame_.f_code.co_filename.replace("\\", "/"):
            name = "lightning_fabric"
        if where == LIBRARY and name not in packages_:
            packages_.append(name)
    return packages_[:8]


def own_site():
    """Site of the innermost user frame of the calling thread; None where a trainer calls, or
    nobody.

    accelerate and Fabric alone are no trainers here: a loop of the user's own calls them.
    """
    inside = packages(sys._getframe(1))
    if any(name in TRAINERS and name not in _HELPERS for name in inside):
        return None
    return caller_site()


def _find_origin(filename):
    if filename == interrupts.HIDDEN_FILE:
        return AGENT
    if filename.startswith("<"):
        if filename.startswith(("<stdin>", "<string>", "<ipython")):
            return USER
        return STDLIB
    path = os.path.abspath(filename)
    if path.startswith(_AGENT_DIR):
        return AGENT
    if filename.endswith(_COMPILED) and not os.path.exists(path):
        return LIBRARY  # by Cython, which names it from where the package was built
    for marker in _PACKAGES:
        if marker in path:
            if path.rpartition(marker)[2].startswith("torch" + os.sep):
                return TORCH
            return LIBRARY
    if path.startswith(_STDLIB_DIRS):
        return STDLIB
    # a torch built from its sources
    torch_file = getattr(sys.modules.get("torch"), "__file__", None)
    if torch_file and path.startswith(os.path.dirname(torch_file) + os.sep):
        return TORCH
    return USER


def _shorten(filename):
    if filename.startswith("<"):
        return filename
    for marker in _PACKAGES:
        if marker in filename:
            return filename.rpartition(marker)[2]
    for folder in _STDLIB_DIRS:
        if filename.startswith(folder):
            return os.path.basename(filename)
    try:
        relative = os.path.relpath(filename)
    except (OSError, ValueError):
        interrupts.pass_on()
        relative = os.pardir
    if relative.startswith(os.pardir):
        return os.path.basename(filename)
    return relative


def _is_known(filename):
    return origin(filename) not in (USER, LIBRARY)


interrupts.is_known_file = _is_known
