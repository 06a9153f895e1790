"""A model's name as its architecture: a path, the catalog, or the local Hugging Face cache."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gputop_analysis.vram.setup import ModelShape

CONFIG = "config.json"


def resolve(name: str) -> ModelShape:
    """The architecture of the model of that name; see ``resolved``."""
    return resolved(name)[0]


def resolved(name: str) -> tuple[ModelShape, str]:
    """The architecture of the model of that name, and what is to be said of how the name was read.

    Args:
        name: a directory with a ``config.json``, such a file, a name of ``gputop models``, or a
            Hugging Face name whose configuration is in the local cache. Nothing is downloaded.

    Raises:
        LookupError: no such model; the message names the five nearest.
        ValueError: a configuration that does not describe an architecture.
    """
    from gputop_analysis import catalog

    path = Path(name).expanduser()
    folder = os.path.isdir(path)  # unlike Path's: False for a name that no file can have
    if folder or path.suffix == ".json":
        return _read(path / CONFIG if folder else path), ""
    try:
        return catalog.match_model(name)
    except LookupError:
        cached = cached_config(name)
        if cached is None:
            raise
        return _read(cached, name), ""


def cached_config(name: str) -> Path | None:
    """The newest ``config.json`` of a Hugging Face name in the local cache, or None."""
    home = os.environ.get("HF_HOME") or str(
        Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    )
    hub = Path(os.environ.get("HF_HUB_CACHE") or str(Path(home) / "hub")).expanduser()
    try:
        kept = hub / f"models--{name.replace('/', '--')}" / "snapshots"
        snapshots = list(kept.glob(f"*/{CONFIG}"))
    except (OSError, ValueError):  # a name that no folder can have
        return None
    return max(snapshots, key=lambda file: file.stat().st_mtime, default=None)


def _read(file: Path, name: str = "") -> ModelShape:
    from dataclasses import replace

    from gputop_analysis import catalog

    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise LookupError(f"no configuration at {file}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file} holds no configuration of a model")
    try:
        shape = catalog.shape_from_config(config)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} does not say which architecture it is: {error}") from None
    return replace(shape, name=name or shape.name or file.parent.name, source=str(file))
