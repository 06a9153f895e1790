"""Models that no formula covers, by the words of their names, and what traces them instead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from gputop_analysis.catalog.denoisers import is_denoiser
from gputop_analysis.catalog.families import FAMILIES


class Kind(NamedTuple):
    """A kind of model, and the command that estimates one."""

    name: str
    pattern: str
    command: str


_SCRIPT = "gputop estimate train.py"
_NETWORKS = "a network of timm or torchvision"
_DIFFUSERS = (
    "gputop estimate --model FOLDER  (FOLDER: of diffusers), or of its script: "
    "gputop estimate train.py"
)
_CONFIG = (
    "gputop estimate --model FOLDER --trace  (FOLDER: with its config.json), or of its script: "
    "gputop estimate train.py"
)
KINDS = (
    Kind(
        "a diffusion model",
        r"stable-?diffusion|sdxl|\bsd-?v?[123]\b|\bflux\b|\bdit\b|\bsit\b|pixart|unet|ddpm|\bvae\b"
        r"|\bsana|hunyuan-?dit|hunyuan-?video|cogvideo|\bwan-?2|kandinsky|ltx-?video"
        r"|\bmochi|qwen-image|animatediff|controlnet",
        _DIFFUSERS,
    ),
    Kind(
        "a model of sound",
        r"whisper|wav2vec|hubert|wavlm|conformer|musicgen|encodec|seamless|parakeet|canary|\bclap\b"
        r"|\bmms-\d|speecht5|\btts\b|\bvits\b|kokoro|\bbark\b|tacotron|fastspeech"
        r"|hifi-?gan|qwen\d?-audio|voxtral",
        _CONFIG,
    ),
    Kind(
        "a state-space or hybrid model",
        r"mamba|jamba|rwkv|zamba|hymba|falcon-h1|qwen3-next|\blfm2|nemotron-h"
        r"|nvidia-nemotron-nano|nemotron-nano-\d+b-v2|nemotron-3-nano"
        r"|granite-4(?:\.\d)?-(?!micro\b|1b\b|350m)"
        r"|bamba|retnet|xlstm",
        _CONFIG,
    ),
    Kind(
        _NETWORKS,
        r"resnet|resnext|convnext|efficientnet|mobilenet|densenet|regnet|\bvgg|inception|\bswin"
        r"|\bdeit|\bbeit|maxvit|dinov[23]|\bvit[-_.]\w+[-_.]patch|eva02|\bmae\b|hiera|nfnet|yolo"
        r"|faster-?rcnn|mask-?rcnn|\b(?:rt-?)?detr(?:v\d)?\b|segformer|\bsam[-_.]?2?\b",
        _SCRIPT,
    ),
    Kind(
        "an encoder of sentences or of a family without a formula",
        r"deberta|modernbert|electra|albert|nomic-embed|gte-|jina-embed|bge-m3|longformer|\bled-|big-?bird"
        r"|\bm?bart\b|pegasus|nllb|siglip|phi-3\.5-moe"
        r"|layoutlm|trocr|donut|mpnet|xlnet|\besm-?2|\bmt5|\bbyt5|\bt5-v1"
        r"|\bul2\b|arctic-embed|embeddinggemma|distilroberta|minilm",
        _CONFIG,
    ),
    Kind(
        "a model that sees or hears, of a family without a formula",
        r"\bllava-?(?:v?1\.6|next|onevision)|-vl\b|internvl[12]|smolvlm|idefics|paligemma|florence"
        r"|molmo|minicpm-?[vo]|gemma-3n|omni|blip|openvla|\bvla\b"
        r"|\bpi-?0(?:\.5)?\b|phi-[34](?:\.5)?-(?:vision|multimodal)",
        _CONFIG,
    ),
)


_TYPES = re.compile(
    r"mamba|jamba|rwkv|zamba|falcon_h1|nemotron_h|granitemoehybrid|^lfm2|qwen3_next|qwen3_5"
    r"|recurrent_gemma|xlstm|^minimax$|kimi_linear|whisper|wav2vec|hubert|wavlm|unispeech|^sew"
    r"|speech|seamless|musicgen|^bark|clap|encodec|^vits|moonshine|parakeet|resnet|convnext|swin"
    r"|beit|dinov|segformer|detr|yolos|mobilenet|mobilevit|efficientnet|regnet|^vit_|deit|^sam"
    r"|data2vec|maskformer|mask2former|timm|hiera|poolformer|^cvt|levit|^pvt|bart|pegasus|m2m_100"
    r"|marian|^led$|blenderbot|encoder-decoder|florence|trocr|albert|reformer|xlnet|longformer"
    r"|big_?bird|deberta|funnel|^esm|mpnet|modernbert|nomic_bert|electra|convbert|camembert"
    r"|layoutlm|^blip|siglip|eurobert|squeezebert|mobilebert|perceiver|canine|mt5$|prophetnet"
    r"|^fnet|^ernie$|nystromformer|roformer|patchtst|informer|autoformer|^luke|^owl|^vilt|omni"
)
"""Types of models, as a ``config.json`` has them, whose layers are none that a formula counts, also
where the model's code lies beside its configuration.
"""
_OWN_CODE = "auto_map"
"""Names code beside the configuration, which no trace runs."""


_NO_TOKENS = re.compile(
    r"resnet|convnext|swin|beit|dinov|deit|^vit_|regnet|mobilenet|efficientnet|wav2vec|hubert|wavlm"
    r"|^timm$"
)
TIMM = "timm"
"""The family of networks that only timm or torchvision knows."""
_ELSEWHERE = re.compile(r"yolo|rcnn|detr|segformer|^sam\b|^mae$")


def takes_tokens(family: str) -> bool:
    """Whether a model of that type reads or writes text, so that a sequence has a length."""
    return _NO_TOKENS.search(family) is None and not is_denoiser(family)


def timm_name(name: str) -> str:
    """What timm or torchvision calls the network that a name means; empty: none of theirs."""
    owner, _, plain = name.strip().removeprefix("hf-hub:").removeprefix("hf_hub:").rpartition("/")
    named = re.fullmatch(r"[a-z]\w*(?:\.\w+)?", plain)
    if named is None or owner not in ("", "timm", "torchvision"):
        return ""
    kind = kind_of(plain)
    known = kind is not None and kind.name == _NETWORKS and not _ELSEWHERE.search(plain)
    return plain if owner or known else ""


def traced_alone(config: Mapping[str, Any]) -> bool:
    """Whether what a ``config.json`` describes is left to a trace: also a family that nobody has
    compared with the formula, which could be anything.
    """
    model_type = str(config.get("model_type", "")).lower()
    if not model_type or model_type in FAMILIES:
        return False
    return _OWN_CODE not in config or _TYPES.search(model_type) is not None


def counted_as_llama(config: Mapping[str, Any]) -> str:
    """What is to be said of a family that is neither known nor traced; empty for others."""
    model_type = str(config.get("model_type", ""))
    if not model_type or model_type.lower() in FAMILIES:
        return ""
    return f"{model_type} is no family that is known here: counted as a Llama of its dimensions"


def kind_of(name: str) -> Kind | None:
    """The kind of model that a name means, where a formula covers none of it."""
    plain = re.sub(r"[\s_/]+", "-", name.strip().lower())
    return next((other_kind for other_kind in KINDS if re.search(other_kind.pattern, plain)), None)
