"""What each class of denoisers takes beside the noisy latents, and how these lie in memory."""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Tuple

import torch

Shape = Tuple[int, ...]
"""Of latents: (batch, channels, [frames,] height, width)."""
_CLASS = "_class_name"


class Arrangement(NamedTuple):
    """From latents as a VAE gives them to the denoiser's input."""

    change: Callable[[torch.Tensor], torch.Tensor]
    channels: int
    """The dimension that holds them afterwards."""

    def __call__(self, latents: torch.Tensor) -> torch.Tensor:
        return self.change(latents)


class DenoiserKind(NamedTuple):
    """A class of denoisers."""

    conditions: Callable[[Any, Shape, int], Dict[str, Any]]
    """From its configuration, the latents' shape and the tokens of a prompt."""
    arrange: Arrangement = Arrangement(lambda latents: latents, 1)
    divisor: Callable[[Dict[str, Any]], int] = lambda values: int(values.get("patch_size") or 2)
    """What the edges of latents divide by."""
    packs: int = 1
    """Latent values that are one channel of its input."""


def _packed(latents: torch.Tensor) -> torch.Tensor:
    """Patches of two by two as tokens (``_pack_latents`` of ``FluxPipeline``)."""
    if latents.dim() == 5:
        latents = latents[:, :, 0]
    rows, channels, height, width = latents.shape
    parts = latents.view(rows, channels, height // 2, 2, width // 2, 2)
    return parts.permute(0, 2, 4, 1, 3, 5).reshape(rows, height * width // 4, channels * 4)


def _flat(latents: torch.Tensor) -> torch.Tensor:
    return latents.flatten(2).transpose(1, 2)


def _frames_first(latents: torch.Tensor) -> torch.Tensor:
    return latents.permute(0, 2, 1, 3, 4).contiguous()


def _times(latents: Shape) -> torch.Tensor:
    return torch.zeros(latents[0], dtype=torch.long)


def _prompt(latents: Shape, tokens: int, width: int) -> torch.Tensor:
    return torch.empty(latents[0], tokens, width)


def _mask(latents: Shape, tokens: int) -> torch.Tensor:
    return torch.ones(latents[0], tokens)


def _unet(config: Any, latents: Shape, tokens: int) -> Dict[str, Any]:
    rows = latents[0]
    inputs: Dict[str, Any] = {"timestep": _times(latents), "encoder_hidden_states": None}
    if config.encoder_hid_dim_type is None:
        inputs["encoder_hidden_states"] = _prompt(latents, tokens, config.cross_attention_dim)
    if config.addition_embed_type == "text_time":
        numbers = 6  # size of the image, of its crop, of the target
        pooled = config.projection_class_embeddings_input_dim
        pooled -= numbers * config.addition_time_embed_dim
        inputs["added_cond_kwargs"] = {
            "text_embeds": torch.empty(rows, pooled),
            "time_ids": torch.empty(rows, numbers),
        }
    elif config.addition_embed_type == "image":
        inputs["added_cond_kwargs"] = {"image_embeds": torch.empty(rows, config.encoder_hid_dim)}
    return inputs


def _unet_of_pixels(config: Any, latents: Shape, _tokens: int) -> Dict[str, Any]:
    inputs = {"timestep": _times(latents)}
    if getattr(config, "num_class_embeds", None):
        inputs["class_labels"] = _times(latents)
    return inputs


def _dit(_config: Any, latents: Shape, _tokens: int) -> Dict[str, Any]:
    return {"timestep": _times(latents), "class_labels": _times(latents)}


def _sd3(config: Any, latents: Shape, tokens: int) -> Dict[str, Any]:
    return {
        "timestep": _times(latents),
        "encoder_hidden_states": _prompt(latents, tokens, config.joint_attention_dim),
        "pooled_projections": torch.empty(latents[0], config.pooled_projection_dim),
    }


def _flux(config: Any, latents: Shape, tokens: int) -> Dict[str, Any]:
    rows, places = latents[0], latents[-2] * latents[-1] // 4
    inputs = {
        "timestep": torch.empty(rows),
        "encoder_hidden_states": _prompt(latents, tokens, config.joint_attention_dim),
        "pooled_projections": torch.empty(rows, config.pooled_projection_dim),
        "img_ids": torch.empty(places, 3),
        "txt_ids": torch.empty(tokens, 3),
    }
    if config.guidance_embeds:
        inputs["guidance"] = torch.empty(rows)
    return inputs


def _pixart(config: Any, latents: Shape, tokens: int) -> Dict[str, Any]:
    rows = latents[0]
    with_size = config.use_additional_conditions
    if with_size is None:
        with_size = config.sample_size == 128
    return {
        "timestep": _times(latents),
        "encoder_hidden_states": _prompt(latents, tokens, config.caption_channels),
        "encoder_attention_mask": _mask(latents, tokens),
        "added_cond_kwargs": {
            "resolution": torch.empty(rows, 2) if with_size else None,
            "aspect_ratio": torch.empty(rows, 1) if with_size else None,
        },
    }


def _sana(config: Any, latents: Shape, tokens: int) -> Dict[str, Any]:
    return {
        "timestep": _times(latents),
        "encoder_hidden_states": _prompt(latents, tokens, config.caption_channels),
        "encoder_attention_mask": _mask(latents, tokens),
    }


def _cogvideox(config: Any, latents: Shape, tokens: int) -> Dict[str, Any]:
    inputs: Dict[str, Any] = {
        "timestep": _times(latents),
        "encoder_hidden_states": _prompt(latents, tokens, config.text_embed_dim),
    }
    if config.use_rotary_positional_embeddings:
        places = latents[2] * latents[3] * latents[4] // config.patch_size**2
        inputs["image_rotary_emb"] = tuple(
            torch.empty(places, config.attention_head_dim, dtype=torch.float32) for _ in range(2)
        )
    return inputs


def _wan(config: Any, latents: Shape, tokens: int) -> Dict[str, Any]:
    return {
        "timestep": _times(latents),
        "encoder_hidden_states": _prompt(latents, tokens, config.text_dim),
    }


def _ltx(config: Any, latents: Shape, tokens: int) -> Dict[str, Any]:
    frames, height, width = latents[2:]
    return {
        "timestep": _times(latents),
        "encoder_hidden_states": _prompt(latents, tokens, config.caption_channels),
        "encoder_attention_mask": _mask(latents, tokens),
        "num_frames": frames,
        "height": height,
        "width": width,
        "rope_interpolation_scale": (0.32, 32, 32),
    }


def _hunyuan_video(config: Any, latents: Shape, tokens: int) -> Dict[str, Any]:
    inputs = {
        "timestep": _times(latents),
        "encoder_hidden_states": _prompt(latents, tokens, config.text_embed_dim),
        "encoder_attention_mask": _mask(latents, tokens),
        "pooled_projections": torch.empty(latents[0], config.pooled_projection_dim),
    }
    if config.guidance_embeds:
        inputs["guidance"] = torch.empty(latents[0])
    return inputs


def _qwen_image(config: Any, latents: Shape, tokens: int) -> Dict[str, Any]:
    grid = (1, latents[-2] // 2, latents[-1] // 2)
    return {
        "timestep": torch.empty(latents[0]),
        "encoder_hidden_states": _prompt(latents, tokens, config.joint_attention_dim),
        "encoder_hidden_states_mask": _mask(latents, tokens).bool(),
        "img_shapes": [[grid]] * latents[0],
    }


def _halvings(values: Dict[str, Any]) -> int:
    """Of a U-Net, which halves the edges between its levels."""
    return 2 ** (len(values.get("block_out_channels") or (0,) * 4) - 1)


_TOKENS = Arrangement(_packed, -1)
_KINDS: Dict[str, DenoiserKind] = {
    "UNet2DConditionModel": DenoiserKind(_unet, divisor=_halvings),
    "UNet2DModel": DenoiserKind(_unet_of_pixels, divisor=_halvings),
    "DiTTransformer2DModel": DenoiserKind(_dit),
    "SD3Transformer2DModel": DenoiserKind(_sd3),
    "FluxTransformer2DModel": DenoiserKind(_flux, _TOKENS, lambda _values: 2, packs=4),
    "PixArtTransformer2DModel": DenoiserKind(_pixart),
    "SanaTransformer2DModel": DenoiserKind(
        _sana, divisor=lambda values: values.get("patch_size") or 1
    ),
    "CogVideoXTransformer3DModel": DenoiserKind(_cogvideox, Arrangement(_frames_first, 2)),
    "WanTransformer3DModel": DenoiserKind(_wan, divisor=lambda _values: 2),
    "LTXVideoTransformer3DModel": DenoiserKind(_ltx, Arrangement(_flat, -1), lambda _values: 1),
    "HunyuanVideoTransformer3DModel": DenoiserKind(_hunyuan_video),
    "QwenImageTransformer2DModel": DenoiserKind(_qwen_image, _TOKENS, lambda _values: 2, packs=4),
}


def _kind(values: Dict[str, Any]) -> DenoiserKind:
    if values[_CLASS] not in _KINDS:
        raise ValueError(
            "what a %s takes is not known here: trace the script that trains it, "
            "gputop estimate train.py" % values[_CLASS]
        )
    return _KINDS[values[_CLASS]]


def arrangement(values: Dict[str, Any]) -> Arrangement:
    """How latents lie in the denoiser's input."""
    return _kind(values).arrange


def divisor(values: Dict[str, Any]) -> int:
    """What the edges of latents divide by.

    Raises:
        ValueError: the class is not known here.
    """
    return int(_kind(values).divisor(values))


def channels(values: Dict[str, Any], config: Any) -> int:
    """Channels of the latents, as the VAE gives them."""
    return int(config.in_channels) // _kind(values).packs


def conditions(values: Dict[str, Any], config: Any, latents: Shape, tokens: int) -> Dict[str, Any]:
    """The denoiser's inputs beside the latents, by name; of latents of such a shape."""
    return _kind(values).conditions(config, latents, tokens)
