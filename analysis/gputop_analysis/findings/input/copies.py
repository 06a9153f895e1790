"""The way of the batches to the GPU: from unpinned memory, or on the step's critical path."""

from __future__ import annotations

import numpy as np

from gputop_analysis.findings.advice import FLOAT_BATCH, OWN_LOOP, Option
from gputop_analysis.findings.dialect import loader_change, loader_site
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.note import H200
from gputop_analysis.findings.pictures import phases
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import Share, device_share, everybody, on_device, typical
from gputop_analysis.mend import DATA_LOADER, ByArguments
from gputop_analysis.model import Finding, Input
from gputop_analysis.text import percent
from gputop_analysis.view import RunView

LANE_MB_S = {1: 250.0, 2: 500.0, 3: 985.0, 4: 1969.0, 5: 3938.0, 6: 7563.0}
"""Payload of one PCIe lane and direction by generation (PCI-SIG, after line coding)."""
NEAR_LINK = 0.5
"""Copies of pinned memory reach 0.8 of it and more, pageable ones 0.2 to 0.5."""


def copy_time(view: RunView) -> Share | None:
    """Host-to-device copies on the typical rank, on the device's clock; None without one."""
    return typical(device_share(view, rank, "h2d") for rank in view.ranks if on_device(view, rank))


def _is_pinned(view: RunView, rank: int) -> bool | None:
    """Whether batches are pinned: as seen on one, else as the loader says; None: not known."""
    hello = view.hello(rank)
    pinned = (hello.get("batch") or {}).get("pinned")
    if pinned is not None:
        return pinned
    return (hello.get("dataloader") or {}).get("pin_memory")


def _long_copies(view: RunView, *, above: float, pinned: bool) -> Share | None:
    """Copies from memory of this kind, if they surely take more than ``above`` of the step."""
    copies = copy_time(view)
    if copies is None or not copies.surely_above(above):
        return None
    if _is_pinned(view, copies.rank) is not pinned:
        return None
    return copies


PAGEABLE, PINNED = 0.03, 0.05
"""Shares of the step that copies of a batch take, by where it lies in the host's memory."""


@finding(
    id="IN08",
    name="pageable host-to-device copies",
    family="input",
    cause="input",
    trigger=f"copying the batch to the GPU takes over {percent(PAGEABLE)} of the step (device "
    "clock), and the batch is not pinned",
    fix="pin_memory=True in the DataLoader and .to(device, non_blocking=True)",
    no_use="without a GPU of the run; where batches are pinned already",
    reads="device.h2d_ms, hello.dataloader.pin_memory, whether a batch is pinned",
    silent="no GPU; pinning not seen",
    traps="unified memory, where no copy takes place",
    pictures=(phases("h2d"),),
    seen_on=H200,
)
def pageable_copies(view: RunView, spec: Spec) -> Finding | None:
    """The driver first copies batches to where the GPU can read, and the host waits for it."""
    copies = _long_copies(view, above=PAGEABLE, pinned=False)
    if copies is None:
        return None
    run = Facts(view, copies.rank)
    return spec.make(
        severity="high" if copies.share.low > 0.25 else "medium",
        title=f"copying pageable batches to the GPU takes {copies.share.value * 100:.0f} % of "
        "each step",
        evidence=f"{copies.ms.value:.2f} ms of {copies.wall_ms:.1f} ms a step, {copies.percent}, "
        "device clock; the batches are not in pinned memory",
        fix=Option(
            loader_change(run, pin_memory=True)
            + ("" if run.trainer else " and batch.to(device, non_blocking=True)"),
            mend=ByArguments(DATA_LOADER, {"pin_memory": True}, had={"pin_memory": False}),
        ),
        rank=everybody(view),
        site=loader_site(run),
        confidence=0.9,
        recoverable_ms_per_step=copies.ms.value,
        interval_ms_per_step=(0.5 * copies.ms.low, copies.ms.high),
        proof=copies.proof(
            "host-to-device copy",
            PAGEABLE,
            "device.h2d_ms",
            "",
            Input("pinned", "no", "", "hello.batch"),
        ),
    )


@finding(
    id="IN09",
    name="copy on the critical path",
    family="input",
    cause="input",
    trigger=f"copying the pinned batch takes over {percent(PINNED)} of the step (device clock), "
    "at over half of the PCIe link's rate",
    fix="copy the next batch on a side stream while this one computes; send uint8 and "
    "normalise on the GPU",
    no_use=(
        "without a GPU of the run; a side stream: where a trainer owns the loop; uint8: where the "
        "batch holds no floats"
    ),
    reads="device.h2d_ms, gpu.pcie_rx_mb_s against the link's generation and width",
    silent="no GPU; no PCIe counters",
    traps="the link's generation drops while it idles",
    pictures=(phases("h2d"),),
)
def copy_on_critical_path(view: RunView, spec: Spec) -> Finding | None:
    """The copies are as fast as the link allows, but nothing computes meanwhile."""
    copies = _long_copies(view, above=PINNED, pinned=True)
    if copies is None:
        return None
    link = _link(view, copies.rank)
    if link is None:
        return None
    received, capacity, source = link
    rate = received / copies.share.value
    if rate < NEAR_LINK * capacity:
        return None
    return spec.make(
        severity="high" if copies.share.low > 0.25 else "medium",
        title=f"copying the batch takes {copies.share.value * 100:.0f} % of each step while the "
        "GPU waits",
        evidence=f"{copies.ms.value:.2f} ms of {copies.wall_ms:.1f} ms a step, {copies.percent}, "
        f"device clock; {received:,.0f} MB/s over PCIe are {rate / 1e3:.1f} GB/s while copying, "
        f"of {capacity / 1e3:.1f} GB/s ({source})",
        fix=(
            Option(
                "copy the next batch on a side stream (torch.cuda.Stream) while this one computes",
                needs=(OWN_LOOP,),
            ),
            Option("send uint8 and normalise on the GPU", needs=(FLOAT_BATCH,), promises=False),
            Option(
                "send fewer bytes: what the model does not read need not be copied",
                promises=False,
                last=True,
            ),
        ),
        rank=everybody(view),
        confidence=0.7,
        recoverable_ms_per_step=copies.ms.value,
        interval_ms_per_step=(copies.ms.low, copies.ms.high),
        proof=copies.proof(
            "host-to-device copy",
            PINNED,
            "device.h2d_ms",
            "",
            Input("received over PCIe", received, "MB/s", "gpu.pcie_rx_mb_s, mean"),
            Input(
                "capacity of the link", capacity, "MB/s", f"gpu.pcie_gen x gpu.pcie_width: {source}"
            ),
            Input("pinned", "yes", "", "hello.batch, hello.dataloader"),
        ),
    )


def _link(view: RunView, rank: int) -> tuple[float, float, str] | None:
    """MB/s that the rank's GPU received, what its link carries, its words; or None."""
    host = view.record.hosts.get(view.host_of(rank))
    gpu = _gpu_index(view, rank)
    if host is None or gpu is None:
        return None
    rows = host.gpu.rows[-5000:]
    rows = rows[
        (rows["index"] == gpu) & (rows["t_ns"] >= view.from_ns) & np.isfinite(rows["pcie_rx_mb_s"])
    ]
    if len(rows) < 5:
        return None
    generation, width = (
        int(rows["pcie_gen"].max()),
        int(rows["pcie_width"].max()),
    )  # an idle link clocks down
    if generation not in LANE_MB_S or width <= 0:
        return None
    return (
        float(rows["pcie_rx_mb_s"].mean()),
        LANE_MB_S[generation] * width,
        f"gen {generation} x{width}",
    )


def _gpu_index(view: RunView, rank: int) -> int | None:
    """The driver's index of the rank's GPU: by its uuid, else by the one that there is."""
    host = view.record.hosts.get(view.host_of(rank))
    gpu_indices = list(host.state.gpus) if host else []
    uuid = view.hello(rank).get("device_uuid")
    for gpu in gpu_indices:
        if uuid and gpu.uuid == uuid:
            return gpu.index
    return gpu_indices[0].index if len(gpu_indices) == 1 else None
