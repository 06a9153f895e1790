"""All launchers by name."""

from __future__ import annotations

from collections.abc import Callable

from gputop_analysis.launch import accelerate, deepspeed, megatron, slurm, torchrun, torchtitan
from gputop_analysis.launch.strategy import Launch, NotPossible, Strategy

LAUNCHERS: dict[str, Callable[[Strategy], Launch]] = {
    "torchrun": torchrun.emit,
    "accelerate": accelerate.emit,
    "deepspeed": deepspeed.emit,
    "megatron": megatron.emit,
    "torchtitan": torchtitan.emit,
}


def emit(strategy: Strategy, launcher: str = "torchrun", on_slurm: bool = False) -> Launch:
    """Command, files and notes.

    Raises:
        ValueError: the strategy is impossible, or this launcher cannot express it; the message says the rule.
        LookupError: no such launcher.
    """
    if launcher not in LAUNCHERS:
        raise LookupError(f"no launcher {launcher!r}: {', '.join(LAUNCHERS)}")
    if strategy.split.zero_bubble and launcher != "torchtitan":
        raise NotPossible(
            f"{launcher} has no zero-bubble schedule: emit it for torchtitan, or plan with --schedule 1f1b"
        )
    launch = LAUNCHERS[launcher](strategy)
    return slurm.wrap(launch, strategy) if on_slurm else launch
