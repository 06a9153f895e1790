"""Networks by their names in timm or torchvision, trained to classify images."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any, Dict, List, Tuple

import torch
from torch import nn

from .build import quiet

NAME = "timm"
"""The field of a configuration that names the network: ``gputop/models.py`` writes it."""
_CLASSES = 1000
"""Of a network that was published without a head."""
_PIXELS = 224


class Classifier(nn.Module):
    """A network with cross-entropy; its output is the loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores: Any = self.network(images)
        if not isinstance(scores, torch.Tensor):  # those of auxiliary heads besides
            scores = scores[0]
        return nn.functional.cross_entropy(scores, labels)


def build(name: str, pixels: int) -> Tuple[nn.Module, Tuple[int, ...]]:
    """The network on the meta device, and the shape (channels, height, width) of its images, whose
    edges are ``pixels`` long; 0: as it was published.

    Raises:
        ImportError: there is neither timm nor torchvision.
        ValueError: neither has a network of that name.
    """
    near: List[str] = []
    if find_spec("timm") is not None or not _in_torchvision(name):
        import timm

        if timm.is_model(name.partition(".")[0]):
            return _of_timm(timm, name, pixels)
        near = get_close_matches(name, timm.list_models(), 4, 0.5)
    if not _in_torchvision(name):
        raise ValueError("timm has no network %s; near it are %s" % (name, ", ".join(near)))
    import torchvision

    with quiet(), torch.device("meta"):
        network = torchvision.models.get_model(name)
    return network.train(), (3, pixels or _PIXELS, pixels or _PIXELS)


def _in_torchvision(name: str) -> bool:
    if find_spec("torchvision") is None:
        return False
    import torchvision

    return name in torchvision.models.list_models(module=torchvision.models)


def _of_timm(timm: Any, name: str, pixels: int) -> Tuple[nn.Module, Tuple[int, ...]]:
    options: Dict[str, Any] = {"pretrained": False}
    with quiet(), torch.device("meta"):
        network = timm.create_model(name, **options)
        if not network.num_classes:
            options["num_classes"] = _CLASSES
        if pixels and "img_size" in inspect.signature(type(network).__init__).parameters:
            options["img_size"] = pixels
        if len(options) > 1:
            network = timm.create_model(name, **options)
    channels, height, width = network.pretrained_cfg["input_size"]
    return network.train(), (channels, pixels or height, pixels or width)


def batch(shape: Tuple[int, ...], rows: int, dtype: torch.dtype) -> Dict[str, torch.Tensor]:
    """Fake images of type ``dtype`` and their classes."""
    images = torch.empty((rows, *shape), dtype=dtype)
    return {"images": images, "labels": torch.empty(rows, dtype=torch.long)}
