"""What a training process takes on its GPU besides the allocator's segments: the CUDA context and
NCCL.

Constants, since neither is known to PyTorch. They are measured by others and vary with driver, GPU
and NCCL version.
"""

from __future__ import annotations

from gputop_analysis.parallelism.split import Split
from gputop_analysis.units import GIB
from gputop_analysis.vram.setup import Setup

CONTEXT = round(0.6 * GIB)
"""CUDA context with lazy kernels, cuBLAS and cuDNN handles: 0.5 to 0.9 GiB from A100 to H100."""
NCCL_FIRST = round(1.75 * GIB)
"""The first communicator with the buffers of its channels. In fms-acceleration's reference runs
(A100, PyTorch 2.4) the driver's view was at least 0.9 GiB above what was allocated on one GPU, and
at least 3.5 GiB on two.
"""
NCCL_NEXT = round(0.25 * GIB)
"""Each further group of ranks that communicates."""
NCCL_MOST = 3 * GIB
SOURCES = (
    "CUDA context 0.6 GiB: 0.5 to 0.9 GiB as published for A100 and H100 with "
    "lazy loading of kernels",
    "NCCL 1.75 GiB for the first group of ranks (fms-acceleration's reference runs), 0.25 for "
    "each further one",
)


def nccl(setup: Setup) -> int:
    """Bytes of NCCL's buffers by the groups of ranks that this setup has."""
    groups = communicators(setup.parallel)
    if groups:
        return min(NCCL_FIRST + NCCL_NEXT * (groups - 1), NCCL_MOST)
    return 0


def communicators(parallel: Split) -> int:
    """Groups of more than one rank."""
    degrees = (parallel.dp, parallel.tp, parallel.pp, parallel.cp, parallel.ep, parallel.replicas)
    return sum(degree > 1 for degree in degrees)
