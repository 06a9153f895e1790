"""The vision tower: a transformer encoder over patches (Dosovitskiy et al. 2021)."""

from __future__ import annotations

from gputop_analysis.vram.formula.dims import Dims, Number


def kept(d: Dims) -> Number:
    """Bytes of activations of one micro-batch's images on the first stage: nothing where the tower
    is frozen, whose forward pass then needs no gradient; with checkpointing one input a layer; else
    34 bytes a patch and channel, less where the attention is no eager one (Korthikanti et al. 2022,
    section 4, without scores and dropout).
    """
    shape, setup = d.model, d.setup
    if not (setup.images and shape.vision_layers) or "vision" in setup.freeze or setup.lora:
        return 0 * d.tokens
    patches = setup.images * (setup.image_size // max(shape.vision_patch, 1)) ** 2 * d.micro_batch
    ffn = shape.vision_ffn or 4 * shape.vision_hidden
    bytes_per_patch = 2 * shape.vision_hidden
    if setup.checkpointing != "full":
        bytes_per_patch = d.compute * (7 * shape.vision_hidden + 2 * ffn)
    return patches * bytes_per_patch * shape.vision_layers * d.first
