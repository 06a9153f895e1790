"""A configuration's words on memory: the estimator's options, from a file or command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from gputop_analysis.launch.check_megatron import Arguments, read
from gputop_analysis.launch.problems import whole
from gputop_analysis.launch.texts import kind_of, parsed
from gputop_analysis.vram.setup import ModelShape

_OPTIMIZERS = {
    "adam": "adamw",
    "adamw": "adamw",
    "fusedadam": "adamw-fused",
    "lion": "lion",
    "fusedlion": "lion",
    "sgd": "sgd-momentum",
    "adafactor": "adafactor",
    "muon": "muon",
}
_ON_HOST = ("cpu", "nvme")
_FSDP = {
    "NO_SHARD": "ddp",
    "HYBRID_SHARD": "hsdp",
    "HYBRID_SHARD_ZERO2": "hsdp",
    "3": "ddp",
    "4": "hsdp",
    "5": "hsdp",
}
_GRADIENTS_ONLY = ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2", "2", "5")
_MODULES = "--recompute-modules"
_NEEDED = ("--num-layers", "--hidden-size", "--num-attention-heads")


def of_text(text: str, name: str, gpus: int | None) -> dict[str, Any]:
    """Options of the estimator by name, from the text of a DeepSpeed or accelerate configuration.

    Raises:
        ValueError: it is neither, or its settings stand in another file.
    """
    config = parsed(text, name)
    if kind_of(config, name) == "accelerate":
        return of_accelerate(config)
    return of_deepspeed(config, gpus)


def of_deepspeed(config: Mapping[str, Any], gpus: int | None) -> dict[str, Any]:
    """Options of the estimator by name, from DeepSpeed's JSON; not what it leaves to the script."""
    zero = _section(config, "zero_optimization")
    tp = whole(_section(config, "tensor_parallel").get("autotp_size")) or 1
    options: dict[str, Any] = {
        "sharding": _of_stage(zero.get("stage")),
        "offload": _offload(_device(zero, "offload_optimizer"), _device(zero, "offload_param")),
        "clip_grad": bool(config.get("gradient_clipping")),
        "recipe": "deepspeed",
        "tp": tp,
    }
    optimizer_type = str(_section(config, "optimizer").get("type") or "").lower()
    if optimizer_type in _OPTIMIZERS:
        options["optimizer"] = _OPTIMIZERS[optimizer_type]
    if gpus:
        options["dp"] = max(1, gpus // tp)
    return options | _precision(config) | _buckets(zero) | _batches(config, options.get("dp"))


def _precision(config: Mapping[str, Any]) -> dict[str, Any]:
    """Type of the computation; nothing where ``auto`` leaves it to the script."""
    enabled = {name: _section(config, name).get("enabled") for name in ("bf16", "fp16")}
    on = [name for name, value in enabled.items() if value is True]
    if not on and "auto" in enabled.values():
        return {}
    dtype = on[0] if on else "fp32"
    return {"dtype": dtype, "master_weights": dtype != "fp32"}


def _buckets(zero: Mapping[str, Any]) -> dict[str, Any]:
    """What gradients are reduced in; 0 values for ``auto``."""
    options: dict[str, Any] = {}
    size = zero.get("reduce_bucket_size")
    if size == "auto":
        options["reduce_bucket_size"] = 0
    elif isinstance(size, int | float) and size >= 1:
        options["reduce_bucket_size"] = int(size)
    if zero.get("overlap_comm") is True and zero.get("stage") in (1, 2):
        options["overlap_comm"] = True
    return options


def _batches(config: Mapping[str, Any], dp: int | None) -> dict[str, int]:
    """Micro-batch and accumulation, of which one may follow from the whole batch."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    batch, micro, steps = (whole(config.get(name)) for name in names)
    if micro is None and batch and dp:
        micro = batch // (dp * (steps or 1))
    if steps is None and batch and dp and micro:
        steps = batch // (dp * micro)
    return {name: n for name, n in (("micro_batch", micro), ("accumulation", steps)) if n and n > 0}


def of_accelerate(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same from accelerate's YAML.

    Raises:
        ValueError: the settings stand in another file, or belong to Megatron-LM.
    """
    distributed_type, ranks = (
        str(config.get("distributed_type", "NO")),
        whole(config.get("num_processes")) or 1,
    )
    precision = str(config.get("mixed_precision") or "no")
    options: dict[str, Any] = {
        "dp": ranks,
        "dtype": precision if precision in ("bf16", "fp16", "fp8") else "fp32",
    }
    if options["dtype"] != "fp32":
        # accelerate computes in the other type and keeps the weights as they are
        options["weights"] = "fp32"
    if distributed_type == "MEGATRON_LM":
        raise ValueError(
            "Megatron-LM under accelerate takes its sizes from the script: "
            "check the training's own command"
        )
    if distributed_type == "DEEPSPEED":
        return options | _deepspeed_section(_section(config, "deepspeed_config"), options["dtype"])
    if distributed_type == "FSDP":
        options |= _fsdp_section(
            _section(config, "fsdp_config"), whole(config.get("num_machines")) or 1
        )
    elif ranks > 1:
        options["sharding"] = "ddp"
    return options | _mesh(_section(config, "parallelism_config"), ranks)


def _deepspeed_section(section: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    if section.get("deepspeed_config_file"):
        raise ValueError(
            f"its settings are in {section['deepspeed_config_file']}: validate that file"
        )
    options: dict[str, Any] = {
        "sharding": _of_stage(section.get("zero_stage", 2)),
        "recipe": "deepspeed",
        "weights": "",
    }
    options["offload"] = _offload(
        section.get("offload_optimizer_device"), section.get("offload_param_device")
    )
    if steps := whole(section.get("gradient_accumulation_steps")):
        options["accumulation"] = steps
    return options | {"master_weights": dtype != "fp32"}


def _fsdp_section(section: Mapping[str, Any], machines: int) -> dict[str, Any]:
    version = whole(section.get("fsdp_version")) or 1
    strategy = str(section.get("fsdp_sharding_strategy") or "FULL_SHARD")
    reshard = section.get("fsdp_reshard_after_forward", True)
    if isinstance(reshard, str):  # version 1 called the strategy so for a while
        if reshard in ("true", "false"):
            strategy, reshard = (strategy, reshard == "true")
        else:
            strategy, reshard = (reshard, True)
    options: dict[str, Any] = {
        "sharding": _FSDP.get(strategy, f"fsdp{version}"),
        "reshard_after_forward": bool(reshard) and strategy not in _GRADIENTS_ONLY,
        "offload": "all" if section.get("fsdp_offload_params") is True else "none",
        "checkpointing": "full" if section.get("fsdp_activation_checkpointing") is True else "none",
    }
    return options | ({"replicas": machines} if options["sharding"] == "hsdp" else {})


def _mesh(section: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    tp, cp = (whole(section.get(f"parallelism_config_{name}_size")) or 1 for name in ("tp", "cp"))
    if tp * cp > 1:
        return {"tp": tp, "cp": cp, "dp": max(1, ranks // (tp * cp))}
    return {}


def of_megatron(
    words: Sequence[str], world: int | None
) -> tuple[ModelShape | None, dict[str, Any]]:
    """Architecture and options, from Megatron-LM's flags; no shape where they tell a part."""
    megatron = read(words)
    tp, pp, cp = (
        megatron.number(f"--{name}-parallel-size")
        for name in ("tensor-model", "pipeline-model", "context")
    )
    dp = max(1, (world or tp * pp * cp) // (tp * pp * cp))
    micro = megatron.number("--micro-batch-size")
    options: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": megatron.number("--expert-model-parallel-size"),
        "etp": megatron.number("--expert-tensor-parallel-size", 0),
        "vpp": _chunks(megatron, pp),
        "dp": dp,
        "sequence_parallel": megatron.has("--sequence-parallel") and tp > 1,
        "sharding": _sharding(megatron),
        "micro_batch": micro,
        "accumulation": max(1, megatron.number("--global-batch-size", micro * dp) // (micro * dp)),
        "seq": megatron.number("--seq-length", 2048),
        "dtype": _dtype(megatron),
        "checkpointing": _recompute(megatron, words),
        "optimizer": _OPTIMIZERS.get(megatron.values.get("--optimizer", "adam"), "adamw"),
        "offload": "optimizer" if megatron.has("--optimizer-cpu-offload") else "none",
        "grad_dtype": "bf16" if megatron.has("--grad-reduce-in-bf16") else "fp32",
        "master_weights": _dtype(megatron) != "fp32",
        "attention": "flash",
        "recipe": "megatron",
    }
    return _shape(megatron), options


def _recompute(megatron: Arguments, words: Sequence[str]) -> str:
    """Selective recomputation of what is usual frees next to nothing beside flash attention: its
    default, ``core_attn``, and norms alone.
    """
    granularity = megatron.values.get("--recompute-granularity") or "none"
    if granularity != "selective":
        return granularity
    listed = words[words.index(_MODULES) + 1 :] if _MODULES in words else ()
    modules = set(takewhile(lambda word: not word.startswith("--"), listed))
    return "selective" if modules & {"mlp", "moe", "moe_act"} else "none"


def _shape(arguments: Arguments) -> ModelShape | None:
    vocab = arguments.number("--padded-vocab-size", 0) or arguments.number("--vocab-size", 0)
    if not vocab or not all(arguments.number(flag, 0) for flag in _NEEDED):
        return None
    hidden, heads = arguments.number("--hidden-size"), arguments.number("--num-attention-heads")
    gated = arguments.has("--swiglu")
    usual = hidden * 8 // 3 // 64 * 64 if gated else 4 * hidden
    experts = arguments.number("--num-experts", 0)
    shared = arguments.number("--moe-shared-expert-intermediate-size", 0)
    if experts:
        family = "mixtral"
    elif gated:
        family = "llama"
    else:
        family = "gpt2"
    if arguments.has("--group-query-attention"):
        kv_heads = arguments.number("--num-query-groups", heads)
    else:
        kv_heads = heads
    if experts:
        moe_ffn = arguments.number(
            "--moe-ffn-hidden-size", arguments.number("--ffn-hidden-size", usual)
        )
    else:
        moe_ffn = 0
    if arguments.has("--multi-latent-attention"):
        mla_kv_rank = arguments.number("--kv-lora-rank", 32)
    else:
        mla_kv_rank = 0
    return ModelShape(
        name="the command's model",
        family=family,
        hidden=hidden,
        layers=arguments.number("--num-layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=arguments.number("--kv-channels", 0),
        ffn=arguments.number("--ffn-hidden-size", usual),
        vocab=vocab,
        gated_mlp=gated,
        tied_embeddings=not arguments.has("--untie-embeddings-and-output-weights"),
        max_position=arguments.number("--max-position-embeddings", 0),
        experts=experts,
        top_k=arguments.number("--moe-router-topk", 2) if experts else 0,
        moe_ffn=moe_ffn,
        shared_experts=1 if shared else 0,
        shared_ffn=shared,
        mla_q_rank=arguments.number("--q-lora-rank", 0),
        mla_kv_rank=mla_kv_rank,
        mla_nope_dim=arguments.number("--qk-head-dim", 0),
        mla_rope_dim=arguments.number("--qk-pos-emb-head-dim", 0),
        mla_v_dim=arguments.number("--v-head-dim", 0),
        source="the command's flags",
    )


def _chunks(arguments: Arguments, pp: int) -> int:
    if arguments.has("--num-virtual-stages-per-pipeline-rank"):
        return arguments.number("--num-virtual-stages-per-pipeline-rank")
    per = arguments.number("--num-layers-per-virtual-pipeline-stage", 0)
    if per:
        return max(1, arguments.number("--num-layers") // pp // per)
    return 1


def _sharding(arguments: Arguments) -> str:
    if arguments.has("--use-megatron-fsdp"):
        kinds = {
            "optim": "zero1",
            "optim_grads": "zero2",
            "optim_grads_params": "zero3",
            "no_shard": "ddp",
        }
        return kinds.get(
            arguments.values.get("--data-parallel-sharding-strategy", "no_shard"), "ddp"
        )
    return "zero1" if arguments.has("--use-distributed-optimizer") else "ddp"


def _dtype(arguments: Arguments) -> str:
    if arguments.has("--fp8-format"):
        return "fp8"
    if arguments.has("--bf16"):
        return "bf16"
    if arguments.has("--fp16"):
        return "fp16"
    return "fp32"


def _of_stage(value: Any) -> str:
    stage = whole(value) or 0
    return f"zero{stage}" if 1 <= stage <= 3 else "ddp"


def _device(zero: Mapping[str, Any], name: str) -> Any:
    return _section(zero, name).get("device")


def _offload(optimizer: Any, parameters: Any) -> str:
    if parameters in _ON_HOST:
        return "all"
    if optimizer in _ON_HOST:
        return "optimizer"
    return "none"


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}
