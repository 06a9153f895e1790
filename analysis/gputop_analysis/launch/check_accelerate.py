"""Rules of accelerate's YAML (`accelerate/commands/launch.py`, `parallelism_config.py`)."""

from __future__ import annotations

from typing import Any

from gputop_analysis.launch.problems import Problem, error, warning, whole

KINDS = (
    "NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA",
    "MULTI_XPU", "MULTI_HPU", "MULTI_NEURON", "DEEPSPEED", "FSDP", "XLA", "MEGATRON_LM", "TP",
)  # fmt: skip
_PRECISIONS = ("no", "fp16", "bf16", "fp8")
_OLD_FSDP = (
    "fsdp_sharding_strategy",
    "fsdp_use_orig_params",
    "fsdp_backward_prefetch",
    "fsdp_sync_module_states",
    "fsdp_forward_prefetch",
)


def check(config: dict[str, Any]) -> list[Problem]:
    """All broken rules."""
    return [*_world(config), *_kind(config), *_fsdp(config), *_mesh(config)]


def _world(config: dict[str, Any]) -> list[Problem]:
    ranks, nodes = whole(config.get("num_processes")), whole(config.get("num_machines"))
    problems = []
    if ranks is not None and nodes is not None and nodes > 0 and ranks % nodes:
        problem = (
            f"{ranks} is no multiple of num_machines {nodes}; it is the whole world, not "
            "the GPUs of a node"
        )
        problems.append(error("num_processes", problem))
    if nodes is not None and ranks is not None and 1 < nodes == ranks:
        problem = (
            f"one process on each of {nodes} machines: it is the whole world, not the GPUs "
            "of a node"
        )
        problems.append(warning("num_processes", problem))
    if (nodes or 1) > 1 and str(config.get("main_process_ip", "")) in ("localhost", "127.0.0.1"):
        problems.append(error("main_process_ip", "localhost gives each machine a world of its own"))
    return problems


def _kind(config: dict[str, Any]) -> list[Problem]:
    distributed_type = str(config.get("distributed_type", "NO"))
    problems = []
    if distributed_type not in KINDS:
        problems.append(
            error("distributed_type", f"{distributed_type!r} is none of {', '.join(KINDS)}")
        )
    for name, section in (
        ("FSDP", "fsdp_config"),
        ("DEEPSPEED", "deepspeed_config"),
        ("MEGATRON_LM", "megatron_lm_config"),
    ):
        if config.get(section) and distributed_type != name:
            problems.append(
                error(section, f"is ignored: distributed_type is {distributed_type}, not {name}")
            )
    precision = config.get("mixed_precision", "no")
    precision = "no" if precision is False else precision  # YAML 1.1 reads a bare no as false
    if precision not in _PRECISIONS:
        problems.append(
            error("mixed_precision", f"{precision!r} is none of {', '.join(_PRECISIONS)}")
        )
    return problems


def _fsdp(config: dict[str, Any]) -> list[Problem]:
    fsdp = config.get("fsdp_config") or {}
    if not isinstance(fsdp, dict) or whole(fsdp.get("fsdp_version")) != 2:
        return []
    problem = "belongs to fsdp_version 1 and does nothing in 2"
    return [warning(f"fsdp_config.{key}", problem) for key in _OLD_FSDP if key in fsdp]


def _mesh(config: dict[str, Any]) -> list[Problem]:
    mesh = config.get("parallelism_config") or {}
    if not isinstance(mesh, dict) or not mesh:
        return []
    sizes = {
        name: whole(mesh.get(f"parallelism_config_{name}_size")) or 1
        for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    }
    product = 1
    for size in sizes.values():
        product *= size
    ranks, problems = whole(config.get("num_processes")), []
    if ranks is not None and product != ranks:
        mesh_text = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "1"
        problems.append(
            error("parallelism_config", f"{mesh_text} = {product}, but num_processes is {ranks}")
        )
    if sizes["cp"] > 1 and sizes["sp"] > 1:
        problems.append(
            error("parallelism_config", "context and sequence parallelism exclude each other")
        )
    if sizes["cp"] > 1 and config.get("distributed_type") != "FSDP":
        problems.append(
            error(
                "parallelism_config.cp",
                "context parallelism needs distributed_type FSDP, version 2",
            )
        )
    return problems
