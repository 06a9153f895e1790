"""The user's keys: ``keys.json`` in the configuration folder, as ``{"quit": "ctrl+q"}``."""

from __future__ import annotations

import json
from pathlib import Path

from gputop.actions import ACTIONS
from gputop_probes.locations import xdg_directory

NAMES = frozenset(action.id for action in ACTIONS)


def path() -> Path:
    """``$XDG_CONFIG_HOME/gputop/keys.json``, below ``~/.config`` where that is not set."""
    return xdg_directory("XDG_CONFIG_HOME", ".config") / "keys.json"


def load(file: Path) -> tuple[dict[str, str], str]:
    """The keys by action id, and in one line what is wrong with the file; no file is no trouble."""
    try:
        keys = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError) as error:
        return {}, f"{file} is not used: {error}"
    if not isinstance(keys, dict):
        return {}, f'{file} is not used: it must hold an object, for example {{"zoom": "x"}}'
    good = {name: key for name, key in keys.items() if name in NAMES and isinstance(key, str)}
    bad = [name for name in keys if name not in good]
    if not bad:
        return good, ""
    return good, f"{file}: no action is called {', '.join(bad)}; the help lists the keys there are"
