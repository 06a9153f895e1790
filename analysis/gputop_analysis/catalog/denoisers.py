"""Diffusion models by the names of hubs and files: their denoisers, which a trace takes.

``denoisers.json`` holds ``vaes`` and ``encoders`` by short names, and ``denoisers``: ``{id:
entry}`` in the order in which names are read. An entry has ``names``, a pattern of what it is
called; ``class`` and ``config`` of diffusers, the latter only where it differs from the class's
defaults; ``millions`` of parameters; ``size`` (height and width) in pixels and ``frames`` that it
is trained at; ``tokens`` of a prompt; what stands frozen beside it, ``vae`` and ``encoders``; and
which of these the training ``source`` runs beforehand, so that they leave the GPU (``cached``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from gputop_analysis import data

FILE = "denoisers.json"
CLASS = "_class_name"
"""The field of a configuration of diffusers that names its class."""
TRAINING = "_training"
"""The field under which a trace finds what a training of it takes."""
CACHED = ("latents", "text", "none")
"""What may be encoded before the training."""
_OTHERS = re.compile(
    r"controlnet|ip-?adapter|inpaint|refiner|upscal|pix2pix|\bfill\b|\bcanny\b|\bdepth\b|redux|i2v"
    r"|image-?(?:to-)?2?-?video|motion|animatediff|\bprior\b|\bvae\b|x4|cascade|\bgguf\b"
)
"""Words of models that have another architecture than the one that they are called after."""


class Denoiser(NamedTuple):
    """A denoiser and how it is trained."""

    name: str
    values: Mapping[str, Any]
    """Of its ``config.json``, with ``CLASS`` and ``TRAINING``."""

    @property
    def family(self) -> str:
        return str(self.values[CLASS])

    @property
    def defaults(self) -> dict[str, Any]:
        """Options of a setup that follow from it: ``image_size`` in pixels, frames, ``cached``."""
        training = self.values[TRAINING]
        return {
            "image_size": min(training["size"]),
            "images": training.get("frames", 0),
            "cached": tuple(training.get("cached", ())),
        }


def is_denoiser(family: str) -> bool:
    """Whether a model's family is a class of diffusers."""
    return re.search(r"[23]D\w*Model$", family) is not None


def denoiser(name: str) -> Denoiser | None:
    """The denoiser that a hub's id, a file or a short name means; None: unknown."""
    plain = re.sub(r"\.(?:safetensors|ckpt|bin|json)$", "", name.strip().lower())
    plain = re.sub(r"[\s_/:]+", "-", plain).strip("-")
    if _OTHERS.search(plain):
        return None
    return next(
        (
            _denoiser(known)
            for known, entry in _packaged()["denoisers"].items()
            if plain == re.sub(r"[_/]", "-", known.lower()) or re.search(entry["names"], plain)
        ),
        None,
    )


def denoisers() -> tuple[Denoiser, ...]:
    """All of them."""
    return tuple(map(_denoiser, _packaged()["denoisers"]))


def of_config(config: Mapping[str, Any], name: str) -> Denoiser:
    """The denoiser of a ``config.json`` of diffusers, trained as the known one that is most like
    it.

    Raises:
        ValueError: none of its class is known.
    """
    alike = [known for known in denoisers() if known.family == config[CLASS]]
    if not alike:
        raise ValueError(
            f"how a {config[CLASS]} is trained is not known here: trace the script that does, "
            "gputop estimate train.py"
        )

    def agreement(known: Denoiser) -> int:
        fields = [field for field in known.values if field != TRAINING]
        same = sum(config.get(field) == known.values[field] for field in fields)
        return 2 * same - len(fields)

    training = dict(max(alike, key=agreement).values[TRAINING])
    return Denoiser(name, {**config, TRAINING: training})


@cache
def _denoiser(name: str) -> Denoiser:
    packaged = _packaged()
    entry = packaged["denoisers"][name]
    training = {
        field: entry[field] for field in ("size", "frames", "tokens", "cached") if field in entry
    }
    if "vae" in entry:
        training["vae"] = packaged["vaes"][entry["vae"]]
    training["encoders"] = [packaged["encoders"][one] for one in entry.get("encoders", ())]
    return Denoiser(name, {CLASS: entry["class"], **entry["config"], TRAINING: training})


@cache
def _packaged() -> dict[str, Any]:
    return json.loads(data.read(FILE) or "{}")
