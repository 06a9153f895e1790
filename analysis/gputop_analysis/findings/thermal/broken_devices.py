"""Devices that are broken or about to be: ECC, XID, links, lost."""

from __future__ import annotations

from collections.abc import Iterator

from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.thermal.per_device import device_finding, per_device
from gputop_analysis.gpu_samples import SampledDevice, devices
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.view import RunView
from gputop_analysis.xid import decode

CORRECTED_PER_MINUTE = 10.0
LINK_ERRORS_PER_MINUTE = 1.0
LOST_SAMPLES = 4


@finding(
    id="TP06",
    name="ECC errors",
    family="thermal",
    cause="crash",
    trigger=f"an uncorrected ECC error during the run, or over {CORRECTED_PER_MINUTE:.0f} "
    "corrected ones a minute",
    fix="drain the node, reset the GPU; replace it when they come again",
    immediate=True,
    no_use="where the machine is not yours to mend: whoever runs it must",
    reads="growth of gpu.ecc_corrected_total and ecc_uncorrected_total",
    silent="no NVIDIA driver; the driver does not tell",
    traps="old errors: only what grows in this run counts",
)
@per_device
def ecc_errors(view: RunView, spec: Spec) -> Iterator[Finding]:
    """Memory cells that fail. Deltas are counted: those before the run say nothing."""
    for device in devices(view):
        lost, mended = device.grown("ecc_uncorrected_total"), device.grown("ecc_corrected_total")
        rate = _per_minute(mended, device)
        if lost == 0 and not rate > CORRECTED_PER_MINUTE:
            continue
        if lost:
            title = f"{lost} uncorrected ECC error(s)"
            value, threshold, unit = (lost, 0.0, "errors")
        else:
            title = f"{rate:.0f} ECC/min"
            value, threshold, unit = (rate, CORRECTED_PER_MINUTE, "errors per minute")
        yield device_finding(
            spec,
            device,
            "critical" if lost else "medium",
            title=f"{device.label}: {title}",
            evidence=f"{lost} uncorrected and {mended} corrected ECC errors in "
            f"{device.seconds:.0f} s",
            fix=f"stop using it: drain the node, `nvidia-smi -i {device.index} -r`, look at row "
            "remapping (`nvidia-smi -q -d ROW_REMAPPER`); replace the GPU when errors come again",
            proof=Proof(
                statistic="growth of the ECC counters during the run",
                value=value,
                threshold=threshold,
                unit=unit,
                formula="sums of the positive differences between samples",
                inputs=(
                    Input(
                        "uncorrected", lost, "errors", f"gpu.ecc_uncorrected_total, {device.label}"
                    ),
                    Input(
                        "corrected", mended, "errors", f"gpu.ecc_corrected_total, {device.label}"
                    ),
                ),
            ),
            confidence=0.9,
        )


@finding(
    id="TP07",
    name="XID error",
    family="thermal",
    cause="crash",
    trigger="the driver reported an XID error",
    fix="by the code: look at the program, restart the job, reset or replace the GPU",
    explains=("HC01", "HC06", "HC08", "HC09"),
    immediate=True,
    no_use="where the machine is not yours to mend: whoever runs it must",
    reads="xid events",
    silent="none was reported",
    traps="XID 13 and 31 are often bugs of the program",
)
@per_device
def xid_error(view: RunView, spec: Spec) -> Iterator[Finding]:
    """The driver's error numbers, in words. Of several on a device the first is the cause."""
    gpus_told: set[int] = set()
    by_index = {device.index: device for device in devices(view)}
    for event in view.record.events("xid"):
        index, code = int(event.get("gpu", -1)), int(event.get("code", 0))
        if index in gpus_told:
            continue
        gpus_told.add(index)
        line = decode(code)
        codes = [
            int(xid.get("code", 0))
            for xid in view.record.events("xid")
            if int(xid.get("gpu", -1)) == index
        ]
        later = ""
        if len(codes) > 1:
            later = f"; after it XID {', '.join(map(str, codes[1:8]))}"
        more = "see `dmesg -T | grep -i xid` and tell whoever runs the node"
        if line.action == "look at the application":
            more = "compute-sanitizer finds the kernel, CUDA_LAUNCH_BLOCKING=1 the line"
        device = by_index.get(index)
        yield spec.make(
            severity="critical" if line.hardware else "medium",
            title=f"XID {code} on GPU {index}: {line.meaning}"[:140],
            evidence=f"the driver reported XID {code} ({line.meaning}){later}",
            fix=f"{line.action}; {more}",
            rank=device.rank if device else None,
            gpu=index,
            host=event.get("host"),
            confidence=0.95 if line.hardware else 0.7,
            proof=Proof(
                statistic="XID events of the driver",
                value=len(codes),
                threshold=0,
                unit="events",
                formula="meanings and actions after NVIDIA's XID documentation",
                inputs=tuple(Input("XID", c, "", f"xid event, GPU {index}") for c in codes[:8]),
            ),
        )


@finding(
    id="TP08",
    name="link errors",
    family="thermal",
    cause="comm",
    trigger="PCIe replays or NVLink errors grow by more than one a minute",
    fix="reseat the GPU, check riser and cables",
    no_use="where the machine is not yours to mend: whoever runs it must",
    reads="growth of gpu.pcie_replay_total and nvlink_error_total",
    silent="no NVIDIA driver; the driver does not tell",
    traps="old errors: only what grows in this run counts",
)
@per_device
def link_errors(view: RunView, spec: Spec) -> Iterator[Finding]:
    """Transfers that had to be repeated."""
    for device in devices(view):
        pcie, nvlink = device.grown("pcie_replay_total"), device.grown("nvlink_error_total")
        rate = _per_minute(pcie + nvlink, device)
        if device.seconds < 60 or not rate > LINK_ERRORS_PER_MINUTE:
            continue
        yield device_finding(
            spec,
            device,
            "medium",
            title=f"{device.label}: {rate:.0f} link errors a minute "
            f"({'PCIe' if pcie >= nvlink else 'NVLink'})",
            evidence=f"{pcie} PCIe replays and {nvlink} NVLink errors in {device.seconds:.0f} s",
            fix="reseat the GPU, check riser, bridge and cables; `nvidia-smi nvlink "
            "-e` tells which link",
            proof=Proof(
                statistic="growth of the link error counters",
                value=rate,
                threshold=LINK_ERRORS_PER_MINUTE,
                unit="errors per minute",
                formula="(replays + NVLink errors) / minutes, sums of the "
                "positive differences between samples",
                inputs=(
                    Input("PCIe replays", pcie, "", f"gpu.pcie_replay_total, {device.label}"),
                    Input("NVLink errors", nvlink, "", f"gpu.nvlink_error_total, {device.label}"),
                ),
            ),
            confidence=0.9,
        )


@finding(
    id="TP09",
    name="GPU lost",
    family="thermal",
    cause="crash",
    trigger="XID 79 or 154, or a device that answered does not answer any more",
    fix="drain and reboot the node",
    explains=("TP07", "HC01", "HC06", "HC08", "HC09"),
    immediate=True,
    no_use="where the machine is not yours to mend: whoever runs it must",
    reads="xid events 79 and 154, devices that stop answering",
    silent="no NVIDIA driver; the driver does not tell",
    traps="a driver that is being reloaded",
)
@per_device
def gpu_lost(view: RunView, spec: Spec) -> Iterator[Finding]:
    """The driver cannot reach the device."""
    codes = {
        int(event.get("gpu", -1)): int(event["code"])
        for event in view.record.events("xid")
        if event.get("code") in (79, 154)
    }
    for device in devices(view):
        answered = device.rows["memory_total_bytes"] > 0
        silent = 0
        if answered.any():
            silent = len(answered) - 1 - int(answered.nonzero()[0][-1])
        code = codes.get(device.index)
        if code is None and silent < LOST_SAMPLES:
            continue
        title, xid = "does not answer any more", ""
        if code:
            meaning = decode(code).meaning
            title, xid = f"is lost: XID {code}, {meaning}", f"; XID {code} ({meaning})"
        yield device_finding(
            spec,
            device,
            "critical",
            title=f"{device.label} {title}",
            evidence=f"{silent} samples without an answer{xid}",
            fix="drain the node and reboot it, resume from the last checkpoint; a GPU that is lost "
            "again is to be replaced",
            proof=Proof(
                statistic="samples in a row at the end without an answer",
                value=silent,
                threshold=LOST_SAMPLES - 1,
                unit="samples",
                formula="or XID 79 (fallen off the bus), 154 (recovery action)",
                inputs=(
                    Input(
                        "XID",
                        code if code is not None else "none",
                        "",
                        f"xid events, {device.label}",
                    ),
                ),
            ),
            confidence=0.9,
        )


def _per_minute(count: int, device: SampledDevice) -> float:
    return 60.0 * count / max(device.seconds, 60.0)
