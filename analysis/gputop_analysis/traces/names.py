"""Names and categories of a trace's events, and what they mean."""

from __future__ import annotations

import re
from functools import lru_cache

KERNEL, COPY, LAUNCH, OP, MARK = range(5)

KINDS = {
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "gpu_memset": COPY,
    "memcpy": COPY,
    "memset": COPY,
    "cuda_runtime": LAUNCH,
    "cuda_driver": LAUNCH,
    "hip_runtime": LAUNCH,
    "xpu_runtime": LAUNCH,
    "xpu_driver": LAUNCH,
    "mtia_runtime": LAUNCH,
    "privateuse1_runtime": LAUNCH,
    "privateuse1_driver": LAUNCH,
    "runtime": LAUNCH,
    "driver": LAUNCH,
    "cpu_op": OP,
    "operator": OP,
    "user_annotation": MARK,
}
"""Categories in lower case, of Kineto up to torch 1.11 and later; no others are read."""

STEP = "ProfilerStep#"

_COMM_KERNEL = re.compile(
    "|".join(
        (
            r"(?:\bn|\br|\bone|\bms)ccl",
            r"multimem_all_|(?:one|two)_?shot_?all_?|(?:nv|roc)shmem",
            # vLLM, aiter, FlashInfer, QuickReduce
            r"cross_device_(?:reduce|store)|all_?reduce_(?:fusion|prototype)",
            # DeepEP, MoRI, TensorRT-LLM: tokens to experts and back
            r"ep::(?:intra|inter)node|\bEp(?:Dispatch|Combine)|moeA2A(?:Dispatch|Combine)",
            # Transformer Engine
            r"userbuffers_",
        )
    ),
    re.IGNORECASE,
)
_COMM_OP = re.compile(r"c10d::|_?c10d_functional::|record_param_comms$")
_COMM_MARK = re.compile(r"(?:gloo|mpi|ucc|xccl|nccl):\w+")
_VERBS = tuple(
    (re.compile(pattern, re.IGNORECASE), verb)
    for pattern, verb in (
        (r"all_?reduce", "all_reduce"),
        (r"reduce_?scatter", "reduce_scatter"),
        (r"all_?gather", "all_gather"),
        (r"all_?to_?all", "all_to_all"),
        (r"userbuffers", "userbuffers"),
        (r"send_?recv", "send_recv"),
        (r"broadcast", "broadcast"),
        (r"barrier", "barrier"),
        (r"scatter", "scatter"),
        (r"gather", "gather"),
        (r"reduce", "reduce"),
        (r"send", "send"),
        (r"recv", "recv"),
        (r"dispatch", "dispatch"),
        (r"combine", "combine"),
    )
)

_ELEMENT_BYTES = {
    "double": 8,
    "long": 8,
    "float": 4,
    "int": 4,
    "half": 2,
    "bfloat16": 2,
    "short": 2,
}

ATTENTION = {
    "aten::_scaled_dot_product_attention_math": "math",
    "aten::_scaled_dot_product_attention_math_for_mps": "math",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_scaled_dot_product_efficient_attention": "memory-efficient",
    "aten::_scaled_dot_product_cudnn_attention": "cuDNN",
}
"""The operators behind ``scaled_dot_product_attention``; torch 2.0 and later."""


@lru_cache(maxsize=4096)
def is_comm_kernel(name: str) -> bool:
    """Whether a kernel moves data between ranks: by a library of collectives, shared memory of
    several GPUs, or an exchange of experts' tokens.
    """
    return _COMM_KERNEL.search(name) is not None


def is_comm_op(name: str) -> bool:
    """Whether a host operator starts or awaits a collective."""
    return _COMM_OP.match(name) is not None


def is_comm_mark(name: str) -> bool:
    """Whether an annotation spans a collective, as ``gloo:all_reduce`` does."""
    return _COMM_MARK.fullmatch(name) is not None


def collective(name: str) -> str:
    """``all_reduce`` for ``ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)``; the bare name where none
    is known.

    ``ncclDevKernel_Generic`` tells nothing, but its arguments may (``Collective name``).
    """
    bare = name.split("(")[0].split("<")[0]
    return next((verb for pattern, verb in _VERBS if pattern.search(bare)), bare)


def message_bytes(args: dict[str, object]) -> int:
    """Bytes of a collective by its arguments, the larger of in and out; -1: not given."""
    counts = []
    for key in ("In msg nelems", "Out msg nelems"):
        if isinstance(args.get(key), int):
            counts.append(args[key])
    size = _element_bytes(str(args.get("dtype", "")).lower())
    # type: ignore[type-var, operator]
    if counts and size:
        return max(counts) * size
    return -1


def _element_bytes(dtype: str) -> int:
    if dtype.startswith("float8") or dtype in ("byte", "char", "bool"):
        return 1
    return _ELEMENT_BYTES.get(dtype, 0)
