"""Models that no formula covers, by the words of their names, and what traces them instead."""

from __future__ import annotations

import re
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of model, and the command that estimates one."""

    name: str
    pattern: str
    command: str


_SCRIPT = "gputop estimate train.py"
_CONFIG = "gputop estimate --model FOLDER --trace  (FOLDER: with its config.json)"
KINDS = (
    Kind(
        "a diffusion model",
        r"stable-?diffusion|sdxl|\bsd-?v?[123]\b|\bflux\b|\bdit\b|\bsit\b|pixart|unet|ddpm|\bvae\b"
        r"|\bsana|hunyuan-?video|cogvideo|\bwan-?2|kandinsky|ltx-?video|\bmochi|qwen-image|animatediff|controlnet",
        _SCRIPT,
    ),
    Kind(
        "a model of sound",
        r"whisper|wav2vec|hubert|wavlm|conformer|musicgen|encodec|seamless|parakeet|canary|\bclap\b"
        r"|speecht5|\btts\b|\bvits\b|kokoro|\bbark\b|tacotron|fastspeech|hifi-?gan|qwen\d?-audio|voxtral",
        _SCRIPT,
    ),
    Kind(
        "a state-space or hybrid model",
        r"mamba|jamba|rwkv|zamba|hymba|falcon-h1|qwen3-next|\blfm2|nemotron-h|granite-4|bamba|retnet|xlstm",
        _CONFIG,
    ),
    Kind(
        "a network of timm or torchvision",
        r"resnet|resnext|convnext|efficientnet|mobilenet|densenet|regnet|\bvgg|inception|\bswin"
        r"|\bdeit|\bbeit|maxvit|dinov[23]|\bvit[-_.]\w+[-_.]patch|eva02|\bmae\b|hiera|nfnet|yolo"
        r"|faster-?rcnn|mask-?rcnn|\bdetr\b|segformer|\bsam[-_.]?2?\b",
        _SCRIPT,
    ),
    Kind(
        "an encoder of sentences or of a family without a formula",
        r"deberta|modernbert|electra|albert|nomic-embed|gte-|jina-embed|bge-m3|longformer|big-?bird"
        r"|\bm?bart\b|pegasus|nllb|siglip|phi-3\.5-moe"
        r"|mpnet|xlnet|\besm-?2|\bmt5|\bbyt5|\bt5-v1|\bul2\b|arctic-embed|embeddinggemma|distilroberta|minilm",
        _CONFIG,
    ),
    Kind(
        "a model that sees or hears, of a family without a formula",
        r"\bllava-?(?:v?1\.6|next|onevision)|-vl\b|internvl[12]|smolvlm|idefics|paligemma|florence"
        r"|molmo|minicpm-?[vo]|gemma-3n|omni|blip|openvla|\bvla\b|\bpi-?0(?:\.5)?\b|phi-[34](?:\.5)?-(?:vision|multimodal)",
        _SCRIPT,
    ),
)


def kind_of(name: str) -> Kind | None:
    """The kind of model that a name means, where a formula covers none of it."""
    plain = re.sub(r"[\s_/]+", "-", name.strip().lower())
    return next((other_kind for other_kind in KINDS if re.search(other_kind.pattern, plain)), None)
