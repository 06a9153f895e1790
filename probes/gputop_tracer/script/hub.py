"""What a script asks of a hub of models that is not reached while it is traced."""

from __future__ import annotations

import os
from typing import Any

_NO_MODEL = "it was given no model: name one in its own arguments, after `--`"


class NotHereError(OSError):
    """A model that was asked for by a name, of which nothing is on this machine."""


def in_words(problem: Exception, name: Any) -> Exception:
    """The error in words that say what to do, where it is that a name could not be looked up."""
    if name is None or not str(name).strip():
        return NotHereError(_NO_MODEL)
    if not isinstance(problem, OSError) or os.path.isdir(str(name)):
        return problem
    return NotHereError(
        "nothing of %s is in the local cache, and the network is off: fetch its config.json first"
        % name
    )


def explained(problem: BaseException) -> str:
    """Why a model could not be had, in words; empty: the problem is another one."""
    if isinstance(problem, NotHereError):
        return str(problem)
    if str(problem).startswith("Repo id must") and "''" in str(problem):
        return _NO_MODEL
    return ""
