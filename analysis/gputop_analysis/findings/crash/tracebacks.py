"""Tracebacks that a text quotes: plain ones, those of ranks, which a launcher marks, those that
rich draws in a box.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gputop_agent import wire

ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
"""Colours and the like, titles and links."""
_HEAD = re.compile(
    r"(?P<prefix>.*?)(?:\+ )?(?P<original>Original )?(?:Exception Group )?"
    r"Traceback \(most recent call last\)"
)
_FRAME = re.compile(r'[|>\s]*File "([^"]+)", line (\d+)(?:,? in (\S+))?')
_FATAL = "Fatal Python error: "
"""Python's own words at a signal of native code, where its fault handler is enabled."""
_UNCOMPILED = re.compile(r'  File "[^"]+", line \d+$')
"""What Python prints without a heading where the script itself is no Python."""
_RAISED = re.compile(r"(?:[|+-]+ )?([A-Za-z_][\w.]*(?:\([\w.]+\))?)(?:: .*|:)?")
_BOX, _BOX_ENDS = "╭", "╰"
_FRAME_IN_BOX = re.compile(r"[│|]\s+(\S+):(\d+) in (\S+)")
_IN_A_CHAIN = ("During handling of the above", "The above exception was the direct")
_FOLLOWS = re.compile("by peer|Broken pipe|Connection refused|recvBytes|Socket Timeout")
"""What a rank raises because another one has gone."""
_FOLLOWS_SURELY = re.compile("gloo/transport/.*by peer|ncclRemoteError|recvBytes")
"""The same where no mark tells that it was a rank which raised it."""
_CHILD = re.compile(r"Process [\w.-]+(:\d+)?:")
"""What multiprocessing prints above the traceback of a process that it started."""
_COMMAND = re.compile(r".*/bin/[^/.]+")
"""The file of an installed command, as torchrun is one."""
_PACKAGES = ("site-packages", "dist-packages", "<frozen", f"{os.sep}lib{os.sep}python")


class LastWords(NamedTuple):
    """What the traceback says that ended a command."""

    what: str
    """``ValueError: a shard is missing``."""
    site: str | None
    """``train.py:118 main``, the innermost line outside of packages; None where there is none."""


class _Traceback(NamedTuple):
    prefix: str
    """What stands before each of its lines, such as ``[rank3]: ``."""
    words: LastWords
    follows: bool
    """From the one before it, of the same prefix, or is what that one hands on."""


def parsed(text: str) -> LastWords | None:
    """The exception that ended the command: the first rank's where several are marked, else the
    last; not what the launcher raises over it nor what other ranks raise as that one is gone.
    """
    chains = _chains(ESCAPES.sub("", text).splitlines())
    first_hand = [chain for chain in chains if not is_of_a_launcher(chain.words)]
    if chains and not first_hand:
        return chains[-1].words._replace(site=None)
    of_ranks = [chain for chain in first_hand if chain.prefix]
    causes = [chain for chain in of_ranks if not _FOLLOWS.search(chain.words.what)] or of_ranks
    if causes:
        return causes[0].words
    causes = [chain for chain in first_hand if not follows_surely(chain.words.what)] or first_hand
    return causes[-1].words if causes else None


def of_a_child(text: str) -> LastWords | None:
    """The first exception that ended a process of ``multiprocessing``; None: none was printed."""
    lines = ESCAPES.sub("", text).splitlines()
    for index, line in enumerate(lines):
        if _CHILD.fullmatch(line):
            words = next((printed.words for printed in _tracebacks(lines[index + 1 :])), None)
            if words is not None and words.site:
                return words
    return None


def fatal_error(text: str) -> LastWords | None:
    """What Python's fault handler printed last, and the innermost line outside of packages; None
    where it printed nothing.
    """
    _, head, after = ESCAPES.sub("", text).rpartition(_FATAL)
    if not head:
        return None
    error, *lines = after.splitlines()
    frames = (_FRAME.match(line) for line in _of_current_thread(lines))
    sites = (_site(frame) for frame in frames if frame)
    return LastWords(f"{_FATAL}{error.strip()}", next((site for site in sites if site), None))


def _of_current_thread(lines: list[str]) -> Iterator[str]:
    """The frames of the thread that the signal came to, innermost first."""
    below = itertools.dropwhile(lambda line: not line.startswith("Current thread"), lines)
    return itertools.takewhile(lambda line: line.strip(), itertools.islice(below, 1, None))


def follows_surely(what: str) -> bool:
    """Whether an exception only says that another rank is no longer there."""
    return _FOLLOWS_SURELY.search(what) is not None


def _chains(lines: list[str]) -> list[_Traceback]:
    """The last traceback of each chain, with the place of the one before where it has none."""
    chains: list[_Traceback] = []
    for traceback in _tracebacks(lines):
        if traceback.follows and chains and chains[-1].prefix == traceback.prefix:
            earlier = chains.pop().words
            site = traceback.words.site or earlier.site
            traceback = traceback._replace(words=traceback.words._replace(site=site))
        chains.append(traceback)
    return chains


def is_of_a_launcher(words: LastWords) -> bool:
    """Whether an exception only says that a process which the launcher started has ended."""
    name = words.what.partition(":")[0].rpartition(".")[2]
    return name in wire.LAUNCHERS_ERRORS


def _tracebacks(lines: list[str]) -> Iterator[_Traceback]:
    for index, line in enumerate(lines):
        heading = _HEAD.match(line)
        if heading is None:
            if _UNCOMPILED.match(line) and (words := _plain(iter(lines[index:]))):
                yield _Traceback("", words, False)
            continue
        prefix, is_boxed, _ = heading["prefix"].partition(_BOX)
        read = _in_a_box if is_boxed else _plain
        words = read(_with_prefix(lines[index + 1 :], prefix))
        if words is not None:
            follows = bool(heading["original"]) or _is_chained(lines[:index], prefix)
            yield _Traceback(prefix.strip(" |+"), words, follows)


def _with_prefix(lines: Iterable[str], prefix: str) -> Iterator[str]:
    """A rank's own lines, as those of others may lie between; the prefix is taken off."""
    for line in lines:
        if line.startswith(prefix):
            yield line.removeprefix(prefix)


def _is_chained(lines: list[str], prefix: str) -> bool:
    own_lines = _with_prefix(reversed(lines), prefix)
    last = next((line for line in own_lines if line.strip()), "")
    return last.startswith(_IN_A_CHAIN)


def _plain(lines: Iterator[str]) -> LastWords | None:
    site = None
    for line in lines:
        if frame := _FRAME.match(line):
            site = _site(frame) or site
        elif _HEAD.match(line):
            return None
        elif raised := _RAISED.fullmatch(line.rstrip()):
            return LastWords(raised[0].lstrip("|+- "), site)
    return None


def _in_a_box(lines: Iterator[str]) -> LastWords | None:
    site = None
    for line in lines:
        if frame := _FRAME_IN_BOX.match(line):
            site = _site(frame) or site
        elif line.startswith(_BOX_ENDS):
            break
    raised = next((line.strip() for line in lines if line.strip()), "")
    return LastWords(raised, site) if _RAISED.fullmatch(raised) else None


def _site(frame: re.Match[str]) -> str | None:
    path, number, function = frame.groups()
    if _COMMAND.fullmatch(path) or any(part in path for part in _PACKAGES):
        return None
    place = f"{os.path.basename(path)}:{number}"
    return f"{place} {function}" if function else place
