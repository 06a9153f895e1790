"""The real flags of the launchers, and whether a command uses others."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def flags(program: str) -> dict[str, dict[str, Any]]:
    """Flag -> ``{type, choices}`` of ``torchrun``, ``deepspeed``, ``accelerate launch`` or
    ``megatron``.

    Raises:
        LookupError: no such program.
    """
    return _all()[program]["flags"]


@cache
def version(program: str) -> str:
    """What the list was read from."""
    return _all()[program]["version"]


@cache
def _all() -> dict[str, Any]:
    return json.loads(
        files("gputop_analysis.data").joinpath("launch_flags.json").read_text(encoding="utf-8")
    )


def wrong(program: str, words: Sequence[str]) -> list[str]:
    """A sentence for each flag in ``words`` that the program lacks or whose value it refuses."""
    known_flags, problems = flags(program), []
    for at, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, _, inline = word.partition("=")
        if name not in known_flags:
            near = difflib.get_close_matches(name, known_flags, n=1)
            problems.append(
                f"{program} has no {name}" + (f": did you mean {near[0]}?" if near else "")
            )
            continue
        choices = _choices(known_flags[name])
        value = inline or (words[at + 1] if at + 1 < len(words) else "")
        if choices and value not in choices:
            problems.append(f"{name} takes {', '.join(choices)}, not {value or 'nothing'}")
    return problems


def _choices(flag: dict[str, Any]) -> list[str]:
    choices = flag.get("choices") or []
    if isinstance(choices, str):
        choices = [part.strip(" '\"") for part in choices.strip("[]()").split(",")]
    return [str(choice).rpartition(".")[2] for choice in choices]
