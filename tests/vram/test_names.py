"""Names of GPUs and models as people, logs and drivers write them.

Collected from issue threads of trainers and inference servers, ``nvidia-smi`` and environment
reports in them, benchmark result tables, rental offers and model hubs.
"""

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop.models import resolved
from gputop_analysis import catalog

GPUS = {
    "NVIDIA H200-SXM5-141GB": "H200-SXM-141GB",
    "NVIDIA Blackwell GPU (B200-SXM-180GB)": "B200-SXM-180GB",
    "AMD Instinct MI300X 192GB HBM3": "MI300X",
    "8xA100 80GB": "A100-SXM4-80GB",
    "NVIDIA A100-SXM4-80GB": "A100-SXM4-80GB",
    "NVIDIA A100-SXM4-40GB": "A100-SXM4-40GB",
    "A100-SXM-80GB": "A100-SXM4-80GB",
    "NVIDIA A100-SXM...": "A100-SXM4-40GB",
    "NVIDIA A100 80GB PCIe": "A100-PCIe-80GB",
    "NVIDIA A100-PCIE-40GB": "A100-PCIe-40GB",
    "4 A100s(40GB)": "A100-SXM4-40GB",
    "A100/40GB": "A100-SXM4-40GB",
    "80G A100s": "A100-SXM4-80GB",
    "A100 (80 GB)": "A100-SXM4-80GB",
    "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-0f00)": "A100-SXM4-80GB",
    "8*A800 80G": "A800-SXM4-80GB",
    "A800 7*80g": "A800-SXM4-80GB",
    "NVIDIA H100 80GB HBM3": "H100-SXM5-80GB",
    "NVIDIA H100 PCIe": "H100-PCIe-80GB",
    "NVIDIA H100 NVL": "H100-NVL-94GB",
    "H100 HGX (80GB)": "H100-SXM5-80GB",
    "HGX H100 8-GPU": "H100-SXM5-80GB",
    "H100-SXM": "H100-SXM5-80GB",
    "H100 350W": "H100-PCIe-80GB",
    "8x H100 80G SXM5": "H100-SXM5-80GB",
    "NVIDIA H200": "H200-SXM-141GB",
    "NVIDIA H200 NVL": "H200-NVL-141GB",
    "NVIDIA H20": "H20-SXM-96GB",
    "NVIDIA GH200 480GB": "GH200-96GB",
    "NVIDIA Grace Hopper Superchip": "GH200-96GB",
    "2x Grace Blackwell": "GB200-186GB",
    "NVIDIA GH200 144G HBM3e": "GH200-144GB",
    "NVIDIA B200": "B200-SXM-180GB",
    "GB200 NVL72": "GB200-186GB",
    "NVIDIA L40S": "L40S",
    "NVIDIA A10G": "A10G",
    "A10G (24 GB)": "A10G",
    "Tesla T4": "T4",
    "T4 x2": "T4",
    "Tesla V100-SXM2-32GB": "V100-SXM2-32GB",
    "5 x V100 gpus": "V100-SXM2-16GB",
    "NVIDIA GeForce RTX 4090": "GeForce RTX 4090",
    "RTX3090": "GeForce RTX 3090",
    "NVIDIA RTX A6000 48G *4": "RTX A6000",
    "RTX-A6000": "RTX A6000",
    "NVIDIA RTX 6000 Ada Generation": "RTX 6000 Ada",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX PRO 6000 Blackwell Server",
    "AMD Instinct MI300X (gfx942:sramecc+:xnack-)": "MI300X",
    "AMD INSTINCT MI250 (MCM) OAM AC MBA": "MI250",
    "DGX Spark": "GB10 (DGX Spark)",
    "NVIDIA A100-SXM4-80GB-LC": "A100-SXM4-80GB",
    "gpu_8x_h100_sxm5": "H100-SXM5-80GB",
    "gpu_1x_a100_sxm4": "A100-SXM4-40GB",
    "p4de.24xlarge": "A100-SXM4-80GB",
    "Standard_ND96isr_H100_v5": "H100-SXM5-80GB",
    "DGX A100 640GB": "A100-SXM4-80GB",
    "nvidia-tesla-t4": "T4",
    "NVIDIA-H100-80GB-HBM3": "H100-SXM5-80GB",
    "1x H100 (80GB PCIe)": "H100-PCIe-80GB",
    "NVIDIA B300 SXM6 AC": "B300-SXM-270GB",
    "B200 192GB": "B200-SXM-180GB",
    "Tesla V100-SXM3-32GB": "V100-SXM3-32GB",
    "a100_80gb": "A100-SXM4-80GB",
}
FOUND_LATER = {
    "two A100 80GB Gpus": "A100-SXM4-80GB",
    "four 3090 GPUs": "GeForce RTX 3090",
    "two 4090 GPUs": "GeForce RTX 4090",
    "4 a6000 GPUs": "RTX A6000",
    "4 A10G 24 GB GPUs": "A10G",
    "1x Nvidia 4090 (24Gb)": "GeForce RTX 4090",
    "32G V100 GPU": "V100-SXM2-32GB",
    "NVIDIA Tesla V100": "V100-SXM2-16GB",
    "H20-96G GPU": "H20-SXM-96GB",
    "A100-40G": "A100-SXM4-40GB",
    "NVIDIA A100 80GB GPU": "A100-SXM4-80GB",
    "NVIDIA H100 80GB": "H100-SXM5-80GB",
    "nvidia L4 24GB": "L4",
    "NVIDIA L20": "L20",
    "NVIDIA RTX5880Ada": "RTX 5880 Ada",
    "NVIDIA GeForce RTX 4090 D": "GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 4060 Ti": "GeForce RTX 4060 Ti 8GB",
    "NVIDIA GeForce RTX 3060": "GeForce RTX 3060 12GB",
    "2x24GB Titan RTX": "TITAN RTX",
    "nvidia RTX 2080Ti with 11GB memory": "GeForce RTX 2080 Ti",
    "nvidia Tesla P40 with 24GB memory": "P40",
    "RTX 4080 SUPER": "GeForce RTX 4080 SUPER",
    "Quadro RTX 6000": "Quadro RTX 6000",
    "Tesla P100-PCIE-16GB": "P100-PCIe-16GB",
    "Kaggle P100": "P100-PCIe-16GB",
    "NVIDIA A800 80GB PCIe": "A800-PCIe-80GB",
    "NVIDIA H20-3e": "H20-SXM-141GB",
    "RTX PRO 6000 Blackwell Max-Q Workstation Edition": "RTX PRO 6000 Blackwell Max-Q",
    "03:00.0 3D controller: NVIDIA Corporation GP100GL [Tesla P100 PCIe 12GB] (rev a1)": (
        "P100-PCIe-12GB"
    ),
    "CUDA:0 (Tesla T4, 15102MiB)": "T4",
    "_CudaDeviceProperties(name='NVIDIA A40', major=8, total_memory=45416MB)": "A40",
    "RTX 6000 24GB": "Quadro RTX 6000",
    "8x NVIDIA H100 SXM5 (640 GB VRAM)": "H100-SXM5-80GB",
    "Standard_NC40ads_H100_v5": "H100-NVL-94GB",
    "AMD Radeon RX 7900 XTX": "Radeon RX 7900 XTX",
    "Intel(R) Data Center GPU Max 1550": "Data Center GPU Max 1550",
    "NVIDIA GB10": "GB10 (DGX Spark)",
    "H800 GPUs": "H800-SXM5-80GB",
    "8 A100 GPUs": "A100-SXM4-40GB",
    "NVIDIA RTX 4080": "GeForce RTX 4080",
}
"""From issue threads and result files that were read after the reader was made."""
REFUSED_LATER = (
    "NVIDIA GeForce GT 730 (4096 MB)",
    "nvidia RTX24G",
    "NVIDIA A100X",
    "NVIDIA RTX 4090 48GB",
    "AMD Radeon 780M Graphics",
    "Apple M3 Max 16CPU+40GPU 60GB",
    "NVIDIA PG506-232",
    "Standard_NV6ads_A10_v5",
    "RTX 6000",
    "Titan X",
)
"""Cards that the catalog does not have, slices, and names that several cards have."""
NO_GPUS = {
    "NVIDIA GeForce RTX 4070 Laptop GPU": "laptop",
    "Apple M2 Ultra": "Apple",
    "M3 Max": "Apple",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb": "MIG",
    "AMD Instinct MI250X/MI250": "MI250 and MI250X",
    "A100 and H100": "A100 and H100",
    "A100-SXM-64GB": "64 GB",
    "GRID A100-10C": "virtual",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb": "MIG",
    "H100/H200": "H100 and H200",
}
MODELS = {
    "unsloth/llama-3-8b-bnb-4bit": "llama-3-8b",
    "unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit": "llama-3.1-8b",
    "DeepSeek-R1-Distill-Qwen-7B": "qwen2.5-7b",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": "llama-3.3-70b",
    "llama-3-405b": "llama-3.1-405b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "/data/models/qwen/Qwen2-7B": "qwen2-7b",
    "/mnt/data/Qwen2-72B-Instruct/": "qwen2-72b",
    "Qwen2-72B-Instruct-AWQ": "qwen2-72b",
    "qwen-2.5-32b": "qwen2.5-32b",
    "Qwen2.5-7B-Instruct-GPTQ-Int4": "qwen2.5-7b",
    "Qwen2.5-Coder-7B-Instruct": "qwen2.5-7b",
    "qwen2-vl-7b-instruct": "qwen2-vl-7b",
    "Qwen3-30B-A3B-Thinking-2507": "qwen3-30b-a3b",
    "Qwen3-4B-Instruct-2507": "qwen3-4b",
    "QwQ-32B": "qwen2.5-32b",
    "mistralai/Mistral-7B-Instruct-v0.2": "mistral-7b-v0.1",
    "unsloth/mistral-7b-v0.3-bnb-4bit": "mistral-7b-v0.3",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral-8x7b",
    "Mistral-Nemo-Instruct-2407": "mistral-nemo-12b",
    "unsloth/gemma-3-4b-it-unsloth-bnb-4bit": "gemma-3-4b-it (multimodal)",
    "unsloth/gemma-2-9b-it-bnb-4bit": "gemma-2-9b",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": "tinyllama-1.1b",
    "TheBloke/Llama-2-7B-Chat-GPTQ": "llama-2-7b",
    "NousResearch/Llama-2-7b-hf": "llama-2-7b",
    "llama3.1:70b": "llama-3.1-70b",
    "Llama 2 70B": "llama-2-70b",
    "llama3.3 70B": "llama-3.3-70b",
    "HuggingFaceH4/zephyr-7b-beta": "mistral-7b-v0.1",
    "lmsys/vicuna-13b-v1.5": "llama-2-13b",
    "microsoft/Phi-3-mini-128k-instruct": "phi-3-mini",
    "deepseek-ai/DeepSeek-V3-0324": "deepseek-v3",
    "unsloth/gpt-oss-20b-unsloth-bnb-4bit": "gpt-oss-20b",
    "GPT-3 175B": "gpt3-175b",
    "models--meta-llama--Llama-2-7b-hf": "llama-2-7b",
    "Llama-4-Scout-17B-16E-Instruct": "llama-4-scout (text)",
    "zai-org/GLM-4.5-Air-FP8": "glm-4.5-air",
    "llama3_8b": "llama-3-8b",
    "llama-8b": "llama-3.1-8b",
    "70B llama": "llama-3.3-70b",
    "codellama/CodeLlama-7b-Instruct-hf": "codellama-7b",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": "deepseek-r1-distill-qwen-1.5b",
    "nvidia/Llama-3.1-Nemotron-70B-Instruct-HF": "llama-3.1-70b",
    "nvidia/Nemotron-4-340B-Base": "nemotron-4-340b",
    "teknium/OpenHermes-2.5-Mistral-7B": "mistral-7b-v0.1",
    "NousResearch/Hermes-3-Llama-3.1-8B": "llama-3.1-8b",
    "Qwen/Qwen-7B-Chat": "qwen-7b",
    "baichuan-inc/Baichuan2-13B-Chat": "baichuan2-13b",
    "THUDM/chatglm3-6b": "chatglm3-6b",
    "internlm/internlm2-7b": "internlm2-7b",
    "ibm-granite/granite-3.0-3b-a800m-instruct": "granite-3.0-3b-a800m",
    "ibm-granite/granite-3.1-8b-instruct": "granite-3.1-8b",
    "EleutherAI/gpt-j-6b": "gpt-j-6b",
    "bigcode/starcoder2-15b": "starcoder2-15b",
    "CohereForAI/c4ai-command-r-v01": "command-r",
    "xlm-roberta-large": "xlm-roberta-large",
    "BAAI/bge-large-en-v1.5": "bert-large",
    "intfloat/e5-mistral-7b-instruct": "mistral-7b-v0.1",
    "gpt3_6.7b": "gpt3-6.7b",
    "llama3.2": "llama-3.2-3b",
    "llama31_405b": "llama-3.1-405b",
    "deepseek-r1:32b": "qwen2.5-32b",
    "qwen3_30b_a3b": "qwen3-30b-a3b",
    "gradientai/Llama-3-8B-Instruct-Gradient-1048k": "llama-3-8b",
    "VAGOsolutions/Llama-3-SauerkrautLM-8b-Instruct": "llama-3-8b",
    "/home/me/.cache/huggingface/hub/models--Qwen--Qwen2.5-7B/snapshots/d1497293": "qwen2.5-7b",
    "./out/llama-2-7b/checkpoint-500": "llama-2-7b",
    "llama-3.2-3b-instruct-q8_0.gguf": "llama-3.2-3b",
    "nvidia/DeepSeek-R1-0528-NVFP4": "deepseek-r1",
    "bigscience/bloomz-7b1-mt": "bloom-7b1",
}
NO_MODELS = (
    "deepseek-v4",
    "Llama-3.3-8B",
    "Qwen/Qwen-13B",
    "StarCoder 15B",
    "Baichuan 13B",
    "nvidia/Llama-3.1-Minitron-4B-Width-Base",
    "elyza/Llama-3-ELYZA-JP-8B",
    "hfl/chinese-llama-2-7b",
    "gpt-4",
    "llama",
    "70b",
)
"""Those before the last three are of another shape than what is written like them, or may be; the
last two leave open which.
"""
OTHER_KINDS = {
    "stabilityai/stable-diffusion-xl-base-1.0": "diffusion",
    "runwayml/stable-diffusion-v1-5": "diffusion",
    "black-forest-labs/FLUX.1-dev": "diffusion",
    "DiT-XL/2": "diffusion",
    "openai/whisper-large-v3": "sound",
    "facebook/wav2vec2-base": "sound",
    "state-spaces/mamba-2.8b": "state-space",
    "ai21labs/Jamba-v0.1": "hybrid",
    "timm/resnet50.a1_in1k": "timm",
    "vit_base_patch16_224": "timm",
    "convnext_base": "timm",
    "facebook/dinov2-base": "timm",
    "microsoft/deberta-v3-base": "encoder",
    "HuggingFaceTB/SmolVLM-Instruct": "sees",
    "google/gemma-3n-E4B-it": "sees",
    "Qwen/Qwen-Image": "diffusion",
    "Qwen/Qwen3-Next-80B-A3B-Instruct": "hybrid",
    "openvla/openvla-7b": "sees",
    "microsoft/Phi-4-multimodal-instruct": "sees",
    "facebook/esm2_t33_650M_UR50D": "encoder",
    "llava-hf/llava-v1.6-mistral-7b-hf": "sees",
}


@pytest.mark.parametrize(("written", "name"), FOUND_LATER.items())
def test_names_of_threads_that_were_read_later_are_understood(written: str, name: str):
    assert catalog.match_gpu(written).spec.name == name


@pytest.mark.parametrize("written", REFUSED_LATER)
def test_a_card_that_the_catalog_does_not_have_is_taken_for_no_other(written: str):
    assert catalog.find_gpu(written) is None


def test_there_are_a_hundred_names():
    assert len(GPUS) + len(NO_GPUS) + len(MODELS) + len(NO_MODELS) >= 100


@pytest.mark.parametrize(("written", "name"), GPUS.items())
def test_a_gpu_is_what_its_name_says(written: str, name: str):
    assert catalog.gpu(written).name == name


@pytest.mark.parametrize(("written", "said"), NO_GPUS.items())
def test_a_part_that_the_catalog_does_not_have_is_refused_in_words(written: str, said: str):
    with pytest.raises(LookupError, match="nearest names are") as refused:
        catalog.gpu(written)
    assert said in str(refused.value) and catalog.find_gpu(written) is None


@pytest.mark.parametrize(("written", "name"), MODELS.items())
def test_a_model_is_what_its_name_says(written: str, name: str):
    assert catalog.model(written).name == name


@pytest.mark.parametrize(("written", "kind"), OTHER_KINDS.items())
def test_a_model_that_no_formula_covers_is_handed_to_the_trace(written: str, kind: str):
    with pytest.raises(LookupError, match="gputop estimate") as refused:
        catalog.model(written)
    assert kind in str(refused.value)


@pytest.mark.parametrize("written", NO_MODELS)
def test_a_model_that_the_catalog_does_not_have_is_refused(written: str):
    with pytest.raises(LookupError, match="nearest names are"):
        catalog.model(written)


@pytest.mark.parametrize(
    ("written", "count", "open_between"),
    [
        ("A100", 1, ("A100-SXM4-40GB", "A100-PCIe-80GB")),
        ("8xA100 80GB", 8, ("A100-SXM4-80GB", "A100-PCIe-80GB")),
        ("8 V100s", 8, ("V100-SXM2-16GB", "V100-SXM2-32GB")),
        ("NVIDIA A100-SXM4-80GB", 1, ()),
        ("T4 x2", 2, ()),
        ("16 * A10( 16 * 23G)", 16, ()),
        ("H100:8", 8, ("H100-PCIe-80GB",)),
        ("2 nodes x 8 H100", 16, ("H100-PCIe-80GB",)),
        ("DGX H200", 8, ("H200-NVL-141GB",)),
        ("2x p4d.24xlarge", 16, ()),
        ("tpu-v5p-8", 4, ()),
        ("3090 Ti", 1, ()),
    ],
)
def test_what_a_name_leaves_open_is_said(written: str, count: int, open_between: tuple[str, ...]):
    match = catalog.match_gpu(written)
    assert match.count == count and bool(match.note) == bool(open_between)
    assert all(name in match.note for name in open_between)


def test_suggestions_are_of_the_kind_that_was_asked_for():
    assert catalog.nearest_gpus("MI301X")[0] == "Instinct MI300A"
    assert all("RTX" in name for name in catalog.nearest_gpus("RTX 3065"))
    assert catalog.nearest_models("qwen2.5-8b")[0] == "qwen2.5-7b"
    sizes = [catalog.model(near).params for near in catalog.nearest_models("palm-540b")]
    assert min(sizes) > 100e9  # no "flan-t5-large" because its letters are near


def test_every_gpu_is_found_by_all_its_names():
    for spec in catalog.gpus():
        for name in (spec.name, *spec.aliases, *spec.driver_names):
            assert catalog.gpu(name) is spec


@given(
    st.sampled_from([spec.name for spec in catalog.gpus()]),
    st.text(alphabet="bcefjkpqyz", min_size=4, max_size=6),
)
def test_a_word_that_is_not_understood_is_not_passed_over(name: str, word: str):
    assert catalog.find_gpu(f"{name} {word}") is None


AS_WRITTEN = Path(__file__).with_name("names_as_written.csv")
"""Right answers, decided before the names were tried; an empty one is a refusal, ``said`` asks for
a note of what was taken.
"""


def test_names_of_clouds_clusters_drivers_and_hubs_are_read_or_refused_never_mistaken():
    with AS_WRITTEN.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    mistaken = [row["written"] for row in rows if not _is_right(row)]
    assert len(rows) > 680 and not mistaken


def _is_right(row: dict[str, str]) -> bool:
    written, answers = row["written"], row["answers"].split("|")
    try:
        if row["kind"] == "model":
            shape, note = catalog.match_model(written)
            return shape.name in answers and bool(note or not row["note"])
        match = catalog.match_gpu(written)
    except LookupError:
        return "" in answers
    name_is_right = match.spec.name in answers and match.count == int(row["count"])
    return name_is_right and bool(match.note or not row["note"])


@pytest.mark.parametrize("written", ["RTX 4060 笔记本", "RTX 4090 ノート", "RTX 4090 移动版"])
def test_a_word_in_other_letters_is_not_passed_over(written: str):
    assert catalog.find_gpu(written) is None


UNKNOWN = {"model_type": "sphinx", "hidden_size": 64, "num_hidden_layers": 2,
           "num_attention_heads": 4, "vocab_size": 128}  # fmt: skip


def test_a_family_that_nobody_has_compared_is_left_to_a_trace(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(UNKNOWN))
    with pytest.raises(LookupError, match=r"no formula covers .* a trace does"):
        resolved(str(tmp_path))
    shape, note = resolved(str(tmp_path), traces=True)
    assert (shape.family, shape.hidden, note) == ("sphinx", 0, "")


def test_a_family_with_code_of_its_own_is_counted_as_a_llama_and_says_so(tmp_path):
    own_code = {**UNKNOWN, "auto_map": {"AutoModelForCausalLM": "modeling_sphinx.SphinxLM"}}
    (tmp_path / "config.json").write_text(json.dumps(own_code))
    shape, note = resolved(str(tmp_path))
    assert shape.hidden == 64 and note.startswith("sphinx is no family that is known here")


def test_a_model_in_the_place_of_a_gpu_is_said_to_be_one():
    with pytest.raises(LookupError, match="'qwen3-8b' is a model, and no GPU"):
        catalog.match_gpu("qwen3-8b")
