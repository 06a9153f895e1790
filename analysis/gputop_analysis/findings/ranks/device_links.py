"""Links between devices, and devices that nobody uses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gputop_analysis.findings.advice import DISTRIBUTED, Option
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.thermal.per_device import per_device
from gputop_analysis.gpu_samples import ENOUGH_SAMPLES, Device, devices
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.view import RunView

SLOW_LINK = 0.7
IDLE_S, IDLE_PCT = 300.0, 1.0


@finding(
    id="CR09",
    name="slow link",
    family="ranks",
    cause="comm",
    trigger=f"a busy GPU's PCIe link (generation x width) offers less than {SLOW_LINK:g} of what "
    "its peers' links do",
    fix="reseat the GPU or its riser, look at the slot",
    no_use="where the machine is not yours to mend: whoever runs it must",
    reads="gpu.pcie_gen and pcie_width of busy GPUs",
    silent="no GPU; no peers to compare with",
    traps="a link's generation drops while it idles",
)
@per_device
def slow_link(view: RunView, spec: Spec) -> Iterator[Finding]:
    """A device behind a narrower link than its peers. Idle links fall back: busy samples count."""
    links = [(device, speed) for device in devices(view) if (speed := _speed(device)) > 0]
    for device, speed in links:
        peers = [other for link, other in links if link is not device and link.name == device.name]
        typical = float(np.median(peers)) if peers else 0.0
        if not speed < SLOW_LINK * typical:
            continue
        gen, width = (int(np.median(device.busy[column])) for column in ("pcie_gen", "pcie_width"))
        yield spec.make(
            severity="medium",
            title=f"{device.label} has a PCIe link of gen {gen} x{width}: "
            f"{100 * speed / typical:.0f} % of its peers'",
            evidence=f"PCIe gen {gen} x{width} in {len(device.busy):,} busy samples, about "
            f"{speed:.0f} GB/s a direction; the peers' links offer {typical:.0f} GB/s",
            fix="reseat the GPU or its riser and look at the slot (`nvidia-smi topo -m`, `lspci "
            "-vv`): copies to the device and sums over PCIe take that much longer",
            rank=device.rank,
            gpu=device.index,
            host=device.host or None,
            confidence=0.8,
            proof=Proof(
                statistic="bandwidth of its PCIe link / median of its peers'",
                value=speed / typical,
                threshold=SLOW_LINK,
                unit="",
                formula="bandwidth = lanes x rate of the generation, 0.985 GB/s a lane for gen 3, "
                "doubled with each generation",
                inputs=(
                    Input(
                        "link",
                        f"gen {gen} x{width}",
                        "",
                        f"gpu.pcie_gen, gpu.pcie_width, {device.label}, busy",
                    ),
                    Input("peers", typical, "GB/s", f"{len(peers)} devices of the same name"),
                ),
            ),
        )


@finding(
    id="CR11",
    name="idle GPUs",
    family="ranks",
    cause="comm",
    trigger=f"a GPU that the run may use stays below {IDLE_PCT:g} % for {IDLE_S / 60:g} minutes "
    "while others of the run work",
    fix="torchrun --nproc-per-node with the number of GPUs",
    no_use="more ranks: without a process group",
    reads="gpu.util_pct of GPUs visible to the job",
    silent="fewer than 5 minutes; no GPU",
    traps="a GPU kept for evaluation",
)
def idle_gpus(view: RunView, spec: Spec) -> Finding | None:
    """Devices that were paid for and not used."""
    unused: list[int] = []
    working = 0
    for host in view.record.hosts.values():
        rows = np.asarray(host.gpu.rows[-50_000:])
        rows = rows[rows["t_ns"] >= view.from_ns]
        for index in np.unique(rows["index"]):
            own_rows = rows[(rows["index"] == index) & np.isfinite(rows["util_pct"])]
            long_enough = (
                len(own_rows) > 1
                and float(own_rows["t_ns"][-1] - own_rows["t_ns"][0]) >= IDLE_S * 1e9
            )
            working += bool(len(own_rows) and own_rows["util_pct"].mean() > 10)
            foreign = bool((own_rows["memory_foreign_bytes"] > 0).any())
            if long_enough and float(own_rows["util_pct"].max()) < IDLE_PCT and not foreign:
                unused.append(int(index))
    if not unused or not working:
        return None
    total = working + len(unused)
    return spec.make(
        severity="medium",
        title=f"{len(unused)} of {total} visible GPUs do nothing: {', '.join(map(str, unused))}",
        evidence=f"GPUs {', '.join(map(str, unused))} stayed below {IDLE_PCT:.0f} % for "
        f"{IDLE_S / 60:.0f} minutes; {working} of this run work",
        fix=(
            Option(f"torchrun --nproc-per-node={total} train.py", needs=(DISTRIBUTED,)),
            "hide them from the job (CUDA_VISIBLE_DEVICES) for others",
        ),
        confidence=0.8,
        proof=Proof(
            statistic="GPUs visible to the run whose utilisation never reached 1 %",
            value=len(unused),
            threshold=0,
            unit="GPUs",
            formula="each was sampled for at least 5 minutes",
            inputs=(
                Input("idle", ", ".join(map(str, unused)), "", "gpu.util_pct"),
                Input("working", working, "GPUs", "gpu.util_pct, mean above 10 %"),
            ),
        ),
    )


def _speed(device: Device) -> float:
    """GB/s a direction of the PCIe link while busy; 0 where it is not told."""
    rows = device.busy[(device.busy["pcie_gen"] > 0) & (device.busy["pcie_width"] > 0)]
    if len(rows) < ENOUGH_SAMPLES:
        return 0.0
    return float(
        np.median(0.985 * rows["pcie_width"] * 2.0 ** (rows["pcie_gen"].astype(float) - 3))
    )
