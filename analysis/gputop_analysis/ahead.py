"""Steps that one rank made before the ranks trained together, as of a model that rank 0 tries out:
its step 19 is then the others' step 16.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def steps_ahead(progress: Iterable[dict[str, Any]]) -> dict[int, int]:
    """By rank, the steps by which it is ahead of the rank that has made the fewest alone.

    Args:
        progress: ``ddp_progress`` events of all ranks. A rank that has none, or whose steps and
            DDP's iterations do not go on together, as with micro-batches, tells nothing: then no
            rank is ahead.
    """
    alone: dict[int, set[int]] = {}
    for event in progress:
        if event.get("iterations"):
            steps = int(event["step"]) - int(event["iterations"])
            alone.setdefault(int(event.get("rank", 0)), set()).add(steps)
    if not alone or any(len(counts) > 1 for counts in alone.values()):
        return {}
    steps_alone = {rank: counts.pop() for rank, counts in alone.items()}
    fewest = min(steps_alone.values())
    return {rank: steps - fewest for rank, steps in steps_alone.items()}
