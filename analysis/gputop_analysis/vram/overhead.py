"""What a training process takes on its GPU besides the allocator's segments: the CUDA context and NCCL.

Constants, since neither is known to PyTorch. They are measured by others and vary with driver, GPU and NCCL version.
"""

from __future__ import annotations

from gputop_analysis.vram.setup import Parallel, Setup

GIB = 1 << 30
CONTEXT = round(0.6 * GIB)
"""CUDA context with lazily loaded kernels, cuBLAS and cuDNN handles: 0.5 to 0.9 GiB from A100 to H100."""
NCCL_FIRST = round(0.9 * GIB)
"""First communicator with its channels' buffers within a node."""
NCCL_NEXT = round(0.25 * GIB)
"""Each further group of ranks that communicates."""
NCCL_MOST = 2 * GIB
SOURCES = (
    "CUDA context 0.6 GiB: 0.5 to 0.9 GiB as published for A100 and H100 with lazy loading of kernels",
    "NCCL 0.9 GiB for the first group of ranks, 0.25 for each further one, at most 2: 1 to 2 GiB as published",
)


def nccl(setup: Setup) -> int:
    """Bytes of NCCL's buffers by the groups of ranks that this setup has."""
    groups = communicators(setup.parallel)
    return min(NCCL_FIRST + NCCL_NEXT * (groups - 1), NCCL_MOST) if groups else 0


def communicators(parallel: Parallel) -> int:
    """Groups of more than one rank."""
    degrees = (parallel.dp, parallel.tp, parallel.pp, parallel.cp, parallel.ep, parallel.replicas)
    return sum(degree > 1 for degree in degrees)
