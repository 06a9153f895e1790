"""FLOPs from a model's shape against torch's own count, and peaks by exact name."""

import pytest
from analysis_support import Builder

from gputop_analysis.catalog import find_gpu
from gputop_analysis.flops import efficiency, precision, unit_flops
from gputop_analysis.view import RunView


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA B200", "B200-SXM-180GB"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("Tesla T4", "T4"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_drivers_names_are_found(driver, name):
    found = find_gpu(driver)
    assert found is not None and found.name == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "NVIDIA",
        "NVIDIA RTX A1010",
        "NVIDIA A1001",
        "NVIDIA L400",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "AMD Instinct MI250X/MI250",
    ],
)
def test_no_other_gpus_peak_is_taken(name):
    assert find_gpu(name) is None


def test_peaks_are_dense():
    assert find_gpu("NVIDIA H100 80GB HBM3").dense_flops["bf16"] == pytest.approx(989e12)
    assert find_gpu("NVIDIA H100 80GB HBM3").dense_flops["tf32"] == pytest.approx(494.5e12)
    assert "bf16" not in find_gpu("Tesla T4").dense_flops


def test_the_precision_is_that_of_the_products():
    fp32 = {"by_dtype": {"float32": 10, "bfloat16": 1}}
    assert precision({"model": fp32}) == "float32"
    assert precision({"model": fp32, "flags": {"cuda_matmul_tf32": True}}) == "tf32"
    assert precision({"model": fp32, "flags": {"matmul_precision": "high"}}) == "tf32"
    assert precision({"model": fp32, "amp": {"autocast": True, "dtype": "float16"}}) == "float16"
    assert precision({"model": {"by_dtype": {"bfloat16": 10}}}) == "bfloat16"
    assert precision(
        {"model": fp32, "parallel": {"fsdp": {"mixed_precision": {"param_dtype": "bfloat16"}}}}
    ) == ("bfloat16")


def view_of(tmp_path, tokens=512, event=None, **hello):
    builder = Builder(tmp_path)
    builder.hello(device="cuda", device_name="NVIDIA A100-SXM4-80GB", **hello)
    for _ in range(60):
        builder.step(forward=50, backward=50, tokens=tokens, samples=4)
    if event:
        builder.event("flops", rank=0, **event)
    return RunView(builder.open())


def counted(model, batch):
    """FLOPs of forward and backward as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as mode:
        model(input_ids=batch, labels=batch).loss.backward()
    return mode.get_total_flops()


def config_of(config):
    from gputop_agent.description.describe_model import describe_config

    return describe_config(config)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_shape_agrees_with_torchs_count(tmp_path, kind):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if kind == "gpt2":
        config = transformers.GPT2Config(
            n_embd=128,
            n_layer=3,
            n_head=4,
            vocab_size=2000,
            n_positions=256,
            attn_implementation="eager",
        )
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            hidden_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=344,
            vocab_size=2000,
            attn_implementation="eager",  # torch has no formula for the CPU's fused attention
        )
        model = transformers.LlamaForCausalLM(config)
    batch = torch.randint(0, 2000, (4, 128))
    parameters = sum(p.numel() for p in model.parameters())
    hello = {
        "model": {"parameters": parameters, "trainable": parameters, "config": config_of(config)}
    }
    found = unit_flops(view_of(tmp_path, tokens=batch.numel(), **hello), 0)
    assert found is not None and found.unit == "tokens"
    assert found.model * batch.numel() == pytest.approx(counted(model, batch), rel=0.05)


def test_a_count_goes_before_the_shape_and_knows_of_recomputation(tmp_path):
    model = {"parameters": 10**9, "trainable": 10**9}
    event = {"flops": 4e12, "step": 12, "tokens": 512, "samples": 4}
    found = unit_flops(view_of(tmp_path, event=event, model=model, checkpointing=True), 0)
    assert found is not None and "step 12" in found.source
    assert found.hardware == 4e12 / 512
    assert found.model == pytest.approx(3e12 / 512)


@pytest.mark.parametrize(
    "hello",
    [
        {},
        {"model": {"parameters": 10, "trainable": 10, "sharded": True}},
        {"model": {"parameters": 10, "trainable": 10, "config": {"experts": 8}}},
        {
            "model": {"parameters": 10, "trainable": 10},
            "parallel": {"mesh": {"names": ["dp", "tp"], "shape": [2, 2]}},
        },
        {
            "model": {"parameters": 10, "trainable": 10},
            "parallel": {"deepspeed": {"zero_stage": 3}},
        },
    ],
)
def test_abstains_where_the_parameters_say_too_little(tmp_path, hello):
    assert unit_flops(view_of(tmp_path, **hello), 0) is None


def test_frozen_weights_cost_no_gradient(tmp_path):
    found = unit_flops(view_of(tmp_path, model={"parameters": 10**9, "trainable": 0}), 0)
    assert found is not None and found.model == pytest.approx(4e9)


def test_a_cpu_has_no_peak(tmp_path):
    builder = Builder(tmp_path)
    builder.hello(model={"parameters": 10, "trainable": 10})
    builder.steps(50, forward=10.0)
    assert efficiency(RunView(builder.open()), 0) is None
