"""Megatron-LM's `pretrain_gpt.py` under torchrun: arguments of a strategy and a shape."""

from __future__ import annotations

from gputop_analysis.launch.strategy import Launch, NotPossible, Strategy
from gputop_analysis.launch.torchrun import several_nodes, torchrun
from gputop_analysis.parallelism.split import chunk_layers
from gputop_analysis.vram.formula.discarded import modules_of
from gputop_analysis.vram.setup import ModelShape

SCRIPT = "pretrain_gpt.py"
_DATA = ("--mock-data", "--tokenizer-type", "NullTokenizer")


def emit(strategy: Strategy) -> Launch:
    """The whole command, on mock data so that it runs before the real data is there.

    Raises:
        NotPossible: the model's shape is not known, or is no decoder.
    """
    strategy.check()
    model = strategy.model
    if model is None or not (model.hidden and model.layers and model.heads and model.vocab):
        raise NotPossible("Megatron-LM needs the model's shape: give --model")
    words = [
        SCRIPT,
        *parallel(strategy),
        *shape(model, strategy.seq),
        *training(strategy),
        *_data(model),
    ]
    notes = (
        *several_nodes(strategy),
        "CUDA_DEVICE_MAX_CONNECTIONS=1 is needed with tp or cp above 1 on GPUs before Blackwell",
        "replace --mock-data and the NullTokenizer by --data-path and your tokenizer",
    )
    return Launch("megatron", tuple(torchrun(strategy, words)), notes=notes)


def parallel(strategy: Strategy) -> list[str]:
    """How the training is split."""
    sizes = {
        "--tensor-model-parallel-size": strategy.split.tp,
        "--pipeline-model-parallel-size": strategy.split.pp,
        "--context-parallel-size": strategy.split.cp,
        "--expert-model-parallel-size": strategy.split.ep,
    }
    words = [word for flag, size in sizes.items() if size > 1 for word in (flag, str(size))]
    if strategy.split.ep > 1 and strategy.split.tp > 1:
        words += ["--expert-tensor-parallel-size", str(strategy.split.expert_tp)]
    words += _stages(strategy)
    if strategy.split.sequence_parallel and strategy.split.tp > 1:
        words += ["--sequence-parallel"]
    if strategy.split.stage == 1:
        words += ["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"]
    elif strategy.split.stage >= 2:
        if strategy.split.stage == 2:
            strategy_name = "optim_grads"
        else:
            strategy_name = "optim_grads_params"
        words += [
            "--use-megatron-fsdp",
            "--data-parallel-sharding-strategy",
            strategy_name,
            "--use-distributed-optimizer",
        ]
        words += ["--ckpt-format", "fsdp_dtensor"]
        if strategy.split.replicas > 1:
            words += ["--num-distributed-optimizer-instances", str(strategy.split.replicas)]
            words += ["--outer-dp-sharding-strategy", "no_shard"]
    return words


def _stages(strategy: Strategy) -> list[str]:
    """Chunks of pipeline stages; where the layers do not divide, what each of them holds:
    ``E`` the embedding, ``t`` a layer, ``L`` the loss.
    """
    split, model = strategy.split, strategy.model
    chunks = split.pp * split.vpp
    if model is not None and chunks > 1 and model.layers % chunks:
        layers = "|".join("t" * count for count in chunk_layers(model.layers, chunks))
        return ["--pipeline-model-parallel-layout", f"E{layers}L"]
    if split.vpp > 1:
        return ["--num-virtual-stages-per-pipeline-rank", str(split.vpp)]
    return []


def shape(model: ModelShape, seq: int) -> list[str]:
    """The architecture."""
    words = ["--num-layers", str(model.layers), "--hidden-size", str(model.hidden)]
    words += ["--ffn-hidden-size", str(model.ffn), "--num-attention-heads", str(model.heads)]
    if model.head_dim and model.head_dim * model.heads != model.hidden and not model.mla_kv_rank:
        words += ["--kv-channels", str(model.head_dim)]
    if model.kv_heads and model.kv_heads != model.heads and not model.mla_kv_rank:
        words += ["--group-query-attention", "--num-query-groups", str(model.kv_heads)]
    words += [
        "--seq-length",
        str(seq),
        "--max-position-embeddings",
        str(max(model.max_position, seq)),
    ]
    if model.gated_mlp:
        words += [
            "--swiglu",
            "--normalization",
            "RMSNorm",
            "--position-embedding-type",
            "rope",
            "--disable-bias-linear",
        ]
    if not model.tied_embeddings:
        words += ["--untie-embeddings-and-output-weights"]
    return [*words, *_latent(model), *_experts(model)]


def _latent(model: ModelShape) -> list[str]:
    if not model.mla_kv_rank:
        return []
    sizes = {
        "--q-lora-rank": model.mla_q_rank,
        "--kv-lora-rank": model.mla_kv_rank,
        "--qk-head-dim": model.mla_nope_dim,
        "--qk-pos-emb-head-dim": model.mla_rope_dim,
        "--v-head-dim": model.mla_v_dim,
    }
    return [
        "--multi-latent-attention",
        *(word for flag, size in sizes.items() if size for word in (flag, str(size))),
    ]


def _experts(model: ModelShape) -> list[str]:
    if not model.experts:
        return []
    words = [
        "--num-experts",
        str(model.experts),
        "--moe-router-topk",
        str(model.top_k or 2),
        "--moe-grouped-gemm",
    ]
    words += [
        "--moe-ffn-hidden-size",
        str(model.moe_ffn or model.ffn),
        "--moe-token-dispatcher-type",
        "alltoall",
    ]
    if shared := model.shared_experts * (model.shared_ffn or model.moe_ffn or model.ffn):
        words += ["--moe-shared-expert-intermediate-size", str(shared)]
    if model.first_dense_layers:
        pattern = f"([0]*{model.first_dense_layers}+[1]*{model.layers - model.first_dense_layers})"
        words += ["--moe-layer-freq", pattern]
    return words


def training(strategy: Strategy) -> list[str]:
    """Batch, precision, recomputation, length."""
    words = [
        "--micro-batch-size",
        str(strategy.micro_batch),
        "--global-batch-size",
        str(strategy.global_batch),
    ]
    if strategy.dtype in ("bf16", "fp8"):
        words += ["--bf16"]
    elif strategy.dtype == "fp16":
        words += ["--fp16"]
    if strategy.dtype == "fp8":
        words += ["--fp8-format", "hybrid"]
    if strategy.recompute == "selective":
        words += ["--recompute-granularity", "selective"]  # takes no method
        words += ["--recompute-modules", *modules_of(strategy.model)]
    if strategy.recompute == "full":
        words += [
            "--recompute-granularity",
            "full",
            "--recompute-method",
            "uniform",
            "--recompute-num-layers",
            "1",
        ]
    return [*words, "--train-iters", str(strategy.steps), "--lr", f"{strategy.learning_rate:g}"]


def _data(model: ModelShape) -> list[str]:
    return [*_DATA, "--vocab-size", str(model.vocab)]
