"""Snapshots of the CUDA caching allocator: who holds the peak, what lies idle, what other settings
would reserve.

``load(path)`` reads a file of ``torch.cuda.memory._dump_snapshot``, ``analyse(history)`` judges one
GPU of it.
"""

from __future__ import annotations

from gputop_analysis.snapshots.load import AllocatorSnapshot, SnapshotError, load

__all__ = ["AllocatorSnapshot", "SnapshotError", "load"]
