"""A model's name as its architecture: a path, the catalog, or the local Hugging Face cache."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gputop_analysis.vram.setup import ModelShape

CONFIG = "config.json"
_HUB = "hub:"
"""Begins the source of a model whose configuration is packaged."""


def resolve(name: str) -> ModelShape:
    """The architecture of the model of that name; see ``resolved``."""
    return resolved(name)[0]


def resolved(name: str, traces: bool = False) -> tuple[ModelShape, str]:
    """The architecture of the model of that name, and what is to be said of how the name was read.

    Args:
        name: a directory with a ``config.json``, such a file, a name of ``gputop models``, or a
            Hugging Face name whose configuration is in the local cache. Nothing is downloaded.
        traces: whether a model that only a trace can answer for is taken, too; it has no
            dimensions then.

    Raises:
        LookupError: no such model; the message names the five nearest.
        ValueError: a configuration that does not describe an architecture.
    """
    from gputop_analysis import catalog

    path = Path(name).expanduser()
    folder = os.path.isdir(path)  # unlike Path's: False for a name that no file can have
    if folder or path.suffix == ".json":
        return _read(path / CONFIG if folder else path, traces=traces)
    try:
        return catalog.match_model(name)
    except LookupError:
        cached = cached_config(name)
        if cached is not None:
            return _read(cached, name, traces)
        shape = _of_hub(name)
        if shape is None:
            raise
        return _if_traced(shape, traces, name), ""


def cached_config(name: str) -> Path | None:
    """The newest ``config.json`` of a Hugging Face name in the local cache, or None."""
    home = os.environ.get("HF_HOME") or str(
        Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    )
    hub = Path(os.environ.get("HF_HUB_CACHE") or str(Path(home) / "hub")).expanduser()
    try:
        folder = hub / f"models--{name.replace('/', '--')}" / "snapshots"
        snapshots = list(folder.glob(f"*/{CONFIG}"))
    except (OSError, ValueError):  # a name that no folder can have
        return None
    return max(snapshots, key=lambda file: file.stat().st_mtime, default=None)


def configuration(model: ModelShape) -> str | dict[str, Any]:
    """What a trace takes of a model in place of its dimensions: the file of its configuration, or
    the values of one; empty for a model by its dimensions.
    """
    from gputop_analysis.catalog.hub_configs import hub_config

    if model.source.endswith(".json") and Path(model.source).is_file():
        return model.source
    if model.source.startswith(_HUB) and (cached := hub_config(model.source[len(_HUB) :])):
        return dict(cached.config)
    return ""


def _of_hub(name: str) -> ModelShape | None:
    from gputop_analysis.catalog.hub_configs import hub_config

    cached = hub_config(name)
    if cached is None:
        return None
    return _undimensioned(cached.config, cached.name, f"{_HUB}{cached.name}")


def _undimensioned(config: Mapping[str, Any], name: str, source: str) -> ModelShape:
    from gputop_analysis.vram.setup import ModelShape

    longest = config.get("max_position_embeddings") or config.get("max_target_positions") or 0
    family = str(config.get("model_type", ""))
    return ModelShape(name=name, family=family, max_position=int(longest), source=source)


def _if_traced(shape: ModelShape, traces: bool, wanted: str) -> ModelShape:
    """The shape, for who can trace it.

    Raises:
        LookupError: for others.
    """
    if traces:
        return shape
    raise LookupError(
        f"no formula covers {shape.name} ({shape.family}); a trace does: "
        f"gputop estimate --model {wanted}"
    )


def _read(file: Path, name: str = "", traces: bool = False) -> tuple[ModelShape, str]:
    from dataclasses import replace

    from gputop_analysis import catalog
    from gputop_analysis.catalog.other_kinds import counted_as_llama, traced_alone

    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise LookupError(f"no configuration at {file}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file} holds no configuration of a model")
    if traced_alone(config):
        shape = _undimensioned(config, name or file.parent.name, str(file))
        return _if_traced(shape, traces, name or str(file)), ""
    try:
        shape = catalog.shape_from_config(config)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} does not say which architecture it is: {error}") from None
    shape = replace(shape, name=name or shape.name or file.parent.name, source=str(file))
    return shape, counted_as_llama(config)
