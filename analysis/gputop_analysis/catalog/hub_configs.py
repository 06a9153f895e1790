"""Configurations of models that no formula covers, by the names of hubs: a trace takes them.

``hub_configs.json`` holds ``{id: {"also": [other names], "config": what differs from the defaults
of its family in transformers}}``; parameters were counted against those that are published.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from gputop_analysis import data

FILE = "hub_configs.json"
_OTHER = re.compile(r"^v?\d+(?:px)?$|distil|tiny|mini|prun|moe|vision")
"""In the other words of a name: another size or shape than that of what it is called after."""


class HubConfig(NamedTuple):
    """A model of a hub."""

    name: str
    config: Mapping[str, Any]
    note: str = ""
    """How a name was read that is not its own."""


def hub_config(name: str) -> HubConfig | None:
    """The configuration that a hub's id, its last part or a name of timm means, or one of a
    fine-tune that is called after it; None: unknown.
    """
    return _by_name().get(_plain(name)) or _of_fine_tune(name)


def _of_fine_tune(name: str) -> HubConfig | None:
    """``nli-deberta-v3-small`` as the longest of the names that it ends or begins with, where what
    else it says is no number, which would be another size, and no other shape.
    """
    words = _words(name)
    for length in range(len(words) - 1, 1, -1):
        parts = ((words[-length:], words[:-length]), (words[:length], words[length:]))
        for called, others in parts:
            known = _by_name().get(_plain("-".join(called)))
            if known and not any(map(_OTHER.search, others)):
                note = f"{name.strip()} is taken as {known.name}, which it is called after"
                return known._replace(note=note)
    return None


def _words(name: str) -> list[str]:
    return re.split(r"[-_]", name.strip().lower().rstrip("/").rpartition("/")[2])


def hub_configs() -> tuple[HubConfig, ...]:
    """All of them."""
    return tuple(HubConfig(name, entry["config"]) for name, entry in _packaged().items())


@cache
def _by_name() -> dict[str, HubConfig]:
    configs: dict[str, HubConfig] = {}
    for name, entry in _packaged().items():
        for written in (name, *entry["also"]):
            configs.setdefault(_plain(written), HubConfig(name, entry["config"]))
    return configs


@cache
def _packaged() -> dict[str, Any]:
    return json.loads(data.read(FILE) or "{}")


def _plain(name: str) -> str:
    """Without the owner, what weights a name of timm means, and separators; sizes of images are
    those of the configuration.
    """
    last = name.strip().lower().rstrip("/").rpartition("/")[2]
    last = re.sub(r"\.(?:[a-z]+\w*_in\d+k?\w*|in1k|in12k|in22k|tv\w*|lvd142m|ms_in\w*)$", "", last)
    return re.sub(r"[^a-z0-9.]", "", re.sub(r"[-_]224(?:[-_]in(?:1|22)k)?$", "", last))
