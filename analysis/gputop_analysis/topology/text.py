"""The matrix and what it means, for a terminal."""

from __future__ import annotations

from gputop_analysis.text import wrap
from gputop_analysis.topology.model import CODES, Topology, advice


def as_text(topology: Topology, width: int = 80) -> str:
    """A node's links as `nvidia-smi topo -m` draws them, codes that occur, and the advice."""
    head = f"{len(topology.gpus)} x {topology.gpu_model or 'GPU'}" + (
        f", NVLink domain of {topology.domain}" if topology.domain else ""
    )
    lines = [
        head,
        *wrap(f"from {topology.source}", width),
        "",
        *matrix(topology, width),
        "",
    ]
    codes = {code for row in topology.links for code in row} - {"X"}
    for code, meaning in CODES.items():
        if code in codes:
            lines.append(f"  {code:<5} {meaning}")
    if any(code.startswith("NV") for code in codes):
        lines.append("  NV#   so many NVLinks")
    if topology.nics:
        rate = ""
        if topology.nic_gbit:
            rate = f", {topology.nic_gbit:g} Gbit/s in all"
        lines += ["", f"network: {len(topology.nics)} x {topology.network or 'card'}{rate}"]
    lines.append("")
    for sentence in (*advice(topology), *topology.notes):
        lines += wrap(sentence, width, initial_indent="- ", subsequent_indent="  ")
    return "\n".join(lines)


def matrix(topology: Topology, width: int) -> list[str]:
    """One line a GPU. Cards that would not fit are left out; NUMA nodes and CPUs come last."""
    names = [*topology.gpus, *topology.nics]
    if 7 + 7 * len(names) <= width:
        shown = names
    else:
        shown = list(topology.gpus)
    cell = min(7, max(5, (width - 6) // max(len(shown), 1)))
    lines = [(" " * 6 + "".join(f"{name[: cell - 1]:>{cell}}" for name in shown))[:width]]
    for gpu, name in enumerate(topology.gpus):
        line = f"{name:<6}" + "".join(
            f"{topology.links[gpu][other]:>{cell}}" for other in range(len(shown))
        )
        behind = [
            f"  NUMA {topology.numa[gpu]}"
            if topology.numa and topology.numa[gpu] is not None
            else ""
        ]
        behind += [f"  CPUs {topology.cpus[gpu]}" if topology.cpus and topology.cpus[gpu] else ""]
        for part in behind:
            if len(line) + len(part) <= width:
                line += part
        lines.append(line[:width])
    if len(shown) < len(names):
        near = ", ".join(
            f"{name} {topology.nearest_nic(gpu)}" for gpu, name in enumerate(topology.gpus)
        )
        lines += wrap(f"nearest card: {near}", width)
    return lines
