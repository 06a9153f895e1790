"""torchrun, on one node and on several.

Under the c10d backend ``--node-rank`` is ignored and an endpoint of localhost would give each node
a world of its own, so the endpoint is a name that all nodes know.
"""

from __future__ import annotations

from collections.abc import Sequence

from gputop_analysis.launch.strategy import Launch, Strategy
from gputop_analysis.text import counted

PORT = 29500


def torchrun(
    strategy: Strategy, words: Sequence[str], job: str = "train", host: str = "$MASTER_ADDR"
) -> list[str]:
    """The launcher's own words before ``words`` (a script with its arguments, or ``-m module``)."""
    command = ["torchrun", "--nproc-per-node", str(strategy.gpus_per_node)]
    if strategy.nodes == 1:
        return [*command, "--standalone", *words]
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host}:{PORT}", "--rdzv-id", job]
    return [*command, "--nnodes", str(strategy.nodes), *rendezvous, *words]


def several_nodes(strategy: Strategy) -> tuple[str, ...]:
    """What to know before starting it on more than one node."""
    if strategy.nodes == 1:
        return ()
    return (
        f"run the same command on each of the {strategy.nodes} nodes, with MASTER_ADDR set to the "
        "first one's name: not localhost, which would make a world of its own on every node",
    )


def emit(strategy: Strategy) -> Launch:
    """The command; how the model is split is the script's own doing."""
    strategy.check()
    notes = several_nodes(strategy)
    wrapper = {
        0: "DDP",
        1: "ZeroRedundancyOptimizer",
        2: "FSDP with reshard_after_forward=False",
    }.get(strategy.split.stage)
    wrapper = wrapper or (
        "FSDP (fully_shard)" if strategy.split.replicas == 1 else "HSDP (fully_shard on a 2-d mesh)"
    )
    copies = {
        "dp_replicate": strategy.split.replicas,
        "dp_shard": strategy.split.dp // strategy.split.replicas,
    }
    if strategy.split.stage == 3 and strategy.split.replicas > 1:
        data = copies
    else:
        data = {"dp": strategy.split.dp}
    mesh = {"pp": strategy.split.pp, **data, "cp": strategy.split.cp, "tp": strategy.split.tp}
    shape = ", ".join(f"{name}={size}" for name, size in mesh.items() if size > 1) or "dp=1"
    notes += (
        f"torchrun only starts the ranks: {strategy.script} has to build the mesh ({shape}), "
        f"apply {wrapper}, and take micro-batches of {counted(strategy.micro_batch, 'sequence')}, "
        f"{strategy.accumulation} per optimizer step",
    )
    return Launch(
        "torchrun", tuple(torchrun(strategy, [strategy.script, *strategy.arguments])), notes=notes
    )
