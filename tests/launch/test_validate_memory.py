"""Configurations against a GPU's memory: what a file says is estimated, what it leaves open is
asked for.
"""

import json
from typing import Any

import pytest

from gputop.cli import main
from gputop_analysis.catalog import model
from gputop_analysis.launch import memory
from gputop_analysis.launch.megatron import emit
from gputop_analysis.launch.strategy import Strategy
from gputop_analysis.planner.hardware import cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.memory import allocated_bytes
from gputop_analysis.planner.space import Limits, configurations
from gputop_analysis.units import GIB
from gputop_analysis.vram.options import setup_of
from gputop_analysis.vram.tiers import solve

LLAMA = model("llama-3-8b")


@pytest.mark.parametrize("pins", [{"tp": 2, "pp": 2}, {"tp": 8, "pp": 1}, {"tp": 1, "pp": 4}])
@pytest.mark.parametrize("recompute", [0, 2])
def test_a_megatron_command_needs_what_the_planner_said(pins, recompute):
    job = Job(LLAMA, seq=4096, global_batch=64)
    pinned: dict[str, Any] = {name: (degree,) for name, degree in pins.items()}
    limits = Limits(**pinned, vpp=(1,), micro_batch=(1,), zero=(1,), recompute=(recompute,))
    layouts = configurations(job, cluster("H100", 16), limits)
    row = layouts.row(0)
    degrees: dict[str, Any] = {
        name: int(row[name]) for name in ("tp", "pp", "dp", "zero", "micro_batch")
    }
    kind = ("none", "selective", "full")[recompute]
    strategy = Strategy.of(
        2,
        8,
        **degrees,
        sequence_parallel=bool(row["sequence_parallel"]),
        recompute=kind,
        seq=4096,
        global_batch=64,
        model=LLAMA,
    )
    command = list(emit(strategy).command)
    shape, values = memory.of_megatron(command[command.index("pretrain_gpt.py") :], 16)
    assert shape is not None and (shape.layers, shape.ffn, shape.kv_heads) == (32, 14336, 8)
    setup = setup_of(shape, values)
    stages = {0, setup.parallel.pp - 1}
    most = max(solve(setup.but(pipeline_stage=stage), "formula").allocated for stage in stages)
    assert most == pytest.approx(float(allocated_bytes(job, layouts)[0]), rel=0.02)


def test_deepspeed_says_what_it_shards_and_keeps_on_the_host():
    config = {
        "train_batch_size": 64,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": "cpu"},
            "offload_optimizer": {"device": "cpu"},
        },
        "optimizer": {"type": "Lion"},
    }
    found = memory.of_deepspeed(config, 8)
    assert (found["sharding"], found["offload"], found["optimizer"]) == ("zero3", "all", "lion")
    assert (found["micro_batch"], found["accumulation"], found["dp"], found["master_weights"]) == (
        4,
        2,
        8,
        True,
    )
    auto = memory.of_deepspeed(
        {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}, 8
    )
    assert "micro_batch" not in auto and auto["dtype"] == "fp32" and auto["sharding"] == "zero2"


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        ({"stage": 2, "reduce_bucket_size": 2e8}, {"reduce_bucket_size": 200_000_000}),
        ({"stage": 3, "reduce_bucket_size": "auto"}, {"reduce_bucket_size": 0}),
        ({"stage": 2, "overlap_comm": True}, {"overlap_comm": True}),
        ({"stage": 3, "overlap_comm": True}, {}),  # its one bucket is not doubled
        ({"stage": 2, "reduce_bucket_size": "large"}, {}),
    ],
)
def test_deepspeed_says_how_large_its_buckets_are(zero, expected):
    found = memory.of_deepspeed({"zero_optimization": zero}, None)
    buckets = {
        name: found[name] for name in ("reduce_bucket_size", "overlap_comm") if name in found
    }
    assert buckets == expected


def test_a_type_that_is_left_to_the_script_is_not_decided():
    auto = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    assert "dtype" not in memory.of_deepspeed({**auto, "zero_optimization": {"stage": 2}}, None)
    fp16 = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": True}}
    assert memory.of_deepspeed(fp16, None)["dtype"] == "fp16"


def test_an_estimate_starts_from_a_configuration(tmp_path, capsys):
    file = tmp_path / "ds.json"
    zero = {"stage": 2, "reduce_bucket_size": 2e8, "overlap_comm": True}
    file.write_text(json.dumps({"bf16": {"enabled": "auto"}, "zero_optimization": zero}))
    ask = ["estimate", "--model", "llama-3-8b", "--lora", "--tier", "formula", "--json"]
    assert main([*ask, "--config", str(file)]) == 0
    setup = json.loads(capsys.readouterr().out)["setup"]
    assert (setup["recipe"], setup["parallel"]["sharding"]) == ("deepspeed", "zero2")
    assert (setup["reduce_bucket_size"], setup["overlap_comm"]) == (200_000_000, True)


@pytest.mark.parametrize(
    ("text", "more", "why"),
    [
        ("{}", (), "no distributed_type"),
        ("{", (), "is no JSON"),
        ('{"zero_optimization": {"stage": 2}}', ("--fsdp",), "leave all but one out"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_said(tmp_path, capsys, text, more, why):
    file = tmp_path / "ds.json"
    file.write_text(text)
    assert main(["estimate", "--model", "llama-3-8b", "--config", str(file), *more]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"fsdp_version": 2}, {"sharding": "fsdp2", "reshard_after_forward": True}),
        (
            {"fsdp_version": 2, "fsdp_reshard_after_forward": False},
            {"reshard_after_forward": False},
        ),
        (
            {"fsdp_sharding_strategy": "SHARD_GRAD_OP"},
            {"sharding": "fsdp1", "reshard_after_forward": False},
        ),
        ({"fsdp_sharding_strategy": "HYBRID_SHARD"}, {"sharding": "hsdp", "replicas": 2}),
        (
            {"fsdp_offload_params": True, "fsdp_activation_checkpointing": True},
            {"offload": "all", "checkpointing": "full"},
        ),
    ],
)
def test_accelerate_says_how_it_shards(section, expected):
    config = {
        "distributed_type": "FSDP",
        "num_processes": 16,
        "num_machines": 2,
        "mixed_precision": "bf16",
    }
    found = memory.of_accelerate({**config, "fsdp_config": section})
    assert expected.items() <= found.items() and (
        found["dp"],
        found["dtype"],
        found["weights"],
    ) == (16, "bf16", "fp32")


def test_what_another_file_says_is_not_guessed():
    config = {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"deepspeed_config_file": "ds.json"},
    }
    with pytest.raises(ValueError, match=r"ds\.json"):
        memory.of_accelerate(config)


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
                                "zero_optimization": {"stage": 2}}))  # fmt: skip
    return str(file)


def test_the_command_says_whether_it_fits(capsys, config):
    words = ["validate", config, "--gpus", "8", "--model", "llama-3-8b", "--seq", "4096", "--json"]
    assert main([*words, "--gpu", "L4"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert found["problems"][0]["where"] == "memory" and found["memory"]["fits"] is False
    assert main([*words, "--gpu", "H200", "--checkpointing", "full"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["memory"]["fits"] and found["memory"]["headroom_gib"] > 0
    assert found["memory"]["device_total_gib"] * GIB > 8e9 * 2, "the weights alone"


@pytest.mark.parametrize(
    ("words", "said"),
    [((), "give --model"), (("--model", "llama-3-8b", "--micro-batch", "0"), "--micro-batch")],
)
def test_what_is_missing_is_named(capsys, config, words, said):
    main(["validate", config, "--gpus", "8", "--gpu", "H100", *words])
    captured = capsys.readouterr()
    assert said in captured.out + captured.err


def test_an_unknown_gpu_is_bad_usage(capsys, config):
    assert main(["validate", config, "--gpu", "H1000"]) == 2 and "H100" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        ((), "none"),
        (("--recompute-modules", "core_attn"), "none"),
        (("--recompute-modules", "layernorm", "mlp", "--bf16"), "selective"),
        (("--recompute-modules", "moe_act"), "selective"),
    ],
)
def test_megatrons_selective_recomputation_is_read_by_its_modules(modules, expected):
    """Its default, of attention alone, frees next to nothing beside flash attention."""
    words = ["pretrain_gpt.py", "--recompute-granularity", "selective", *modules]
    assert memory.of_megatron(words, 1)[1]["checkpointing"] == expected
    assert memory.of_megatron(["--recompute-granularity", "full"], 1)[1]["checkpointing"] == "full"
