"""An estimate's answer, the same from every tier. Sizes are bytes, in JSON GiB (2^30)."""

from __future__ import annotations

from dataclasses import dataclass, field

TIERS = ("trace", "profile", "formula")
CATEGORIES = (
    "weights",
    "gradients",
    "optimizer",
    "master_weights",
    "activations",
    "logits_loss",
    "communication",
    "temporaries",
)
"""What memory is held for; the breakdown at the peak has one line for each that is not empty."""


@dataclass(frozen=True, slots=True)
class Peak:
    """What a tier computes; bytes on the one GPU that needs the most."""

    tier: str
    allocated: int
    """Peak of ``torch.cuda.max_memory_allocated()``."""
    reserved: int
    """Peak of ``torch.cuda.max_memory_reserved()``."""
    breakdown: dict[str, int]
    """By ``CATEGORIES``, at the moment of the allocated peak; sums to ``allocated`` exactly."""
    operation: str
    """The operation that reached the allocated peak, as ``phase: module: operator``."""
    phases: dict[str, int] = field(default_factory=dict)
    """Highest allocated bytes in each phase of a step: forward, loss, backward, clip, optimizer."""
    timeline: tuple[tuple[float, int], ...] = ()
    """(share of the step's events, allocated bytes) of one step, at most 200 points."""
    layers: tuple[tuple[str, int], ...] = ()
    """Activation bytes held for each layer at the end of the forward, where the tier knows."""
    sources: tuple[str, ...] = ()
    """Where the numbers come from: versions, papers and equations, profile."""
    notes: tuple[str, ...] = ()
    """What was assumed or left out, each in a sentence."""
    fragmentation: int = 0
    """Reserved and not allocated when the reserved peak was reached."""
    least: int = 0
    """Least reserved bytes with which the step runs, by a tier without replay; 0: not known."""
    retries: int = 0
    """How often everything cached was given back because the GPU was full; only with a capacity."""
    oom: str = ""
    """The operation that ran out of memory, as ``phase: module: operator``; with a capacity."""
