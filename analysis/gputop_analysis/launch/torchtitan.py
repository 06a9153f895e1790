"""torchtitan: its TOML (torchtitan/config/job_config.py) and the line to start it."""

from __future__ import annotations

from typing import Any

from gputop_analysis.launch.strategy import Launch, NotPossible, Strategy
from gputop_analysis.launch.torchrun import several_nodes, torchrun

FILE = "torchtitan.toml"
_NAMES = {"llama": "llama3", "qwen3": "qwen3", "deepseek_v3": "deepseek_v3", "llama4": "llama4"}


def emit(strategy: Strategy) -> Launch:
    """The command and ``torchtitan.toml``.

    Raises:
        NotPossible: ZeRO-1 and 2, which torchtitan does not have; a zero-bubble schedule but with
            two chunks a stage.
    """
    strategy.check()
    if strategy.split.stage in (1, 2):
        raise NotPossible(
            "torchtitan shards parameters too (--zero 3) or replicates (--zero 0), not ZeRO-1 or 2"
        )
    if strategy.split.zero_bubble and strategy.split.vpp != 2:
        raise NotPossible(
            "torchtitan runs zero-bubble schedules with two chunks a stage: give --vpp 2"
        )
    words = torchrun(strategy, ["-m", "torchtitan.train", "--job.config_file", FILE])
    name = strategy.model.name if strategy.model else "your model"
    notes = (
        *several_nodes(strategy),
        f"set [model] name, flavor and hf_assets_path to {name} as torchtitan calls it",
    )
    return Launch("torchtitan", tuple(words), {FILE: as_toml(config(strategy))}, notes)


def config(strategy: Strategy) -> dict[str, dict[str, Any]]:
    """The TOML's sections."""
    replicated, sharded = strategy.split.dp, 1
    if strategy.split.stage == 3:
        replicated = strategy.split.replicas
        sharded = strategy.split.dp // replicated
    family = strategy.model.family if strategy.model else "llama"
    # a pipeline cuts the local batch; elsewhere the global batch says how often
    accumulated = strategy.split.pp > 1
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": replicated,
        "data_parallel_shard_degree": sharded,
        "fsdp_reshard_after_forward": "default",
        "tensor_parallel_degree": strategy.split.tp,
        "pipeline_parallel_degree": strategy.split.pp,
        "context_parallel_degree": strategy.split.cp,
        "expert_parallel_degree": strategy.split.ep,
    }
    if strategy.split.pp > 1:
        parallelism["pipeline_parallel_schedule"] = _schedule(strategy)
        parallelism["pipeline_parallel_microbatch_size"] = strategy.micro_batch
    return {
        "job": {"dump_folder": "./outputs"},
        "model": {
            "name": _NAMES.get(family, "llama3"),
            "flavor": "8B",
            "hf_assets_path": "./assets/hf",
        },
        "optimizer": {"name": "AdamW", "lr": strategy.learning_rate},
        "training": {
            "local_batch_size": strategy.micro_batch
            * (strategy.accumulation if accumulated else 1),
            "global_batch_size": strategy.global_batch,
            "seq_len": strategy.seq,
            "max_norm": 1.0,
            "steps": strategy.steps,
            "dataset": "c4",
        },
        "parallelism": parallelism,
        "activation_checkpoint": {"mode": strategy.recompute, "selective_ac_option": "op"},
        "compile": {"enable": True},
    }


def _schedule(strategy: Strategy) -> str:
    """As torch.distributed.pipelining calls it (``get_schedule_class``)."""
    if strategy.split.zero_bubble:
        return "InterleavedZeroBubble"  # ZB1P of arXiv:2401.10241
    return "Interleaved1F1B" if strategy.split.vpp > 1 else "1F1B"


def as_toml(sections: dict[str, dict[str, Any]]) -> str:
    """Sections of numbers, words and booleans."""
    blocks = []
    for name, values in sections.items():
        lines = [f"[{name}]"]
        for key, value in values.items():
            if isinstance(value, bool):
                text = str(value).lower()
            elif isinstance(value, str):
                text = f'"{value}"'
            else:
                text = value
            lines.append(f"{key} = {text}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"
