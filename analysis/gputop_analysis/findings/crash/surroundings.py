"""What to do about errors whose cause lies around the script and not in the line that raised."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

Advice = Callable[[re.Match[str], str], str]


def advice(what: str, site: str | None, folder: str) -> str:
    """How to mend what an exception says; empty where the line itself is to be mended.

    Args:
        what: ``ModuleNotFoundError: No module named 'einops'``.
        site: ``train.py:12 main``, where it was raised.
        folder: the command's working directory.
    """
    for pattern, words in _KNOWN:
        match = pattern.search(what)
        if match:
            place = f" at {site}" if site else ""
            return words(match, folder).replace("{place}", place)
    return ""


def _module_missing(match: re.Match[str], folder: str) -> str:
    name = match["name"].partition(".")[0]
    return (
        f"install what `{name}` is part of for the Python that runs the command (`python -m pip "
        f"install {name}` where the package has that name), or start where `{name}` can be "
        "imported from"
    )


def _file_missing(match: re.Match[str], folder: str) -> str:
    path = match["path"]
    if os.path.isabs(path) or not folder:
        return f"put {path} there, or change the path{{place}}"
    return (
        f"{path} is a relative path, and the command was started in {folder}: start it elsewhere, "
        "or give the whole path{place}"
    )


def _words(text: str) -> Advice:
    return lambda match, folder: text


_CHOOSE_CPU = (
    "or choose another device{place}: `torch.cuda.is_available()` says whether there is a GPU"
)
_KNOWN: tuple[tuple[re.Pattern[str], Advice], ...] = (
    (
        re.compile("EADDRINUSE|address already in use", re.IGNORECASE),
        _words(
            "the port is taken, often by an earlier run that still lives: end that one, or give "
            "another, as `torchrun --master-port 29501` does"
        ),
    ),
    (re.compile(r"^ModuleNotFoundError: No module named '(?P<name>[\w.]+)'"), _module_missing),
    (
        re.compile(r"^FileNotFoundError: \[Errno 2\] .*?: '(?P<path>[^']+)'"),
        _file_missing,
    ),
    (
        re.compile("Torch not compiled with CUDA enabled"),
        _words(f"this torch is built for the CPU: install a build with CUDA, {_CHOOSE_CPU}"),
    ),
    (
        re.compile("Found no NVIDIA driver on your system|No CUDA GPUs are available"),
        _words(
            "no GPU can be used here (`nvidia-smi`, CUDA_VISIBLE_DEVICES): mend that, "
            f"{_CHOOSE_CPU}"
        ),
    ),
    (
        re.compile(r"\[Errno 28\]|No space left on device"),
        _words(
            "the disk is full (`df -h`, for /dev/shm too): make room, or write elsewhere{place}"
        ),
    ),
    (
        re.compile(r"^PermissionError: \[Errno 13\] .*?: '(?P<path>[^']+)'"),
        lambda match, folder: (
            f"{match['path']} may not be opened so: change its owner or mode, or the path{{place}}"
        ),
    ),
)
"""Patterns of what is said, and what to do; ``{place}`` stands for the line that raised."""
