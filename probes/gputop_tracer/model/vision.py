"""Models that see: the configuration of their vision tower, and a batch with images in it."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

_FIELDS = {
    "vision_layers": ("depth", "num_hidden_layers"),
    "vision_hidden": ("embed_dim", "hidden_size"),
    "vision_heads": ("num_heads", "num_attention_heads", "attention_heads"),
    "vision_ffn": ("intermediate_size",),
    "vision_patch": ("patch_size",),
    "vision_image": ("image_size",),
}
_GLOBAL_LAYERS = 8
"""Of Mllama's tower, which counts them apart from the local ones."""


def vision_fields(shape: Dict[str, Any], known: Any) -> Dict[str, Any]:
    """The fields of a vision configuration like ``known`` for the tower of a model's shape."""
    names = known.to_dict()
    fields: Dict[str, Any] = {"model_type": known.model_type}
    for ours, theirs in _FIELDS.items():
        name = next((name for name in theirs if name in names), None)
        if name is not None and shape.get(ours):
            fields[name] = shape[ours]
    if isinstance(names.get("patch_size"), (list, tuple)) and shape.get("vision_patch"):
        fields["patch_size"] = [shape["vision_patch"]] * 2
    if known.model_type.startswith("qwen2_vl"):
        fields["hidden_size"] = shape["hidden"]
    if "out_hidden_size" in names:
        fields["hidden_size"] = shape["vision_hidden"]
        fields["out_hidden_size"] = shape["hidden"]
        fields.pop("embed_dim", None)
    if "num_global_layers" in names and shape.get("vision_layers", 0) > _GLOBAL_LAYERS:
        fields["num_hidden_layers"] = shape["vision_layers"] - _GLOBAL_LAYERS
        fields["num_global_layers"] = _GLOBAL_LAYERS
    if "mlp_ratio" in names and "intermediate_size" not in names and shape.get("vision_ffn"):
        ratio = shape["vision_ffn"] / shape["vision_hidden"]
        fields["mlp_ratio"] = type(names["mlp_ratio"])(ratio)
    return fields


def inputs(config: Any, setup: Dict[str, Any]) -> Dict[str, torch.Tensor]:
    """Token ids with places of images, and images; real, since models look at their values."""
    rows, seq = int(setup.get("micro_batch") or 1), int(setup.get("seq") or 2048)
    count = int(setup.get("images") or 0)
    ids = torch.ones((rows, seq), dtype=torch.long)
    batch: Dict[str, torch.Tensor] = {"input_ids": ids}
    if count:
        make = _MAKERS.get(config.model_type, _tiles)
        places, extra = make(config, rows, count, int(setup.get("image_size") or 336))
        token = _image_token(config)
        if token is not None:
            ids[:, 1 : 1 + min(places, seq - 1)] = token
        batch.update(extra)
    if config.model_type == "gemma3":
        batch["token_type_ids"] = (ids == _image_token(config)).long()
    if _MAKERS.get(config.model_type) is _grid:
        # Three positions a token: given, since a model would compute them value by value.
        batch["position_ids"] = torch.zeros((3, rows, seq), dtype=torch.long)
    batch["labels"] = ids.clone()
    return batch


def _image_token(config: Any) -> Any:
    for name in ("image_token_id", "image_token_index"):
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    return None


def _edge(config: Any) -> Tuple[int, int]:
    """(pixels of an image's edge, pixels of a patch's edge) of a tower with one size."""
    pair = [getattr(config.vision_config, name) for name in ("image_size", "patch_size")]
    edge, patch = (value[0] if isinstance(value, (list, tuple)) else value for value in pair)
    return int(edge), int(patch)


def _tiles(config: Any, rows: int, count: int, _size: int) -> Tuple[int, Dict[str, torch.Tensor]]:
    """Towers that take images of one size; the projector may join patches."""
    edge, patch = _edge(config)
    tokens_per_image = getattr(config, "mm_tokens_per_image", None)
    if tokens_per_image is None and config.model_type == "internvl":
        tokens_per_image = int((edge // patch) ** 2 * config.downsample_ratio**2)
    if tokens_per_image is None:
        tokens_per_image = (edge // patch) ** 2
    return tokens_per_image * count, {"pixel_values": _empty(rows * count, 3, edge, edge)}


def _grid(config: Any, rows: int, count: int, size: int) -> Tuple[int, Dict[str, torch.Tensor]]:
    """Qwen-VL: any size, in patches of two frames; the tower takes all patches in one row."""
    vision = config.vision_config
    merge = int(vision.spatial_merge_size)
    side = max(round(size / (vision.patch_size * merge)), 1) * merge
    grid = torch.tensor([[1, side, side]] * (rows * count), dtype=torch.long)
    width = 3 * int(vision.temporal_patch_size) * int(vision.patch_size) ** 2
    pixels = _empty(rows * count * side * side, width)
    return side * side // merge**2 * count, {"pixel_values": pixels, "image_grid_thw": grid}


def _crossed(config: Any, rows: int, count: int, _size: int) -> Tuple[int, Dict[str, torch.Tensor]]:
    """Mllama: tiles that the text attends to in own layers, without places in the sequence."""
    edge, _ = _edge(config)
    tiles = int(config.vision_config.max_num_tiles)
    ratios = torch.ones((rows, count), dtype=torch.long)
    masks = torch.ones((rows, count, tiles), dtype=torch.long)
    pixels = _empty(rows, count, tiles, 3, edge, edge)
    return 0, {"pixel_values": pixels, "aspect_ratio_ids": ratios, "aspect_ratio_mask": masks}


def _empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


_Maker = Callable[[Any, int, int, int], Tuple[int, Dict[str, torch.Tensor]]]
_MAKERS: Dict[str, _Maker] = {
    "qwen2_vl": _grid,
    "qwen2_5_vl": _grid,
    "qwen3_vl": _grid,
    "qwen3_vl_moe": _grid,
    "mllama": _crossed,
}


def fake(mode: Any, batch: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
    """The batch in ``mode``; small tensors keep their values."""
    from gputop_tracer.operators.values import remember

    tensors: Dict[str, torch.Tensor] = {}
    for name, tensor in batch.items():
        if tensor.device.type == "meta":
            tensors[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        else:
            tensors[name] = mode.from_tensor(tensor)
            with unset_fake_temporarily():
                remember(tensors[name], tensor)
    return tensors
