"""What to do about errors whose cause lies around the script and not in the line that raised."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

Advice = Callable[[re.Match[str], str, str], str]
"""Of what was said, the command's folder, and the line that raised as ``at train.py:12``."""


def advice(what: str, site: str | None, folder: str) -> str:
    """How to mend what an exception says; empty where the line itself is to be mended.

    Args:
        what: ``ModuleNotFoundError: No module named 'einops'``.
        site: ``train.py:12 main``, where it was raised.
        folder: the command's working directory.
    """
    for pattern, advise in _KNOWN:
        match = pattern.search(what)
        if match:
            return advise(match, folder, f" at {site}" if site else "")
    return ""


def _port_taken(match: re.Match[str], folder: str, place: str) -> str:
    return (
        "the port is taken, often by an earlier run that still lives: end that one, or give "
        "another, as `torchrun --master-port 29501` does"
    )


def _module_missing(match: re.Match[str], folder: str, place: str) -> str:
    name = match["name"].partition(".")[0]
    return (
        f"install what `{name}` is part of for the Python that runs the command (`python -m pip "
        f"install {name}` where the package has that name), or start where `{name}` can be "
        "imported from"
    )


def _name_missing(match: re.Match[str], folder: str, place: str) -> str:
    package = match["module"].partition(".")[0]
    return (
        f"the installed `{package}` has no `{match['name']}`: install the release that the script "
        f"was written for, or change the import{place}"
    )


def _as_it_says(match: re.Match[str], folder: str, place: str) -> str:
    command = match["command"].rstrip(".,:;)")
    return f"install what it asks for, for the Python that runs the command: `{command}`"


def _file_missing(match: re.Match[str], folder: str, place: str) -> str:
    path = match["path"]
    if os.path.isabs(path) or not folder:
        return f"put {path} there, or change the path{place}"
    return (
        f"{path} is a relative path, and the command was started in {folder}: start it elsewhere, "
        f"or give the whole path{place}"
    )


def _build_without_cuda(match: re.Match[str], folder: str, place: str) -> str:
    return f"this torch is built for the CPU: install a build with CUDA, {_other_device(place)}"


def _no_gpu(match: re.Match[str], folder: str, place: str) -> str:
    return (
        "no GPU can be used here (`nvidia-smi`, CUDA_VISIBLE_DEVICES): mend that, "
        f"{_other_device(place)}"
    )


def _other_device(place: str) -> str:
    return (
        f"or choose another device{place}: `torch.cuda.is_available()` says whether there is a GPU"
    )


def _disk_full(match: re.Match[str], folder: str, place: str) -> str:
    return f"the disk is full (`df -h`, for /dev/shm too): make room, or write elsewhere{place}"


def _bus_error(match: re.Match[str], folder: str, place: str) -> str:
    return (
        "/dev/shm had room: look for a mapped file (np.memmap, mmap, safetensors, Arrow) that is "
        "cut or written anew while workers read it; write another one and os.replace() it"
    )


def _not_permitted(match: re.Match[str], folder: str, place: str) -> str:
    return f"{match['path']} may not be opened so: change its owner or mode, or the path{place}"


def _not_reached(match: re.Match[str], folder: str, place: str) -> str:
    return (
        "what it wants to download cannot be reached from here (network, proxy, HF_TOKEN): fetch "
        f"it beforehand where there is a network, and change what is loaded{place}"
    )


def _gone_from_numpy(match: re.Match[str], folder: str, place: str) -> str:
    name = match["name"]
    older = "numpy<1.24" if name in _GONE_IN_1_24 else "numpy<2"
    return (
        f"the installed numpy has no `{name}` any more: `python -m pip install '{older}'`, or a "
        f"newer version of what asks for it{place}"
    )


_GONE_IN_1_24 = ("bool", "int", "float", "complex", "object", "str", "long")
_GONE_IN_2 = (
    "bool8", "int0", "uint0", "object0", "float_", "complex_", "unicode_", "string_", "Inf",
    "Infinity", "NaN", "PINF", "NINF", "infty", "product", "cumproduct", "sometrue", "alltrue",
    "row_stack", "asfarray", "msort", "find_common_type", "in1d", "trapz",
)  # fmt: skip
"""Names that numpy has dropped, by its release notes."""
_GONE = "|".join((*_GONE_IN_1_24, *_GONE_IN_2))
_KNOWN: tuple[tuple[re.Pattern[str], Advice], ...] = (
    (re.compile("EADDRINUSE|address already in use", re.IGNORECASE), _port_taken),
    (re.compile(r"^ModuleNotFoundError: No module named '(?P<name>[\w.]+)'"), _module_missing),
    (
        re.compile(
            r"^ImportError: cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)' "
            r"\(\S*?(?:site|dist)-packages/"
        ),
        _name_missing,
    ),
    (
        re.compile(
            r"^(?:Import|ModuleNotFound|Runtime)Error: .*?"
            r"""(?P<command>pip install (?:-\S+ )*(?:"[^"]+"|'[^']+'|[^\s`'"]+))""",
            re.DOTALL,
        ),
        _as_it_says,
    ),
    (re.compile("doesn't exist on the Hugging Face Hub"), _not_reached),
    (re.compile(r"^FileNotFoundError: \[Errno 2\] .*?: '(?P<path>[^']+)'"), _file_missing),
    (
        re.compile(r"^FileNotFoundError: (?!\[)(?:.*?['\"\s])?(?P<path>[\w.~-]*/[\w./~+-]*\w)"),
        _file_missing,
    ),
    (re.compile("Torch not compiled with CUDA enabled"), _build_without_cuda),
    (re.compile("Found no NVIDIA driver on your system|No CUDA GPUs are available"), _no_gpu),
    (
        re.compile(rf"^AttributeError: module 'numpy' has no attribute '(?P<name>{_GONE})'"),
        _gone_from_numpy,
    ),
    (
        re.compile(
            r"Error downloading|<urlopen error|^urllib\.error\.|HTTP Error \d{3}|"
            r"HTTPS?ConnectionPool|ouldn't connect to 'https?:|^LocalEntryNotFoundError"
        ),
        _not_reached,
    ),
    (re.compile("is killed by signal: Bus error"), _bus_error),
    (re.compile(r"\[Errno 28\]|No space left on device"), _disk_full),
    (re.compile(r"^PermissionError: \[Errno 13\] .*?: '(?P<path>[^']+)'"), _not_permitted),
)
"""What exceptions say, and what to do about it."""
