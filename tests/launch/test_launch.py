"""Emitted commands: the launchers' own parsers take them, and what cannot be expressed is refused
in words.
"""

import json
import os
import subprocess
import sys
from itertools import product

import pytest
import yaml

from gputop_analysis.launch import flags
from gputop_analysis.launch.emit import LAUNCHERS, emit
from gputop_analysis.launch.shell import folded, quoted
from gputop_analysis.launch.strategy import Strategy
from gputop_analysis.vram.setup import ModelShape

LLAMA = ModelShape(
    "llama3-8b", "llama", 4096, 32, 32, 8, 128, 14336, 128256, gated_mlp=True, max_position=8192
)
MIXTRAL = ModelShape(
    "moe", "mixtral", 4096, 32, 32, 8, 128, 14336, 32000, experts=8, top_k=2, moe_ffn=14336
)
DEEPSEEK = ModelShape(
    "mla", "deepseek_v3", 2048, 27, 16, 16, 192, 10944, 102400, experts=64, shared_experts=2,
    top_k=6, moe_ffn=1408,
    first_dense_layers=1, mla_q_rank=0, mla_kv_rank=512, mla_nope_dim=128, mla_rope_dim=64,
    mla_v_dim=128,
)  # fmt: skip


def strategies():
    """Every launcher's kinds of strategy on one and on four nodes."""
    for nodes, (dp, tp, pp, cp), zero in product(
        (1, 4), ((8, 1, 1, 1), (2, 4, 1, 1), (2, 2, 2, 1), (4, 1, 1, 2)), range(4)
    ):
        more = {"sequence_parallel": tp > 1 and cp == 1, "vpp": 2 if pp > 1 and zero == 0 else 1}
        more |= {"replicas": nodes if zero == 3 and cp == 1 else 1}
        for model, recompute in ((LLAMA, "full"), (MIXTRAL, "selective"), (DEEPSEEK, "none")):
            sizes = {"dp": dp * nodes, "tp": tp, "pp": pp, "cp": cp, "zero": zero}
            yield Strategy.of(
                nodes, 8, **sizes, **more, global_batch=64 * nodes, model=model, recompute=recompute
            )


def emitted(launcher, on_slurm=False):
    """All launches that this launcher can express."""
    for strategy in strategies():
        try:
            yield strategy, emit(strategy, launcher, on_slurm)
        except ValueError:  # the launcher, or no launcher, can start it
            continue


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_flag_exists(launcher):
    seen = copies = 0
    for strategy, launch in emitted(launcher):
        copies += strategy.split.replicas > 1
        words = list(launch.command)
        program = {"accelerate": "accelerate launch", "deepspeed": "deepspeed"}.get(
            launcher, "torchrun"
        )
        script = next(i for i, word in enumerate(words) if word.endswith(".py") or word == "-m")
        assert flags.wrong(program, words[:script]) == []
        if launcher == "megatron":
            assert flags.wrong("megatron", words[script:]) == []
            assert "--recompute-method" not in words or strategy.recompute == "full"
        seen += 1
    assert seen >= 8
    assert bool(copies) == (launcher != "deepspeed"), "HSDP"


def test_torchrun_parses_what_is_emitted():
    from torch.distributed.run import get_args_parser

    for strategy, launch in emitted("torchrun"):
        options = get_args_parser().parse_args(launch.command[1:])
        assert options.nproc_per_node == "8" and options.training_script == "train.py"
        assert options.standalone == (strategy.nodes == 1)
        if strategy.nodes > 1:
            assert (
                options.nnodes == "4"
                and options.rdzv_backend == "c10d"
                and options.rdzv_id == "train"
            )
            assert "localhost" not in options.rdzv_endpoint and "--node-rank" not in launch.command


def test_accelerate_reads_command_and_file(tmp_path):
    from accelerate.commands.config import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    kinds = set()
    for strategy, launch in emitted("accelerate"):
        path = tmp_path / "accelerate.yaml"
        path.write_text(launch.files["accelerate.yaml"])
        config = load_config_from_file(str(path))
        assert (
            config.num_processes == strategy.split.world and config.num_machines == strategy.nodes
        )
        assert config.mixed_precision == "bf16"
        kinds.add(str(config.distributed_type).rpartition(".")[2])
        if mesh := config.parallelism_config:
            sizes = [
                mesh[f"parallelism_config_{name}_size"]
                for name in ("dp_replicate", "dp_shard", "tp", "cp")
            ]
            assert sizes[0] * sizes[1] * sizes[2] * sizes[3] == strategy.split.world
        words = [word.replace("$MACHINE_RANK", "1") for word in launch.command[2:]]
        options = launch_command_parser().parse_args(words)
        assert options.training_script == "train.py" and options.config_file == "accelerate.yaml"
    assert kinds == {"MULTI_GPU", "FSDP", "DEEPSPEED"}


def test_deepspeed_batches_multiply_out():
    for strategy, launch in emitted("deepspeed"):
        config = json.loads(launch.files["ds_config.json"])
        sizes = (
            config["train_micro_batch_size_per_gpu"]
            * config["gradient_accumulation_steps"]
            * strategy.split.dp
        )
        assert config["train_batch_size"] == sizes == strategy.global_batch
        assert config["zero_optimization"]["stage"] == strategy.split.stage
        assert ("hostfile" in launch.files) == (strategy.nodes > 1)
        assert launch.command[launch.command.index("--num_gpus") + 1] == "8"  # per node


def test_torchtitan_degrees_multiply_to_the_world():
    tomllib = pytest.importorskip("tomllib")
    for strategy, launch in emitted("torchtitan"):
        found = tomllib.loads(launch.files["torchtitan.toml"])
        sizes = found["parallelism"]
        names = (
            "data_parallel_replicate",
            "data_parallel_shard",
            "tensor_parallel",
            "pipeline_parallel",
            "context_parallel",
        )
        world = 1
        for name in names:
            world *= sizes[f"{name}_degree"]
        assert world == strategy.split.world
        assert found["activation_checkpoint"]["mode"] == strategy.recompute
        assert found["training"]["global_batch_size"] % found["training"]["local_batch_size"] == 0


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate", "megatron", "torchtitan"])
def test_sbatch_is_a_sound_script(launcher, tmp_path):
    scripts = {launch.files["train.sbatch"] for _, launch in emitted(launcher, on_slurm=True)}
    paths = []
    for number, text in enumerate(sorted(scripts)[:6]):
        path = tmp_path / f"{number}.sh"
        path.write_text(text)
        paths.append(str(path))
        assert (
            "--ntasks-per-node=1" in text
            and "kill-on-bad-exit" in text
            and "scontrol show hostnames" in text
        )
    for path in paths:
        subprocess.run(["bash", "-n", path], check=True)
    found = subprocess.run(
        ["shellcheck", "--severity=warning", *paths],
        capture_output=True,
        text=True,
        env=_with_tools(),
    )
    assert found.returncode == 0, found.stdout


def _with_tools():
    return {**os.environ, "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]}


def test_the_two_node_command_trains_on_two_nodes(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import time, torch, torch.distributed as dist\nfrom torch.nn.parallel import "
        "DistributedDataParallel\ndist.init_process_group('gloo')\nmodel = "
        "DistributedDataParallel(torch.nn.Linear(4, 4))\noptimizer = "
        "torch.optim.SGD(model.parameters(), 0.1)\nfor _ in range(3):\n    model(torch.ones(2, "
        "4)).square().mean().backward(); optimizer.step(); optimizer.zero_grad()\nprint('world', "
        "dist.get_world_size(), 'rank', dist.get_rank(), flush=True)\n"
        # torch may abort a process that ends right after a backward (docs/decisions.md)
        "time.sleep(0.5)\ndist.destroy_process_group()\n"
    )
    launch = emit(Strategy.of(2, 1, dp=2, global_batch=2, script=str(script)), "torchrun")
    env = {**_with_tools(), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    nodes = [
        subprocess.Popen(
            ["bash", "-c", quoted(launch.command)], stdout=subprocess.PIPE, text=True, env=env
        )
        for _ in range(2)
    ]
    said = sorted(
        line
        for node in nodes
        for line in node.communicate(timeout=120)[0].splitlines()
        if "world" in line
    )
    assert [node.returncode for node in nodes] == [0, 0] and said == [
        "world 2 rank 0",
        "world 2 rank 1",
    ]


@pytest.mark.parametrize(
    ("launcher", "changes", "said"),
    [
        ("torchrun", {"dp": 4}, "tp x pp x cp x dp = 4"),
        ("torchrun", {"global_batch": 12}, "no multiple of micro-batch"),
        ("accelerate", {"dp": 4, "pp": 2}, "accelerate has no pipeline stages"),
        ("accelerate", {"dp": 2, "cp": 2, "tp": 2, "sequence_parallel": True}, "not both"),
        ("deepspeed", {"dp": 4, "cp": 2}, "no setting for context parallelism"),
        ("torchtitan", {"zero": 1}, "not ZeRO-1 or 2"),
        ("megatron", {}, "needs the model's shape"),
    ],
)
def test_what_cannot_be_is_refused_in_words(launcher, changes, said):
    with pytest.raises(ValueError, match=said):
        emit(Strategy.of(1, 8, **{"global_batch": 8, **changes}), launcher)


def test_yaml_is_read_as_it_was_meant():
    from gputop_analysis.launch.accelerate import as_yaml

    values = {"a": "no", "b": True, "c": 3, "d": {"e": "none", "f": "FSDP"}, "g": "NO"}
    assert yaml.safe_load(as_yaml(values)) == values


def test_long_commands_fold_between_flags():
    words = [
        "torchrun",
        *(word for i in range(12) for word in (f"--flag-{i}", "value")),
        "$MASTER_ADDR:29500",
    ]
    text = folded(words, width=40)
    assert '"$MASTER_ADDR:29500"' in text and all(len(line) <= 40 for line in text.splitlines())
    assert all(line.strip().startswith("--") for line in text.splitlines()[1:])
    assert text.replace(" \\\n ", "").split() == quoted(words).split()
