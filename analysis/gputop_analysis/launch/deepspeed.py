"""The deepspeed launcher and its JSON (configuration reference); ``--num_gpus``: per node."""

from __future__ import annotations

import json
from typing import Any

from gputop_analysis.launch.strategy import Launch, NotPossible, Strategy

FILE, HOSTS = "ds_config.json", "hostfile"
BUCKET = 500_000_000


def emit(strategy: Strategy) -> Launch:
    """The command and ``ds_config.json``; a hostfile for several nodes.

    Raises:
        NotPossible: pipeline stages, context or expert parallelism, which are the script's own
            doing in DeepSpeed, and copies (HSDP), which it does not have.
    """
    strategy.check()
    for name, size in (
        ("pipeline stages", strategy.split.pp),
        ("context parallelism", strategy.split.cp),
        ("experts", strategy.split.ep),
    ):
        if size > 1:
            raise NotPossible(
                f"deepspeed's JSON has no setting for {name}: emit it for megatron or torchtitan"
            )
    if strategy.split.stage == 3 and strategy.split.replicas > 1:
        raise NotPossible(
            "deepspeed's ZeRO-3 shards over all ranks: take --replicas 1, "
            "or accelerate or torchtitan"
        )
    files = {FILE: json.dumps(config(strategy), indent=2) + "\n"}
    command = ["deepspeed", "--num_gpus", str(strategy.gpus_per_node)]
    notes: list[str] = []
    if strategy.nodes > 1:
        files[HOSTS] = "".join(
            f"node{i + 1} slots={strategy.gpus_per_node}\n" for i in range(strategy.nodes)
        )
        command += ["--num_nodes", str(strategy.nodes), "--hostfile", HOSTS]
        notes.append(
            f"put the names of your nodes into {HOSTS}; the launcher reaches them over ssh, start "
            "it once"
        )
    script = [strategy.script, "--deepspeed", FILE, *strategy.arguments]
    notes.append(
        f"{strategy.script} must take --deepspeed (HF Trainer does) or call deepspeed.initialize "
        "with the file"
    )
    return Launch("deepspeed", (*command, *script), files, tuple(notes))


def config(strategy: Strategy) -> dict[str, Any]:
    """The JSON's content."""
    zero: dict[str, Any] = {"stage": strategy.split.stage}
    if strategy.split.stage:
        zero |= {"overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": BUCKET}
    if strategy.split.stage in (1, 2):
        zero["allgather_bucket_size"] = BUCKET
    if strategy.split.stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    if strategy.split.stage and strategy.split.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if strategy.split.stage == 3 and strategy.split.offload == "all":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    settings: dict[str, Any] = {
        "train_batch_size": strategy.global_batch,
        "train_micro_batch_size_per_gpu": strategy.micro_batch,
        "gradient_accumulation_steps": strategy.accumulation,
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
    }
    if strategy.dtype in ("bf16", "fp16"):
        settings[strategy.dtype] = {"enabled": True}
    if strategy.split.tp > 1:
        settings["tensor_parallel"] = {"autotp_size": strategy.split.tp}
    return settings
