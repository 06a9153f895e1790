"""What people train, by the names of hubs and libraries: each is answered, or handed to the trace
with the exact command.
"""

import pytest

from gputop.models import resolved
from gputop_analysis.vram.question import estimate
from gputop_analysis.vram.setup import Lora, Setup

MODELS = (
    "stabilityai/stable-diffusion-xl-base-1.0",
    "runwayml/stable-diffusion-v1-5",
    "stabilityai/stable-diffusion-3-medium",
    "black-forest-labs/FLUX.1-dev",
    "facebook/DiT-XL-2-256",
    "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS",
    "THUDM/CogVideoX-5b",
    "Wan-AI/Wan2.1-T2V-14B",
    "openai/whisper-large-v3",
    "openai/whisper-small",
    "facebook/wav2vec2-base-960h",
    "facebook/hubert-large-ll60k",
    "facebook/musicgen-small",
    "resnet50",
    "resnet101",
    "timm/convnext_base.fb_in22k",
    "efficientnet_b0",
    "vit_base_patch16_224",
    "google/vit-base-patch16-224",
    "swin_base_patch4_window7_224",
    "facebook/dinov2-base",
    "yolov8n",
    "facebook/detr-resnet-50",
    "nvidia/segformer-b0-finetuned-ade-512-512",
    "facebook/sam-vit-base",
    "sentence-transformers/all-MiniLM-L6-v2",
    "BAAI/bge-large-en-v1.5",
    "BAAI/bge-m3",
    "intfloat/e5-mistral-7b-instruct",
    "Alibaba-NLP/gte-large-en-v1.5",
    "nomic-ai/nomic-embed-text-v1.5",
    "Qwen/Qwen3-Embedding-0.6B",
    "openai/clip-vit-large-patch14",
    "google/siglip-so400m-patch14-384",
    "state-spaces/mamba-2.8b-hf",
    "ai21labs/Jamba-v0.1",
    "tiiuae/falcon-mamba-7b",
    "RWKV/rwkv-5-world-3b",
    "Zyphra/Zamba2-7B",
    "ibm-granite/granite-4.0-h-small",
    "nvidia/Nemotron-H-8B-Base-8K",
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
    "nvidia/Minitron-4B-Base",
    "facebook/mms-1b-all",
    "allenai/led-base-16384",
    "PekingU/rtdetr_r50vd",
    "llava-hf/llava-1.5-7b-hf",
    "llava-hf/llava-v1.6-mistral-7b-hf",
    "Qwen/Qwen2-VL-7B-Instruct",
    "Qwen/Qwen2.5-VL-7B-Instruct",
    "Qwen/Qwen3-VL-8B-Instruct",
    "OpenGVLab/InternVL2_5-8B",
    "meta-llama/Llama-3.2-11B-Vision-Instruct",
    "google/paligemma-3b-pt-224",
    "HuggingFaceTB/SmolVLM-Instruct",
    "microsoft/Phi-3.5-vision-instruct",
    "google/gemma-3-12b-it",
    "mistralai/Pixtral-12B-2409",
    "mistralai/Mixtral-8x7B-v0.1",
    "Qwen/Qwen3-30B-A3B",
    "deepseek-ai/DeepSeek-V3",
    "openai/gpt-oss-20b",
    "allenai/OLMoE-1B-7B-0924",
    "meta-llama/Llama-4-Scout-17B-16E",
    "microsoft/Phi-3.5-MoE-instruct",
    "TheBloke/Llama-2-7B-GPTQ",
    "TheBloke/Mistral-7B-Instruct-v0.2-AWQ",
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4",
    "unsloth/llama-3-8b-bnb-4bit",
    "google-t5/t5-base",
    "google/flan-t5-xl",
    "facebook/bart-large",
    "bert-base-uncased",
    "FacebookAI/roberta-large",
    "microsoft/deberta-v3-base",
    "answerdotai/ModernBERT-base",
    "distilbert-base-uncased",
    "gpt2",
    "EleutherAI/pythia-1.4b",
    "bigscience/bloom-7b1",
    "tiiuae/falcon-7b",
    "THUDM/chatglm3-6b",
    "microsoft/phi-2",
    "bigcode/starcoder2-7b",
    "HuggingFaceTB/SmolLM2-1.7B",
)
GIB = 1 << 30


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_answered_or_handed_to_the_trace(name: str):
    try:
        shape, _ = resolved(name)
    except LookupError as why:
        assert "gputop estimate" in str(why)
        return
    setup = Setup(shape, seq=min(512, shape.max_position or 512), checkpointing="full")
    found = estimate(setup, advice=False)
    weights = found.peak.breakdown["weights"]
    assert GIB // 64 < weights < found.peak.allocated <= found.peak.reserved


@pytest.mark.parametrize(
    "name",
    [
        "unsloth/llama-3-8b-bnb-4bit",
        "TheBloke/Llama-2-7B-GPTQ",
        "TheBloke/Mistral-7B-Instruct-v0.2-AWQ",
        "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4",
    ],
)
def test_a_base_of_four_bits_says_how_it_is_counted(name: str):
    shape, note = resolved(name)
    assert "--qlora" in note
    adapters = Lora(16, ("all-linear",))
    whole, packed = (
        estimate(Setup(shape, 512, lora=adapters, quantized=one), advice=False).device_total
        for one in ("", "nf4")
    )
    assert packed < 0.6 * whole
