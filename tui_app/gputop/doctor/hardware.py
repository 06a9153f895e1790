"""``gputop doctor --hardware``: devices, hosts, links slower than peers or catalog."""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gputop.doctor.check import OTHER_PYTHON, Check

if TYPE_CHECKING:
    from gputop_analysis.planner.probed import Probed

_PROBE = Path(__file__).with_name("hardware_probe.py")
_MARK = "GPUTOP "
_PATIENCE_S = 300
_LOCAL_RANKS = 4
_PORT = 29571
_OF_PEERS = 0.75
"""Share of the median of its peers below which something is an outlier."""
_OF_CATALOG = {"gemm_tflops": 0.5, "memory_gbs": 0.6}
"""Share of the data sheet that a sound device reaches in these short tests."""
UNITS = {
    "gemm_tflops": ("GEMM", "TFLOP/s"),
    "memory_gbs": ("memory", "GB/s"),
    "host_to_device_gbs": ("host to device", "GB/s"),
    "disk_write_gbs": ("disk write", "GB/s"),
    "disk_read_gbs": ("disk read", "GB/s"),
    "loader_batches_s": ("loader", "batches/s"),
}


class HardwareError(Exception):
    """Nothing can be measured, and why."""


class ProbedHost(NamedTuple):
    """A host, and how a command is started there."""

    name: str
    start: tuple[str, ...]
    """Words before the interpreter; empty on this machine."""


def places(nodes: Path | None) -> list[ProbedHost]:
    """Hosts of a file, one a line; this machine without one.

    Raises:
        HardwareError: the file cannot be read, or names no host.
    """
    if nodes is None:
        return [ProbedHost(os.uname().nodename, ())]
    try:
        lines = nodes.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise HardwareError(f"cannot read {nodes}: {error}") from None
    names = [words[0] for line in lines if (words := line.partition("#")[0].split())]
    if not names:
        raise HardwareError(f"{nodes} names no host: write one a line")
    if any(name.startswith("-") for name in names):
        raise HardwareError(f"{nodes}: a host's name does not begin with -")
    ssh = shlex.split(os.environ.get("GPUTOP_SSH", "ssh -o BatchMode=yes"))
    return [
        ProbedHost(name, (*ssh, name)) for name in dict.fromkeys(names)
    ]  # MPI's may repeat them


def run_hardware(python: str, nodes: Path | None) -> Iterator[Check]:
    """Measure each host, one after the other, then the links between them.

    Raises:
        HardwareError: see ``places``.
    """
    hosts = places(nodes)
    devices: dict[str, dict[str, Any]] = {}
    figures: dict[str, dict[str, Any]] = {}
    for host in hosts:
        answer = _answer(_probe(host, python, ["host"]))
        if isinstance(answer, str):
            yield Check(host.name, "fail", answer, _reach(host))
            continue
        for name, measured in answer["devices"].items():
            devices[f"{host.name} {name}"] = measured
        figures[host.name] = answer["figures"]
    for measured in (devices, figures):
        yield from _compared(measured)
    reached = [host for host in hosts if host.name in figures]
    if len(reached) > 1 or reached == hosts:
        yield from _links(reached, python)


def probe_here(python: str) -> Probed:
    """GEMM, memory and links of this machine's GPUs, for a plan on their kind.

    Raises:
        HardwareError: nothing could be measured, or there is no GPU.
    """
    from gputop_analysis.planner.probed import Probed

    here = places(None)[0]
    answer = _answer(_probe(here, python, ["host"]))
    if isinstance(answer, str):
        raise HardwareError(f"{answer}: {_reach(here)}")
    count = sum(name.startswith("cuda") for name in answer["devices"])
    try:
        return Probed.of(answer["devices"], _links_of_gpus(here, python, count))
    except ValueError as error:
        tflops = max(figures["gemm_tflops"] for figures in answer["devices"].values())
        raise HardwareError(f"{error} (the CPU reached {tflops:.3g} TFLOP/s in fp32)") from None


def _links_of_gpus(place: ProbedHost, python: str, count: int) -> dict[str, Any]:
    """What NCCL reached between the GPUs of a host; empty for one of them.

    Raises:
        HardwareError: a rank did not answer.
    """
    if count < 2:
        return {}
    with tempfile.TemporaryDirectory(prefix="gputop-probe-") as folder:
        answers = _started([place] * count, python, "gpu-links", f"file://{folder}/meet")
    failed = next((answer for answer in answers if isinstance(answer, str)), None)
    if failed is not None or isinstance(answers[0], str):
        raise HardwareError(f"the links between the GPUs: {failed}")
    return answers[0]


def _started(
    ranks: list[ProbedHost], python: str, what: str, where: str
) -> list[dict[str, Any] | str]:
    """What each of the ranks, started together, answered."""
    world = len(ranks)

    def start(rank: int) -> subprocess.CompletedProcess[str] | str:
        return _probe(ranks[rank], python, [what, str(rank), str(world), where])

    with ThreadPoolExecutor(world) as pool:
        return [_answer(done) for done in pool.map(start, range(world))]


def _compared(measured: dict[str, dict[str, Any]]) -> Iterator[Check]:
    """One line for each device or host, against its peers and the catalog."""
    for name, figures in measured.items():
        facts, slow = [], []
        for key, (label, unit) in UNITS.items():
            if key not in figures:
                continue
            value = figures[key]
            facts.append(f"{label} {value:.3g} {unit}")
            peers = [other[key] for at, other in measured.items() if at != name and key in other]
            slow += _slow(label, value, statistics.median(peers) if peers else None)
            slow += _below_catalog(key, label, value, str(figures.get("gpu", "")))
        yield Check(
            name,
            "warn" if slow else "ok",
            "; ".join([*slow, ", ".join(facts)]),
            "leave it out of the job, or have it looked at" if slow else "",
        )


def _slow(label: str, value: float, peers: float | None) -> list[str]:
    if peers is None or value >= _OF_PEERS * peers:
        return []
    return [f"{label} is {100 * value / peers:.0f} % of the median of its peers"]


def _below_catalog(key: str, label: str, value: float, gpu: str) -> list[str]:
    """Against the data sheet, where the device is in the catalog."""
    if not gpu or key not in _OF_CATALOG:
        return []
    from gputop_analysis import catalog

    try:
        spec = catalog.gpu(gpu)
    except LookupError:
        return []
    sheet = spec.bandwidth_gb_s
    if key == "gemm_tflops":
        sheet = spec.dense_flops.get("bf16", 0.0) / 1e12
    if not sheet or value >= _OF_CATALOG[key] * sheet:
        return []
    return [f"{label} is {100 * value / sheet:.0f} % of the data sheet of {spec.name}"]


def _links(hosts: list[ProbedHost], python: str) -> Iterator[Check]:
    """All-reduce and pairwise sends: a rank a host, or a few ranks on the only one."""
    if len(hosts) > 1:
        ranks, where = hosts, f"tcp://{hosts[0].name}:{_PORT}"
        yield from _judged(ranks, python, where, [rank.name for rank in ranks])
        return
    count = max(2, min(_LOCAL_RANKS, os.cpu_count() or 2))
    with tempfile.TemporaryDirectory(prefix="gputop-doctor-") as folder:
        names = [f"rank {i}" for i in range(count)]
        yield from _judged(hosts * count, python, f"file://{folder}/meet", names)


def _judged(ranks: list[ProbedHost], python: str, where: str, names: list[str]) -> Iterator[Check]:
    world = len(ranks)
    answers = _started(ranks, python, "links", where)
    failed = [
        (name, answer)
        for name, answer in zip(names, answers, strict=True)
        if isinstance(answer, str)
    ]
    if failed:
        name, problem = failed[0]
        yield Check("links", "warn", f"{name}: {problem}", "does a firewall stand between them?")
        return
    answer = answers[0]
    assert isinstance(answer, dict)
    speeds: dict[int, list[float]] = {rank: [] for rank in range(world)}
    for first, second, speed in answer["pairs"]:
        speeds[first].append(speed)
        speeds[second].append(speed)
    middle = statistics.median(speed for _, _, speed in answer["pairs"])
    facts = (
        f"all-reduce {answer['all_reduce_gbs']:.3g} GB/s, sends {middle:.3g} GB/s in the "
        "median (gloo)"
    )
    slow = []
    for rank, speed_ in speeds.items():
        other_speeds = [s for a, b, s in answer["pairs"] if rank not in (a, b)]
        if other_speeds and max(speed_) < _OF_PEERS * statistics.median(other_speeds):
            slow.append(f"{names[rank]}: every link is slow, {max(speed_):.3g} GB/s at best")
    fix = "look at its cable, port and routes" if slow else ""
    yield Check("links", "warn" if slow else "ok", "; ".join([*slow, facts]), fix)


def _probe(
    place: ProbedHost, python: str, words: list[str]
) -> subprocess.CompletedProcess[str] | str:
    """Run the probe there from its text, nothing installed. Returns why it did not start, if so."""
    command = [python, "-", *words]
    if place.start:
        command = [*place.start, shlex.join(command)]
    try:
        return subprocess.run(
            command,
            input=_PROBE.read_text("utf-8"),
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
            cwd=tempfile.gettempdir(),
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_PATIENCE_S} s"
    except OSError as error:
        return f"cannot start {command[0]}: {error.strerror}"


def _answer(done: subprocess.CompletedProcess[str] | str) -> dict[str, Any] | str:
    """What the probe measured, or why it did not."""
    if isinstance(done, str):
        return done
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return json.loads(line.removeprefix(_MARK))
    last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
    return f"exit code {done.returncode}: {last[:200]}"


def _reach(place: ProbedHost) -> str:
    if place.start:
        return (
            f"{shlex.join(place.start)} must work without a password, and the interpreter must "
            "have torch"
        )
    return OTHER_PYTHON
