"""Diffusion models by diffusers: the denoiser that is trained, and what stands frozen beside it.

A step is that of diffusers' example scripts (``train_text_to_image.py`` and its like): images are
encoded without gradients, noise is added, the denoiser runs under autocast, and the loss is the
mean squared error in fp32.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import nn

from . import denoiser_inputs
from .build import DTYPES, compute_dtype, materialize, quiet

CLASS, TRAINING = "_class_name", "_training"
"""Fields of a configuration: ``gputop_analysis/catalog/denoisers.py`` writes them."""


def build(values: Dict[str, Any], dtype: torch.dtype) -> Any:
    """The denoiser of a configuration for training, on the meta device.

    Raises:
        ValueError: this diffusers does not know its class, or cannot make it of these values.
    """
    fields = {name: value for name, value in values.items() if not name.startswith("_")}
    return _in(dtype, _made(values[CLASS], fields)).train()


def _in(dtype: torch.dtype, model: Any) -> Any:
    """Wholly of one type; the model's own ``to`` would warn of it."""
    return nn.Module.to(model, dtype)


def _made(name: str, fields: Dict[str, Any]) -> Any:
    import diffusers

    kind = getattr(diffusers, name, None)
    if kind is None:
        raise ValueError("diffusers %s has no %s" % (diffusers.__version__, name))
    try:
        with quiet(), torch.device("meta"):
            return kind(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "diffusers %s makes no %s of its configuration: %s"
            % (diffusers.__version__, name, error)
        ) from error


class DenoiserTraining:
    """How a denoiser is trained: sizes, and what is frozen beside it."""

    def __init__(self, values: Dict[str, Any], setup: Dict[str, Any]) -> None:
        facts = values.get(TRAINING) or {}
        self.values, self.setup = values, setup
        self.dtype = compute_dtype(setup)
        """Of the computation, and of what is frozen."""
        self.vae: Optional[Dict[str, Any]] = facts.get("vae")
        self.encoders: List[Dict[str, Any]] = facts.get("encoders") or []
        self.tokens = int(facts.get("tokens") or 0)
        self.cached = set(setup.get("cached") or facts.get("cached") or ())
        self.frames = int(setup.get("images") or facts.get("frames") or 0)
        self.size = self._size(facts["size"])

    def _size(self, trained_at: List[int]) -> Tuple[int, int]:
        """Height and width in pixels: the usual ones, brought to the size that is asked for.

        Raises:
            ValueError: the latents of such an image do not divide into patches.
        """
        unit = self._pixels_a_patch()
        shorter = int(self.setup.get("image_size") or min(trained_at))
        height, width = (
            max(round(edge * shorter / min(trained_at) / unit), 1) * unit for edge in trained_at
        )
        if min(height, width) != shorter:
            raise ValueError(
                "an image of %d pixels does not divide into patches of %d: try %d"
                % (shorter, unit, min(height, width))
            )
        return height, width

    def _pixels_a_patch(self) -> int:
        pixels = int(self.vae["pixels"]) if self.vae else 1
        return pixels * denoiser_inputs.divisor(self.values)

    def latents(self, channels: int) -> Tuple[int, ...]:
        """The shape of the latents of a micro-batch: (batch, channels, [frames,] height, width).

        Raises:
            ValueError: the denoiser takes more than what its VAE gives, as one that fills holes.
        """
        if self.vae and channels != self.vae["channels"]:
            raise ValueError(
                "the denoiser takes %d channels, the VAE gives %d: trace the script that trains "
                "it, gputop estimate train.py" % (channels, self.vae["channels"])
            )
        rows = int(self.setup.get("micro_batch") or 1)
        pixels = int(self.vae["pixels"]) if self.vae else 1
        edges = tuple(edge // pixels for edge in self.size)
        if not self.frames:
            return (rows, channels, *edges)
        per_latent = int((self.vae or {}).get("frames") or 1)
        return (rows, channels, (self.frames - 1) // per_latent + 1, *edges)

    @property
    def encodes(self) -> bool:
        """Whether a VAE is on the GPU and encodes each micro-batch."""
        return self.vae is not None and "latents" not in self.cached

    def notes(self) -> List[str]:
        """What is assumed of the frozen parts."""
        encoders = [self._words(one["name"], one) for one in self.encoders]
        held, gone = ([], encoders) if "text" in self.cached else (encoders, [])
        if self.vae:
            (held if self.encodes else gone).insert(0, self._words("the VAE", self.vae))
        parts = []
        if held:
            parts.append("%s on the GPU, of encoders the weights alone" % ", ".join(held))
        if gone:
            parts.append("%s run beforehand and not on the GPU" % ", ".join(gone))
        if not parts:
            return []
        return ["frozen: %s; --cached latents, text or none says otherwise" % "; ".join(parts)]

    def _words(self, name: str, part: Dict[str, Any]) -> str:
        size = 1e6 * part["millions"] * dtype_of(part, self.dtype).itemsize
        return "%s (%.1f GiB)" % (name, size / 2**30)


def dtype_of(part: Dict[str, Any], otherwise: torch.dtype) -> torch.dtype:
    """The type that a frozen part is held in."""
    return DTYPES.get(part.get("dtype") or "", otherwise)


class DenoisingStep(nn.Module):
    """A denoiser with the rest of a training step around it; its output is the loss."""

    def __init__(self, denoiser: Any, training: DenoiserTraining, frozen: nn.ModuleDict) -> None:
        super().__init__()
        self.denoiser, self.frozen = denoiser, frozen
        self.arrange = denoiser_inputs.arrangement(training.values)
        self.dtype = training.dtype

    def forward(self, source: torch.Tensor, **conditions: Any) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            latents = self.arrange(self._encoded(source))
            noise = torch.randn_like(latents)
            noisy = 0.5 * latents + 0.5 * noise
            del latents
        predicted = self.denoiser(noisy, **conditions, return_dict=False)[0]
        with torch.autocast("cpu", enabled=False):
            channels = self.arrange.channels
            if predicted.shape[channels] != noise.shape[channels]:  # a variance is learned, too
                predicted = predicted.chunk(2, dim=channels)[0]
            return nn.functional.mse_loss(predicted.float(), noise.float(), reduction="mean")

    @torch.no_grad()
    def _encoded(self, source: torch.Tensor) -> torch.Tensor:
        if "vae" not in self.frozen:
            return source
        vae: Any = self.frozen["vae"]
        encoded = vae.encode(source.to(vae.dtype))
        latents = next(
            getattr(encoded, name) for name in _ENCODED if getattr(encoded, name, None) is not None
        )
        sample = latents if isinstance(latents, torch.Tensor) else latents.sample()
        return (0.5 * sample).to(self.dtype)


_ENCODED = ("latent_dist", "latents", "latent")
"""What the outputs of VAEs call it."""


class Weights(nn.Module):
    """So many values that lie there."""

    def __init__(self, count: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("values", torch.empty(count, dtype=dtype))


def frozen(training: DenoiserTraining) -> nn.ModuleDict:
    """What lies on the GPU untrained, on the meta device: the VAE, and the encoders' weights."""
    parts = nn.ModuleDict()
    if training.encodes and training.vae:
        vae = _made(training.vae["class"], training.vae["config"]).eval().requires_grad_(False)
        parts["vae"] = _in(dtype_of(training.vae, training.dtype), vae)
    if "text" not in training.cached:
        with torch.device("meta"):
            for number, encoder in enumerate(training.encoders):
                count = round(encoder["millions"] * 1e6)
                parts["encoder_%d" % number] = Weights(count, training.dtype)
    return parts


def step(
    denoiser: Any, training: DenoiserTraining, parts: nn.ModuleDict, tracker: Any
) -> DenoisingStep:
    """The step around a denoiser that lies on the device, where the frozen parts do then, too."""
    materialize(parts)
    tracker.attach(parts, prefix="frozen.")
    return DenoisingStep(denoiser, training, parts)


def batch(config: Any, training: DenoiserTraining) -> Dict[str, Any]:
    """Fake inputs of a step: images, or latents where these are cached, and the conditions; of the
    denoiser of a configuration.
    """
    dtype = training.dtype
    latents = training.latents(denoiser_inputs.channels(training.values, config))
    if training.encodes:
        of_videos = "frames" in (training.vae or {})
        frames = (training.frames or 1,) if of_videos else ()
        shape: Tuple[int, ...] = (latents[0], 3, *frames, *training.size)
        source = torch.empty(shape)
    else:
        source = torch.empty(latents, dtype=dtype)
    conditions = denoiser_inputs.conditions(training.values, config, latents, training.tokens)
    return {"source": source, **{name: _cast(one, dtype) for name, one in conditions.items()}}


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, dict):
        return {name: _cast(one, dtype) for name, one in value.items()}
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(dtype)
    return value
