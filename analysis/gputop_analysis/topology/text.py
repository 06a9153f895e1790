"""The matrix and what it means, for a terminal."""

from __future__ import annotations

import textwrap

from gputop_analysis.topology.model import CODES, Topology, advice


def as_text(one: Topology, width: int = 80) -> str:
    """The links of a node as `nvidia-smi topo -m` draws them, the codes that occur, and the advice."""
    head = f"{len(one.gpus)} x {one.gpu_model or 'GPU'}" + (f", NVLink domain of {one.domain}" if one.domain else "")
    lines = [head, *textwrap.wrap(f"from {one.source}", width), "", *matrix(one, width), ""]
    seen = {code for row in one.links for code in row} - {"X"}
    lines += [f"  {code:<5} {meaning}" for code, meaning in CODES.items() if code in seen]
    if any(code.startswith("NV") for code in seen):
        lines.append("  NV#   so many NVLinks")
    if one.nics:
        rate = f", {one.nic_gbit:g} Gbit/s in all" if one.nic_gbit else ""
        lines += ["", f"network: {len(one.nics)} x {one.network or 'card'}{rate}"]
    lines.append("")
    for said in (*advice(one), *one.notes):
        lines += textwrap.wrap(said, width, initial_indent="- ", subsequent_indent="  ")
    return "\n".join(lines)


def matrix(one: Topology, width: int) -> list[str]:
    """One line a GPU. Cards are left out where they would not fit; NUMA nodes and CPUs stand behind."""
    names = [*one.gpus, *one.nics]
    shown = names if 7 + 7 * len(names) <= width else list(one.gpus)
    cell = min(7, max(5, (width - 6) // max(len(shown), 1)))
    lines = [(" " * 6 + "".join(f"{name[: cell - 1]:>{cell}}" for name in shown))[:width]]
    for gpu, name in enumerate(one.gpus):
        line = f"{name:<6}" + "".join(f"{one.links[gpu][other]:>{cell}}" for other in range(len(shown)))
        behind = [f"   NUMA {one.numa[gpu]}" if one.numa and one.numa[gpu] is not None else ""]
        behind += [f"   CPUs {one.cpus[gpu]}" if one.cpus and one.cpus[gpu] else ""]
        for part in behind:
            line += part if len(line) + len(part) <= width else ""
        lines.append(line[:width])
    if len(shown) < len(names):
        near = ", ".join(f"{name} {one.nearest_nic(gpu)}" for gpu, name in enumerate(one.gpus))
        lines += textwrap.wrap(f"nearest card: {near}", width)
    return lines
