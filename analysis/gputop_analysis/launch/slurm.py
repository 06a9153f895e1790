"""An sbatch script around another launcher's command: a task a node starts its ranks."""

from __future__ import annotations

from dataclasses import replace

from gputop_analysis.launch.shell import folded
from gputop_analysis.launch.strategy import Launch, Strategy

FILE = "train.sbatch"
_TEMPLATE = """#!/bin/bash
#SBATCH --job-name={job}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --cpus-per-task={cpus}
#SBATCH --exclusive
#SBATCH --output=%x-%j.log

set -euo pipefail
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR
{exports}
# One task a node: the launcher starts the ranks itself. A node that fails ends the job.
srun --kill-on-bad-exit=1 bash -c '{body}'
"""
CPUS_PER_GPU = 8


def wrap(launch: Launch, strategy: Strategy, exports: str = "", job: str = "train") -> Launch:
    """The sbatch script for a command typed on each node; ``exports``: lines before it."""
    words = ["$SLURM_PROCID" if word == "$MACHINE_RANK" else word for word in launch.command]
    body = folded(words, indent="  ").replace("'", "'\\''")
    text = _TEMPLATE.format(
        job=job,
        nodes=strategy.nodes,
        gpus=strategy.gpus_per_node,
        cpus=CPUS_PER_GPU * strategy.gpus_per_node,
        exports=exports,
        body=body,
    )
    notes = [note for note in launch.notes if "MASTER_ADDR" not in note]
    notes.append(
        f"{CPUS_PER_GPU} CPUs a GPU are asked for: set --cpus-per-task to what your nodes have"
    )
    return replace(
        launch,
        launcher=f"slurm+{launch.launcher}",
        command=("sbatch", FILE),
        files={**launch.files, FILE: text},
        notes=tuple(notes),
    )
