"""Rules of DeepSpeed's JSON (configuration reference, `deepspeed/runtime/config.py`)."""

from __future__ import annotations

from typing import Any

from gputop_analysis.launch.problems import Problem, error, unknown_keys, warning, whole

_KEYS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "optimizer", "scheduler", "communication_data_type", "prescale_gradients",
    "gradient_predivide_factor", "sparse_gradients", "fp16", "bf16", "amp", "torch_autocast",
    "gradient_clipping", "zero_optimization", "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer", "aio", "steps_per_print", "wall_clock_breakdown", "dump_state",
    "flops_profiler", "activation_checkpointing", "sparse_attention", "data_efficiency",
    "curriculum_learning", "monitor_config", "tensorboard", "wandb", "csv_monitor", "comms_logger",
    "compression_training", "checkpoint", "data_types", "autotuning", "elasticity", "hybrid_engine",
    "nebula", "pipeline", "tensor_parallel", "sequence_parallel_size", "compile",
    "gradient_accumulation_dtype", "seed", "use_data_before_expert_parallel_", "disable_allgather",
    "comet", "load_universal_checkpoint", "eigenvalue", "quantize_training",
    "progressive_layer_drop", "timers", "graph_harvesting", "dataloader_drop_last",
    "checkpoint_engine", "zenflow",
)  # fmt: skip


def check(config: dict[str, Any], ranks: int | None = None) -> list[Problem]:
    """All broken rules. ``ranks`` are data-parallel ones; None: what needs them is left out."""
    zero = config.get("zero_optimization")
    zero = zero if isinstance(zero, dict) else {}
    return [
        *unknown_keys(config, _KEYS),
        *_batch(config, ranks),
        *_precision(config),
        *_zero(zero),
        *_offload(zero),
    ]


def _batch(config: dict[str, Any], ranks: int | None) -> list[Problem]:
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    whole_batch, micro, steps = (whole(config.get(name)) for name in names)
    if all(config.get(name) is None for name in names[:2]):
        return [
            error(names[0], "DeepSpeed needs train_batch_size or train_micro_batch_size_per_gpu")
        ]
    problems = [
        error(n, "must be at least 1")
        for n in names
        if (v := whole(config.get(n))) is not None and v < 1
    ]
    if problems or ranks is None or whole_batch is None or micro is None:
        return problems
    if whole_batch % (micro * ranks):
        problem = f"{whole_batch} is no multiple of micro-batch {micro} x {ranks} ranks"
        return [error(names[0], problem)]
    if steps is not None and whole_batch != micro * steps * ranks:
        problem = (
            f"{whole_batch} is not micro-batch {micro} x accumulation {steps} x {ranks} "
            f"ranks = {micro * steps * ranks}"
        )
        return [error(names[0], problem)]
    return []


def _precision(config: dict[str, Any]) -> list[Problem]:
    on = [name for name in ("fp16", "bf16", "amp") if _enabled(config.get(name))]
    if len(on) > 1:
        return [error(on[0], f"{' and '.join(on)} are both enabled: choose one")]
    if "amp" in on and _stage(config.get("zero_optimization") or {}):
        return [error("amp", "apex's AMP does not go with ZeRO: use bf16 or fp16")]
    return []


def _enabled(section: Any) -> bool:
    return isinstance(section, dict) and section.get("enabled") is True


def _stage(zero: dict[str, Any]) -> int:
    return whole(zero.get("stage")) or 0


def _zero(zero: dict[str, Any]) -> list[Problem]:
    stage = zero.get("stage", 0)
    if stage != "auto" and whole(stage) not in (0, 1, 2, 3):
        return [error("zero_optimization.stage", f"{stage!r} is no stage: 0, 1, 2 or 3")]
    only_3 = [
        key
        for key in zero
        if key.startswith("stage3_") or key in ("offload_param", "zero_hpz_partition_size")
    ]
    if _stage(zero) != 3 and stage != "auto" and only_3:
        problem = f"works at stage 3 only; here it is stage {_stage(zero)}"
        real = [key for key in only_3 if key == "offload_param" and _device(zero[key]) != "none"]
        return [error(f"zero_optimization.{key}", problem) for key in real] + [
            warning(f"zero_optimization.{key}", problem)
            for key in only_3
            if key not in real and key != "offload_param"
        ]
    if _stage(zero) == 3 and zero.get("overlap_comm") is False:
        return [
            warning(
                "zero_optimization.overlap_comm",
                "off: each all-gather waits for the compute before it",
            )
        ]
    return []


def _offload(zero: dict[str, Any]) -> list[Problem]:
    problems = []
    for key in ("offload_optimizer", "offload_param"):
        section = zero.get(key)
        if not isinstance(section, dict):
            continue
        if _device(section) not in ("none", "cpu", "nvme", "auto"):
            problems.append(error(f"zero_optimization.{key}.device", "is none, cpu or nvme"))
        if _device(section) == "nvme" and not section.get("nvme_path"):
            problems.append(
                error(f"zero_optimization.{key}.nvme_path", "needed for the device nvme")
            )
        if _device(section) == "cpu" and section.get("pin_memory") is not True:
            problems.append(
                warning(f"zero_optimization.{key}.pin_memory", "off: copies to the host are slower")
            )
    if _device(zero.get("offload_optimizer") or {}) == "nvme" and _stage(zero) != 3:
        problems.append(error("zero_optimization.offload_optimizer", "nvme needs stage 3"))
    return problems


def _device(section: Any) -> str:
    if isinstance(section, dict):
        return str((section or {}).get("device", "none"))
    return "none"
