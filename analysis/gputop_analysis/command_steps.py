"""How many steps a run will have by an option of its own command, where no trainer says it."""

from __future__ import annotations

import re
from collections.abc import Sequence

NAMES = {
    "steps",
    "max_steps",
    "num_steps",
    "total_steps",
    "train_steps",
    "max_train_steps",
    "num_train_steps",
    "max_iters",
    "train_iters",
}
"""Names of options that count a training's steps; of a dotted name the last part."""
_OPTION = re.compile(r"-{0,2}([A-Za-z][\w.-]*)(?:=(.*))?")


def total_steps(command: Sequence[str], steps_done: int) -> int | None:
    """The number that an option such as ``--max-steps 2000`` or ``trainer.max_steps=2000`` gives;
    None where there is none, two differ, or more steps than that were done.
    """
    counts = {count for name, count in _options(command) if name in NAMES}
    if len(counts) != 1:
        return None
    text = counts.pop()
    count = 0
    if text.isascii() and text.isdigit() and len(text) <= 12:
        count = int(text)
    return count if count >= max(steps_done, 1) else None


def _options(command: Sequence[str]) -> list[tuple[str, str]]:
    """Name and value of each option, with either sign between them."""
    pairs = []
    for word, following in zip(command, [*command[1:], ""], strict=False):
        match = _OPTION.fullmatch(word)
        if match is None or (match[2] is None and not word.startswith("--")):
            continue
        name = match[1].rpartition(".")[2].replace("-", "_").lower()
        pairs.append((name, following if match[2] is None else match[2]))
    return pairs
