"""`accelerate launch` with its YAML. ``num_processes``: the whole world; keys of accelerate 1.x."""

from __future__ import annotations

from typing import Any

from gputop_analysis.launch.strategy import Launch, NotPossible, Strategy
from gputop_analysis.launch.torchrun import PORT

FILE = "accelerate.yaml"


def emit(strategy: Strategy) -> Launch:
    """The command and ``accelerate.yaml``.

    Raises:
        NotPossible: pipeline stages or experts; sequence beside context parallelism; ZeRO beside tp
            or cp.
    """
    strategy.check()
    if strategy.split.pp > 1 or strategy.split.ep > 1:
        feature = "expert parallelism"
        if strategy.split.pp > 1:
            feature = "pipeline stages"
        raise NotPossible(f"accelerate has no {feature}: emit it for megatron or torchtitan")
    if strategy.split.cp > 1 and strategy.split.sequence_parallel:
        raise NotPossible(
            "accelerate takes context or sequence parallelism, not both: leave one out"
        )
    if strategy.split.cp > 1 and strategy.split.stage != 3:
        raise NotPossible("accelerate's context parallelism goes with FSDP only: take --zero 3")
    if strategy.split.tp > 1 and strategy.split.stage in (1, 2):
        raise NotPossible("accelerate joins tp with FSDP or DDP only: take --zero 3 or 0")
    command = ["accelerate", "launch", "--config-file", FILE]
    notes: list[str] = []
    if strategy.nodes > 1:
        command += ["--machine-rank", "$MACHINE_RANK", "--main-process-ip", "$MASTER_ADDR"]
        notes.append(
            "run it on each node with MACHINE_RANK 0, 1, ... and MASTER_ADDR the first one's name"
        )
    if strategy.accumulation > 1:
        notes.append(
            f"pass gradient_accumulation_steps={strategy.accumulation} to Accelerator or "
            "TrainingArguments"
        )
    notes.append(f"set the script's batch size to {strategy.micro_batch} per GPU")
    words = (*command, strategy.script, *strategy.arguments)
    return Launch("accelerate", words, {FILE: as_yaml(config(strategy))}, tuple(notes))


def config(strategy: Strategy) -> dict[str, Any]:
    """The YAML's content."""
    if strategy.split.stage in (1, 2):
        distributed_type = "DEEPSPEED"
    elif strategy.split.stage == 3:
        distributed_type = "FSDP"
    else:
        distributed_type = "MULTI_GPU"
    settings: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": distributed_type if strategy.split.world > 1 else "NO",
        "downcast_bf16": "no",
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": strategy.dtype if strategy.dtype in ("bf16", "fp16", "fp8") else "no",
        "num_machines": strategy.nodes,
        "num_processes": strategy.split.world,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if strategy.nodes > 1:
        settings["main_process_port"] = PORT
    if distributed_type == "FSDP":
        settings["fsdp_config"] = _fsdp(strategy)
    if distributed_type == "DEEPSPEED":
        settings["deepspeed_config"] = _deepspeed(strategy)
    if strategy.split.tp > 1 or strategy.split.cp > 1 or strategy.split.replicas > 1:
        settings["parallelism_config"] = _mesh(strategy)
    return settings


def _fsdp(strategy: Strategy) -> dict[str, Any]:
    return {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": True,
        "fsdp_activation_checkpointing": strategy.recompute == "full",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_offload_params": strategy.split.offload == "all",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }


def _deepspeed(strategy: Strategy) -> dict[str, Any]:
    return {
        "zero_stage": strategy.split.stage,
        "gradient_accumulation_steps": strategy.accumulation,
        "gradient_clipping": 1.0,
        "offload_optimizer_device": "none" if strategy.split.offload == "none" else "cpu",
        "offload_param_device": "none",
        "zero3_init_flag": False,
    }


def _mesh(strategy: Strategy) -> dict[str, Any]:
    replicated, sharded = strategy.split.dp, 1
    if strategy.split.stage == 3:
        replicated = strategy.split.replicas
        sharded = strategy.split.dp // replicated
    return {
        "parallelism_config_dp_replicate_size": replicated,
        "parallelism_config_dp_shard_size": sharded,
        "parallelism_config_tp_size": strategy.split.tp,
        "parallelism_config_cp_size": strategy.split.cp,
    }


def as_yaml(values: dict[str, Any], indent: int = 0) -> str:
    """Numbers, words, booleans and one level of mappings below another, as in these files."""
    lines = []
    for key, value in values.items():
        head = " " * indent + f"{key}:"
        if isinstance(value, dict):
            lines += [head, as_yaml(value, indent + 2).rstrip("\n")]
        elif value in ("no", "NO", "none"):
            lines.append(f"{head} '{value}'")  # bare, YAML 1.1 reads no as false
        else:
            lines.append(f"{head} {str(value).lower() if isinstance(value, bool) else value}")
    return "\n".join(lines) + "\n"
