"""The table of launchers, for the command line, the strategy screen and their refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gputop_analysis.launch import accelerate, deepspeed, megatron, slurm, torchrun, torchtitan
from gputop_analysis.launch.strategy import Launch, NotPossible, Strategy


class Launcher(NamedTuple):
    """What starts a training on all its ranks."""

    emit: Callable[[Strategy], Launch]
    """Command, files and notes of a strategy; raises ``NotPossible`` for what it cannot express."""
    zero_bubble: bool = False
    """Whether it has a zero-bubble pipeline schedule."""
    replicas: bool = True
    """Whether it can shard within groups and replicate over them (HSDP)."""
    goes_over_ssh: bool = False
    """Whether it reaches the other nodes by itself: it cannot be started by SLURM."""
    exports: str = ""
    """Lines that an sbatch script needs before it."""


LAUNCHERS: dict[str, Launcher] = {
    "torchrun": Launcher(torchrun.emit),
    "accelerate": Launcher(accelerate.emit),
    "deepspeed": Launcher(deepspeed.emit, replicas=False, goes_over_ssh=True),
    "megatron": Launcher(megatron.emit, exports="export CUDA_DEVICE_MAX_CONNECTIONS=1\n"),
    "torchtitan": Launcher(torchtitan.emit, zero_bubble=True),
}


def emit(strategy: Strategy, name: str = "torchrun", on_slurm: bool = False) -> Launch:
    """Command, files and notes.

    Raises:
        ValueError: the strategy is impossible, or this launcher cannot express it; the message says
            the rule.
        LookupError: no such launcher.
    """
    if name not in LAUNCHERS:
        raise LookupError(f"no launcher {name!r}: {', '.join(LAUNCHERS)}")
    launcher = LAUNCHERS[name]
    if strategy.split.zero_bubble and not launcher.zero_bubble:
        alternatives = " or ".join(other for other, row in LAUNCHERS.items() if row.zero_bubble)
        raise NotPossible(
            f"{name} has no zero-bubble schedule: emit it for "
            f"{alternatives}, or plan with --schedule 1f1b"
        )
    launch = launcher.emit(strategy)
    if not on_slurm:
        return launch
    if launcher.goes_over_ssh:
        raise NotPossible(
            f"{name}'s launcher goes over ssh: on SLURM start the script by torchrun or accelerate"
        )
    return slurm.wrap(launch, strategy, launcher.exports)
