"""Configurations and commands against the rules: each rule broken once, and what gputop itself
emits keeps them all.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop.cli import main
from gputop_analysis.launch import check_accelerate, check_deepspeed, check_megatron
from gputop_analysis.launch.emit import LAUNCHERS, emit
from gputop_analysis.launch.strategy import Strategy
from gputop_analysis.launch.texts import UnknownFormatError
from gputop_analysis.launch.validate import check_command, check_text
from gputop_analysis.vram.setup import ModelShape

MODEL = ModelShape("llama3-8b", "llama", 4096, 32, 32, 8, 128, 14336, 128256, max_position=8192)
MEGATRON = {
    "--num-layers": 32, "--hidden-size": 4096, "--num-attention-heads": 32, "--seq-length": 4096,
    "--micro-batch-size": 1, "--global-batch-size": 64,
}  # fmt: skip


def texts(problems, severity="error"):
    return [f"{one.where}: {one.text}" for one in problems if one.severity == severity]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"zero_optimization": {"stage": 2}}, "train_batch_size: DeepSpeed needs"),
        (
            {"train_batch_size": 63, "train_micro_batch_size_per_gpu": 4},
            "63 is no multiple of micro-batch 4 x 8 ranks",
        ),
        (
            {
                "train_batch_size": 64,
                "train_micro_batch_size_per_gpu": 4,
                "gradient_accumulation_steps": 4,
            },
            "64 is not micro-batch 4 x accumulation 4 x 8 ranks = 128",
        ),
        (
            {"train_batch_size": 8, "fp16": {"enabled": True}, "bf16": {"enabled": True}},
            "fp16 and bf16 are both",
        ),
        ({"train_batch_size": 8, "zero_optimization": {"stage": 4}}, "4 is no stage"),
        (
            {
                "train_batch_size": 8,
                "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}},
            },
            "offload_param: works at stage 3 only; here it is stage 2",
        ),
        (
            {
                "train_batch_size": 8,
                "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}},
            },
            "nvme_path: needed",
        ),
    ],
)
def test_deepspeed_rules(config, said):
    assert any(said in text for text in texts(check_deepspeed.check(config, 8))), (
        check_deepspeed.check(config, 8)
    )


def test_deepspeed_takes_auto_and_names_the_nearest_key():
    config = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": 3},
    }
    assert check_deepspeed.check(config, 8) == []
    (one,) = check_deepspeed.check({**config, "gradient_acumulation_steps": 2}, 8)
    assert one.severity == "warning" and "gradient_accumulation_steps" in one.text


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"num_processes": 9, "num_machines": 2}, "9 is no multiple of num_machines 2"),
        (
            {"num_processes": 16, "num_machines": 2, "main_process_ip": "localhost"},
            "a world of its own",
        ),
        ({"distributed_type": "FSDP2"}, "'FSDP2' is none of"),
        (
            {"distributed_type": "MULTI_GPU", "fsdp_config": {"fsdp_version": 2}},
            "fsdp_config: is ignored",
        ),
        ({"mixed_precision": "bfloat16"}, "'bfloat16' is none of"),
        (
            {
                "num_processes": 8,
                "parallelism_config": {"parallelism_config_tp_size": 4},
                "distributed_type": "FSDP",
            },
            "tp 4 = 4, but num_processes is 8",
        ),
    ],
)
def test_accelerate_rules(config, said):
    assert any(said in text for text in texts(check_accelerate.check(config))), (
        check_accelerate.check(config)
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"--tensor-model-parallel-size": 3}, "3 must divide the 32 attention heads"),
        ({"--pipeline-model-parallel-size": 5}, "32 layers do not divide into 5 pipeline stages"),
        ({"--context-parallel-size": 3}, "3 cuts a sequence into 6 equal parts: seq 4096"),
        (
            {"--num-virtual-stages-per-pipeline-rank": 2},
            "virtual pipeline stages need pipeline parallelism above 1",
        ),
        ({"--expert-model-parallel-size": 2}, "the model has no experts"),
        (
            {"--num-experts": 6, "--expert-model-parallel-size": 4},
            "expert parallelism 4 must divide the 6 experts",
        ),
        (
            {
                "--num-experts": 8,
                "--expert-model-parallel-size": 2,
                "--tensor-model-parallel-size": 2,
            },
            "expert with tensor parallelism needs sequence parallelism",
        ),
        (
            {"--recompute-granularity": "selective", "--recompute-method": "uniform"},
            "takes no method",
        ),
        ({"--recompute-granularity": "full"}, "needs one: uniform or block"),
        ({"--overlap-param-gather": ""}, "needs --use-distributed-optimizer"),
        ({"--global-batch-size": 63}, "63 is no multiple of micro-batch 1 x dp 16"),
        ({"--tensor-parallel-size": 2}, "megatron has no --tensor-parallel-size"),
        ({"--recompute-granularity": "half"}, "takes full, selective, not half"),
    ],
)
def test_megatron_rules(changes, said):
    words = [str(word) for pair in {**MEGATRON, **changes}.items() for word in pair if word != ""]
    found = texts(check_megatron.check(words, 16))
    assert any(said in text for text in found), found


def test_megatron_without_a_fault_has_no_problem():
    words = [str(word) for pair in MEGATRON.items() for word in pair]
    assert check_megatron.check(words, 16) == []


@given(
    nodes=st.sampled_from([1, 2, 4]),
    split=st.sampled_from([(1, 1, 1), (2, 1, 1), (4, 2, 1), (1, 4, 1), (1, 1, 2), (2, 1, 2)]),
    zero=st.integers(0, 3),
    micro=st.sampled_from([1, 2]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    launcher=st.sampled_from(sorted(LAUNCHERS)),
)
def test_what_is_emitted_keeps_all_rules(nodes, split, zero, micro, recompute, launcher):
    tp, pp, cp = split
    dp = nodes * 8 // (tp * pp * cp)
    sizes = {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "zero": zero, "micro_batch": micro}
    strategy = Strategy.of(
        nodes, 8, **sizes, global_batch=64 * nodes, recompute=recompute, model=MODEL
    )
    try:
        launch = emit(strategy, launcher)
    except ValueError:
        return
    assert texts(check_command(launch.command)[1]) == []
    for name, text in launch.files.items():
        if name.endswith((".json", ".yaml")):
            assert texts(check_text(text, name, dp)[1]) == []


def test_a_foreign_file_is_refused():
    with pytest.raises(UnknownFormatError, match="is no JSON"):
        check_text("{", "a.json")
    with pytest.raises(UnknownFormatError, match="no distributed_type"):
        check_text("a: 1\n", "a.yaml")
    with pytest.raises(UnknownFormatError, match="holds no mapping"):
        check_text("- 1\n", "a.yaml")


def test_the_rendezvous_of_torchrun():
    words = ["torchrun", "--nnodes", "2", "--nproc-per-node", "8", "--rdzv-backend", "c10d"]
    words += ["--rdzv-endpoint", "localhost:29500", "train.py"]
    assert any("world of its own" in text for text in texts(check_command(words)[1]))
    assert any(
        "has no --nproc-per-nod" in text
        for text in texts(check_command(["torchrun", "--nproc-per-nod", "8", "a.py"])[1])
    )


def test_the_command(tmp_path, capsys):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 4}}))
    assert main(["validate", str(path)]) == 1 and "4 is no stage" in capsys.readouterr().out
    path.write_text(json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 1}}))
    assert main(["validate", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"name": str(path), "kind": "deepspeed", "problems": []}
    ]
    assert main(["validate", "--", "torchrun", "--nproc-per-node", "8", "train.py"]) == 0
    assert "keeps all rules" in capsys.readouterr().out
    for words, said in (
        ([], "give a file"),
        ([str(tmp_path / "none.json")], "cannot read"),
        ([str(path), "--gpus", "0"], "at least 1"),
    ):
        assert main(["validate", *words]) == 2 and said in capsys.readouterr().err
