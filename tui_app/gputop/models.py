"""A model's name as its architecture: a path, the catalog, or the local Hugging Face cache."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gputop_analysis.catalog.denoisers import Denoiser
    from gputop_analysis.vram.setup import ModelShape

CONFIG = "config.json"
_PARTS = ("", "unet/", "transformer/")
"""Where a configuration lies in a model's folder; in one of diffusers the denoiser's."""
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
        return _read(_config_in(path) if folder else path, traces=traces)
    try:
        return catalog.match_model(name)
    except LookupError:
        cached = cached_config(name)
        if cached is not None:
            return _read(cached, name, traces)
        packaged = _of_hub(name)
        if packaged is None:
            raise
        shape, note = packaged
        return _if_traced(shape, traces, name), note


def _config_in(folder: Path) -> Path:
    files = [folder / part / CONFIG for part in _PARTS]
    return next((file for file in files if file.is_file()), files[0])


def cached_config(name: str) -> Path | None:
    """The newest ``config.json`` of a Hugging Face name in the local cache, or None."""
    home = os.environ.get("HF_HOME") or str(
        Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    )
    hub = Path(os.environ.get("HF_HUB_CACHE") or str(Path(home) / "hub")).expanduser()
    try:
        folder = hub / f"models--{name.replace('/', '--')}" / "snapshots"
        snapshots = [file for part in _PARTS for file in folder.glob(f"*/{part}{CONFIG}")]
    except (OSError, ValueError):  # a name that no folder can have
        return None
    return max(snapshots, key=lambda file: file.stat().st_mtime, default=None)


def configuration(model: ModelShape) -> str | dict[str, Any]:
    """What a trace takes of a model in place of its dimensions: the file of its configuration, or
    the values of one; empty for a model by its dimensions.
    """
    from gputop_analysis.catalog.other_kinds import TIMM

    if model.family == TIMM:
        return {TIMM: model.name}
    if model.source.endswith(".json") and Path(model.source).is_file():
        return _with_training(model)
    if model.source.startswith(_HUB):
        return _packaged(model.source.removeprefix(_HUB))
    return ""


def _with_training(model: ModelShape) -> str | dict[str, Any]:
    """A configuration's file; of a denoiser its values, with how it is trained."""
    from gputop_analysis.catalog.denoisers import is_denoiser, of_config

    if not is_denoiser(model.family):
        return model.source
    config = json.loads(Path(model.source).read_text(encoding="utf-8"))
    return dict(of_config(config, model.name).values)


def _packaged(name: str) -> str | dict[str, Any]:
    from gputop_analysis.catalog.denoisers import denoiser
    from gputop_analysis.catalog.hub_configs import hub_config

    if known := hub_config(name):
        return dict(known.config)
    known_denoiser = denoiser(name)
    return dict(known_denoiser.values) if known_denoiser else ""


def _of_hub(name: str) -> tuple[ModelShape, str] | None:
    """The shape of a model whose configuration is packaged or a library's, and what is to be said
    of how the name was read.
    """
    from gputop_analysis.catalog.denoisers import denoiser
    from gputop_analysis.catalog.hub_configs import hub_config
    from gputop_analysis.catalog.other_kinds import TIMM, timm_name
    from gputop_analysis.vram.setup import ModelShape

    if cached := hub_config(name):
        return _undimensioned(cached.config, cached.name, f"{_HUB}{cached.name}"), cached.note
    if known := denoiser(name):
        shape = _denoiser_shape(known, f"{_HUB}{known.name}")
        as_named = known.name.lower().endswith(name.strip().lower())
        return shape, "" if as_named else f"{name} is taken as the denoiser of {known.name}"
    if network := timm_name(name):
        return ModelShape(name=network, family=TIMM, source=f"{_HUB}{network}"), ""
    return None


def _denoiser_shape(known: Denoiser, source: str) -> ModelShape:
    from gputop_analysis.vram.setup import ModelShape

    defaults = known.defaults
    return ModelShape(
        name=known.name,
        family=known.family,
        vision_image=defaults["image_size"],
        frames=defaults["images"],
        source=source,
    )


def _undimensioned(config: Mapping[str, Any], name: str, source: str) -> ModelShape:
    from gputop_analysis.catalog.positions import max_position
    from gputop_analysis.vram.setup import ModelShape

    family = str(config.get("model_type", ""))
    return ModelShape(name=name, family=family, max_position=max_position(config), source=source)


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
    from gputop_analysis.catalog.denoisers import CLASS, of_config
    from gputop_analysis.catalog.other_kinds import counted_as_llama, traced_alone

    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise LookupError(f"no configuration at {file}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file} holds no configuration of a model")
    if CLASS in config:
        source = str(file)
        known = of_config(config, name or _folder_name(file))
        return _if_traced(_denoiser_shape(known, source), traces, name or source), ""
    if traced_alone(config):
        shape = _undimensioned(config, name or file.parent.name, str(file))
        return _if_traced(shape, traces, name or str(file)), ""
    try:
        shape = catalog.shape_from_config(config)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} does not say which architecture it is: {error}") from None
    shape = replace(shape, name=name or shape.name or file.parent.name, source=str(file))
    return shape, counted_as_llama(config)


def _folder_name(file: Path) -> str:
    """What a folder of diffusers is called, whose denoiser lies in a folder of its own."""
    folder = file.absolute().parent
    inner = [part.strip("/") for part in _PARTS[1:]]
    return folder.parent.name if folder.name in inner else folder.name
