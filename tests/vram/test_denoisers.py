"""Diffusion models: their names and configurations, what is asked of them, and their traces."""

import json
from dataclasses import asdict

import pytest

from gputop.cli.errors import CliError
from gputop.cli.fit import estimate as command
from gputop.models import configuration, resolved
from gputop.render import vram
from gputop_analysis.catalog.denoisers import (
    CLASS,
    TRAINING,
    denoiser,
    denoisers,
    is_denoiser,
    of_config,
)
from gputop_analysis.vram.idle import refuse
from gputop_analysis.vram.options import setup_of
from gputop_analysis.vram.rules import check

SD15 = "stable-diffusion-v1-5/stable-diffusion-v1-5"
SDXL = "stabilityai/stable-diffusion-xl-base-1.0"
SD3, FLUX = "stabilityai/stable-diffusion-3-medium", "black-forest-labs/FLUX.1-dev"
AS_TYPED = {
    "sdxl": SDXL,
    "SDXL 1.0": SDXL,
    "sd_xl_base_1.0.safetensors": SDXL,
    "stabilityai/sdxl-turbo": SDXL,
    "RunDiffusion/Juggernaut-XL-v9": SDXL,
    "RealVisXL_V4.0": SDXL,
    "ponyDiffusionV6XL": SDXL,
    "cagliostrolab/animagine-xl-3.1": SDXL,
    "playgroundai/playground-v2.5-1024px-aesthetic": SDXL,
    "runwayml/stable-diffusion-v1-5": SD15,
    "CompVis/stable-diffusion-v1-4": SD15,
    "sd1.5": SD15,
    "v1-5-pruned-emaonly.ckpt": SD15,
    "SG161222/Realistic_Vision_V5.1_noVAE": SD15,
    "stabilityai/stable-diffusion-2-1": "stabilityai/stable-diffusion-2-1",
    "sd2.1": "stabilityai/stable-diffusion-2-1",
    "stabilityai/sd-turbo": "stabilityai/stable-diffusion-2-1-base",
    "sd3": SD3,
    "stabilityai/stable-diffusion-3-medium-diffusers": SD3,
    "sd3.5-large": "stabilityai/stable-diffusion-3.5-large",
    "stabilityai/stable-diffusion-3.5-medium": "stabilityai/stable-diffusion-3.5-medium",
    "stabilityai/stable-diffusion-3.5-large-turbo": "stabilityai/stable-diffusion-3.5-large",
    "flux": FLUX,
    "flux.1-dev": FLUX,
    "flux1-dev.safetensors": FLUX,
    "black-forest-labs/FLUX.1-Kontext-dev": FLUX,
    "black-forest-labs/FLUX.1-Krea-dev": FLUX,
    "flux-schnell": "black-forest-labs/FLUX.1-schnell",
    "PixArt-alpha/PixArt-XL-2-1024-MS": "PixArt-alpha/PixArt-XL-2-1024-MS",
    "PixArt-alpha/PixArt-XL-2-512x512": "PixArt-alpha/PixArt-XL-2-512x512",
    "PixArt-Sigma": "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS",
    "DiT-XL/2": "facebook/DiT-XL-2-256",
    "facebook/DiT-XL-2-512": "facebook/DiT-XL-2-512",
    "kandinsky-2-2-decoder": "kandinsky-community/kandinsky-2-2-decoder",
    "sana-1.6b": "Efficient-Large-Model/Sana_1600M_1024px_diffusers",
    "THUDM/CogVideoX-2b": "THUDM/CogVideoX-2b",
    "cogvideox-5b": "THUDM/CogVideoX-5b",
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": "Wan-AI/Wan2.1-T2V-1.3B",
    "Wan2.1-T2V-14B": "Wan-AI/Wan2.1-T2V-14B",
    "Lightricks/LTX-Video": "Lightricks/LTX-Video",
    "tencent/HunyuanVideo": "hunyuanvideo-community/HunyuanVideo",
    "Qwen/Qwen-Image-Edit": "Qwen/Qwen-Image",
    "google/ddpm-cifar10-32": "google/ddpm-cifar10-32",
    "google/ddpm-celebahq-256": "google/ddpm-celebahq-256",
}
OTHERS = (
    *("lllyasviel/sd-controlnet-canny", "stabilityai/stable-diffusion-xl-refiner-1.0"),
    *("black-forest-labs/FLUX.2-dev", "black-forest-labs/FLUX.1-Fill-dev", "Qwen/Qwen-Image-2.1"),
    *("THUDM/CogVideoX-5b-I2V", "THUDM/CogVideoX1.5-5B", "Wan-AI/Wan2.2-T2V-A14B"),
    *("Efficient-Large-Model/Sana_600M_1024px_diffusers", "kandinsky-3", "gpt2-xl", "flan-t5-xl"),
    *("stable-diffusion-inpainting", "tencent/HunyuanVideo-I2V", "Wan-AI/Wan2.1-I2V-14B-480P"),
    *("llama-3-8b", "Qwen/Qwen2.5-VL-7B-Instruct", "sdar-8b", "resnet50", "wandb", "fluxon"),
)
PUBLISHED_MILLIONS = {
    SDXL: 2567,
    "stabilityai/stable-diffusion-2-1-base": 866,
    "stabilityai/stable-diffusion-2-1": 866,
    SD15: 860,
    "stabilityai/stable-diffusion-3.5-large": 8150,
    "stabilityai/stable-diffusion-3.5-medium": 2470,
    SD3: 2085,
    "black-forest-labs/FLUX.1-schnell": 11_891,
    FLUX: 11_901,
    "PixArt-alpha/PixArt-XL-2-512x512": 611,
    "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS": 611,
    "PixArt-alpha/PixArt-XL-2-1024-MS": 611,
    "facebook/DiT-XL-2-512": 750,
    "facebook/DiT-XL-2-256": 750,
    "kandinsky-community/kandinsky-2-2-decoder": 1250,
    "Efficient-Large-Model/Sana_1600M_1024px_diffusers": 1604,
    "Qwen/Qwen-Image": 20_430,
    "THUDM/CogVideoX-2b": 1690,
    "THUDM/CogVideoX-5b": 5570,
    "Wan-AI/Wan2.1-T2V-1.3B": 1420,
    "Wan-AI/Wan2.1-T2V-14B": 14_290,
    "Lightricks/LTX-Video": 1923,
    "hunyuanvideo-community/HunyuanVideo": 12_820,
    "google/ddpm-cifar10-32": 35.7,
    "google/ddpm-celebahq-256": 113.7,
}
"""Values of the weights' files on the hub. DiT-XL/2 has 675 M in its paper; diffusers gives each
block embedders of its own.
"""


@pytest.mark.parametrize("name", AS_TYPED)
def test_names_as_they_are_typed(name: str):
    known = denoiser(name)
    assert known is not None and known.name == AS_TYPED[name]
    shape, _ = resolved(name, traces=True)
    assert shape.name == known.name and not shape.hidden and is_denoiser(shape.family)


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_not_taken_for_them(name: str):
    assert denoiser(name) is None


def test_every_name_is_read_as_itself():
    for known in denoisers():
        found = denoiser(known.name)
        assert found is not None and found.name == known.name


def test_parameters_are_those_that_are_published():
    diffusers = pytest.importorskip("diffusers", "0.35")
    torch = pytest.importorskip("torch")
    assert {known.name for known in denoisers()} == set(PUBLISHED_MILLIONS)
    for known in denoisers():
        fields = {name: value for name, value in known.values.items() if name[0] != "_"}
        with torch.device("meta"):
            model = getattr(diffusers, known.family)(**fields)
        count = sum(weight.numel() for weight in model.state_dict().values()) / 1e6
        assert count == pytest.approx(PUBLISHED_MILLIONS[known.name], rel=0.01), known.name


def test_frozen_parts_have_the_parameters_that_are_said():
    diffusers = pytest.importorskip("diffusers", "0.35")
    torch = pytest.importorskip("torch")
    for vae in {id(one): one for known in denoisers() if (one := _vae(known))}.values():
        with torch.device("meta"):
            model = getattr(diffusers, vae["class"])(**vae["config"])
        count = sum(weight.numel() for weight in model.parameters()) / 1e6
        assert count == pytest.approx(vae["millions"], rel=0.01), vae["class"]


def _vae(known):
    return known.values[TRAINING].get("vae")


def test_training_as_the_example_scripts_do_it():
    shape, _ = resolved("sdxl", traces=True)
    whole, adapted = setup_of(shape, {}), setup_of(shape, {"lora_rank": 8})
    assert (whole.weights, whole.autocast, whole.image_size) == ("fp32", True, 1024)
    assert (adapted.weights, adapted.autocast) == ("", True)
    assert adapted.lora and adapted.lora.targets == ("to_k", "to_q", "to_v", "to_out.0")
    assert "1024 px" in vram.words(whole) and "seq" not in vram.words(whole)
    asked = setup_of(shape, {"weights": "bf16", "autocast": False, "image_size": 512})
    assert (asked.weights, asked.autocast, asked.image_size) == ("bf16", False, 512)


def test_a_video_has_frames():
    shape, _ = resolved("Lightricks/LTX-Video", traces=True)
    setup = setup_of(shape, {})
    assert (setup.images, setup.image_size) == (49, 512)
    check(setup_of(shape, {"images": 17}))
    assert "17 x 256 px" in vram.words(setup_of(shape, {"images": 17, "image_size": 256}))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--model sdxl --seq 512", "takes no tokens"),
        ("--model sdxl --loss fused", "--loss changes nothing here: it needs a model of text"),
        ("--model sdxl --images 3", "takes no images"),
        ("--model sdxl --cached vae", "--cached takes latents, text, none, not 'vae'"),
        ("--model sdxl --tier formula", "is traced"),
        ("--model sdxl --gpus 2xA100", "a trace does: gputop estimate --model sdxl"),
        ("--model llama-3-8b --cached text", "it needs a diffusion model"),
        ("--model whisper-small --cached text", "it needs a diffusion model"),
        ("--model THUDM/CogVideoX1.5-5B", "a diffusion model, which no formula covers"),
    ],
)
def test_odd_words_get_the_rule_that_they_break(words: str, says: str):
    with pytest.raises(CliError, match=says) as error:
        command.execute(words.split())
    assert error.value.exit_code == 2 and "\n" not in str(error.value)


@pytest.mark.parametrize("part", ["", "unet", "transformer"])
def test_a_folder_of_diffusers(part: str, tmp_path):
    known = denoiser("sdxl")
    assert known is not None
    config = {name: value for name, value in known.values.items() if name != TRAINING}
    (tmp_path / part).mkdir(exist_ok=True)
    (tmp_path / part / "config.json").write_text(json.dumps(config))
    shape, _ = resolved(str(tmp_path), traces=True)
    assert (shape.name, shape.family) == (tmp_path.name, "UNet2DConditionModel")
    values = configuration(shape)
    assert isinstance(values, dict) and values["cross_attention_dim"] == 2048
    assert values[TRAINING]["size"] == [1024, 1024]
    with pytest.raises(LookupError, match="gputop estimate --model"):
        resolved(str(tmp_path))


def test_a_class_that_is_not_known(tmp_path):
    config = {CLASS: "StableCascadeUNet"}
    with pytest.raises(ValueError, match=r"gputop estimate train\.py"):
        of_config(config, "cascade")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="StableCascadeUNet"):
        resolved(str(tmp_path), traces=True)


UNET = {"block_out_channels": [32, 64], "layers_per_block": 1, "norm_num_groups": 8}
DIT = {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 16}
SMALL = {
    "UNet2DConditionModel": {
        **UNET,
        "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
        "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
        "cross_attention_dim": 32,
        "attention_head_dim": 8,
    },
    "UNet2DModel": {
        **UNET,
        "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
        "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
    },
    "DiTTransformer2DModel": {**DIT, "out_channels": 8, "norm_num_groups": 8},
    "SD3Transformer2DModel": {
        **DIT,
        "caption_projection_dim": 32,
        "joint_attention_dim": 64,
        "pooled_projection_dim": 32,
        "pos_embed_max_size": 64,
    },
    "FluxTransformer2DModel": {
        **DIT,
        "num_single_layers": 2,
        "joint_attention_dim": 64,
        "pooled_projection_dim": 32,
        "axes_dims_rope": [4, 6, 6],
        "guidance_embeds": True,
    },
    "PixArtTransformer2DModel": {
        **DIT,
        "cross_attention_dim": 32,
        "caption_channels": 64,
        "norm_num_groups": 8,
        "use_additional_conditions": False,
        "sample_size": 32,
    },
    "SanaTransformer2DModel": {
        **DIT,
        "num_cross_attention_heads": 2,
        "cross_attention_head_dim": 16,
        "cross_attention_dim": 32,
        "caption_channels": 64,
    },
    "CogVideoXTransformer3DModel": {
        **DIT,
        "text_embed_dim": 64,
        "time_embed_dim": 32,
        "use_rotary_positional_embeddings": True,
    },
    "WanTransformer3DModel": {**DIT, "text_dim": 64, "ffn_dim": 64, "freq_dim": 32},
    "LTXVideoTransformer3DModel": {**DIT, "cross_attention_dim": 32, "caption_channels": 64},
    "HunyuanVideoTransformer3DModel": {
        **DIT,
        "num_single_layers": 1,
        "num_refiner_layers": 1,
        "rope_axes_dim": [4, 6, 6],
        "text_embed_dim": 64,
        "pooled_projection_dim": 32,
    },
    "QwenImageTransformer2DModel": {**DIT, "joint_attention_dim": 64, "axes_dims_rope": [4, 6, 6]},
}
"""A configuration of a few thousand parameters for each class that is known."""


def test_every_class_is_tried():
    assert {known.family for known in denoisers()} == set(SMALL)


def _traced(family: str, tmp_path, **options):
    from gputop_tracer.model_trace import trace

    tmp_path.joinpath("config.json").write_text(json.dumps({CLASS: family, **SMALL[family]}))
    shape, _ = resolved(str(tmp_path), traces=True)
    setup = setup_of(shape, {"micro_batch": 2, "cached": "latents,text", **options})
    refuse(options, setup)
    config = tmp_path / "values.json"
    config.write_text(json.dumps(configuration(shape)))
    return trace(asdict(setup), str(config))


@pytest.mark.parametrize("options", [{}, {"lora_rank": 4, "checkpointing": "full"}], ids=str)
@pytest.mark.parametrize("family", SMALL)
def test_a_step_of_each_class_is_traced(family: str, options, tmp_path):
    pytest.importorskip("diffusers", "0.35")
    if options:
        pytest.importorskip("peft")
    smaller = {"UNet2DModel": 32, "DiTTransformer2DModel": 64}.get(family, 128)
    frames = {"images": 9} if "3D" in family else {}
    tracker = _traced(family, tmp_path, image_size=smaller, **frames, **options)
    assert 0 < tracker.meta["trained"] <= tracker.meta["parameters"]
    assert (tracker.meta["trained"] == tracker.meta["parameters"]) is not bool(options)


def test_what_is_cached_is_not_on_the_gpu(tmp_path):
    pytest.importorskip("diffusers", "0.35")
    family = "UNet2DConditionModel"
    held = _traced(family, tmp_path, image_size=64, cached="none")
    cached = _traced(family, tmp_path, image_size=64)
    assert "the VAE (0.2 GiB), CLIP ViT-L/14 (0.2 GiB) on the GPU" in held.meta["notes"][0]
    assert "run beforehand and not on the GPU" in cached.meta["notes"][0]
    assert _weights(held) - _weights(cached) == pytest.approx(2 * (83.65e6 + 123.06e6), rel=0.01)


def _weights(tracker) -> int:
    strings = tracker.log.strings
    return sum(one[0] for one in tracker.log.storages if strings[one[2]] == "weights")


@pytest.mark.parametrize(
    ("asked", "size"), [(0, (480, 720)), (480, (480, 720)), (240, (240, 352)), (96, (96, 144))]
)
def test_the_other_edge_of_a_video_follows(asked: int, size):
    pytest.importorskip("torch")
    from gputop_tracer.model.diffusion import DenoiserTraining

    known = denoiser("THUDM/CogVideoX-2b")
    assert known is not None
    training = DenoiserTraining(dict(known.values), {"image_size": asked, "images": 9})
    assert training.size == size
    assert training.latents(16) == (1, 16, 3, size[0] // 8, size[1] // 8)


def test_what_cannot_be_trained_so():
    pytest.importorskip("torch")
    from gputop_tracer.model.diffusion import DenoiserTraining

    known = denoiser("sdxl")
    assert known is not None
    with pytest.raises(ValueError, match="does not divide into patches of 32: try 992"):
        DenoiserTraining(dict(known.values), {"image_size": 1000})
    with pytest.raises(ValueError, match="takes 9 channels, the VAE gives 4"):
        DenoiserTraining(dict(known.values), {}).latents(9)


def test_a_name_is_estimated_by_itself(capsys):
    """fp32 weights of 4 bytes a parameter, the optimizer's states twice that."""
    pytest.importorskip("diffusers", "0.35")
    words = ["--model", "google/ddpm-cifar10-32", "--batch", "8", "--json", "--no-calibration"]
    command.execute(words)
    answer = json.loads(capsys.readouterr().out)
    assert answer["tier"] == "trace"
    assert answer["breakdown_gib"]["weights"] == pytest.approx(4 * 35.75e6 / 2**30, rel=0.03)
    assert answer["breakdown_gib"]["optimizer"] == pytest.approx(8 * 35.75e6 / 2**30, rel=0.03)


@pytest.mark.parametrize(
    ("model", "options", "trained"),
    [
        ("flux.1-dev", {"lora_rank": 4}, 4_669_440),
        ("Lightricks/LTX-Video", {"lora_rank": 128}, 117_440_512),
        ("THUDM/CogVideoX-5b", {"lora_rank": 128}, 132_120_576),
    ],
)
def test_adapters_have_the_published_parameters(model: str, options, trained: int):
    """Of Hugging Face's post on QLoRA of FLUX, and of finetrainers' pages."""
    pytest.importorskip("diffusers", "0.35")
    pytest.importorskip("peft")
    torch = pytest.importorskip("torch")
    from gputop_tracer.model import adapters, diffusion

    shape, _ = resolved(model, traces=True)
    setup = asdict(setup_of(shape, options))
    made = diffusion.build(dict(configuration(shape)), torch.bfloat16)
    adapted = adapters.adapt(made, setup, None, [])
    assert sum(w.numel() for w in adapted.parameters() if w.requires_grad) == trained
