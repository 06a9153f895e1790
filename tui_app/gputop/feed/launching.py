"""A line of the strategy table as what to type and what to save first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gputop.feed.planning import Ask
    from gputop_analysis.launch.strategy import Strategy
    from gputop_analysis.planner.choices import Choice


COMMAND = "launch.sh"
"""The file that a command is saved as."""


def launch_text(
    ask: Ask, chosen: Choice, launcher: str, width: int
) -> tuple[str, str, dict[str, str]]:
    """Command and files, below them what to know, and what there is to save by file name.

    Raises:
        ValueError: the launcher cannot express the split; the message says which can.
    """
    from gputop_analysis.launch.emit import emit
    from gputop_analysis.launch.shell import folded
    from gputop_analysis.text import wrap

    launch = emit(strategy_of(ask, chosen), launcher)
    files = "".join(f"\n\n# {name}\n{text}" for name, text in launch.files.items())
    bullets = {"initial_indent": "- ", "subsequent_indent": "  "}
    notes = "\n".join(line for note in launch.notes for line in wrap(note, width, **bullets))
    shell = f"#!/bin/sh\nset -eu\n{folded(launch.command)}\n"
    return (
        folded(launch.command, width=width) + files,
        "\n\n" + notes if notes else "",
        {COMMAND: shell, **launch.files},
    )


def strategy_of(ask: Ask, chosen: Choice) -> Strategy:
    """The split with what is trained, as the launchers take it."""
    from gputop_analysis.launch.strategy import Strategy
    from gputop_analysis.planner.hardware import cluster

    per_node = min(cluster(ask.gpu, ask.gpus).gpus_per_node, ask.gpus)
    training = {
        "global_batch": ask.global_batch,
        "seq": ask.seq,
        "dtype": ask.dtype,
        "model": ask.model,
    }
    return Strategy.of_layout(chosen.layout, max(1, ask.gpus // per_node), per_node, **training)
