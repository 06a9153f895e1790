"""Samplers against real processes, this host, made-up control groups and a driver that is not
there.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import recorder_support as support

from gputop_agent import wire
from gputop_probes.record import layout
from gputop_probes.record.reader import numpy_dtype
from gputop_probes.recorder import strangers
from gputop_probes.samplers import gpu, nvml
from gputop_probes.samplers.cgroup import Cgroup
from gputop_probes.samplers.host import HostSampler
from gputop_probes.samplers.inbox import Inbox, SamplerThread
from gputop_probes.samplers.processes import ProcessSampler
from gputop_probes.samplers.tree import ProcessTree

MIB = 1 << 20


def rows(table: str, raw: bytes) -> np.ndarray:
    description = [(name, code) for name, code in layout.dtype_description(layout.TABLES[table])]
    return np.frombuffer(raw, numpy_dtype(description))


@pytest.fixture
def family():
    """A launcher, a rank that burns CPU and holds memory, a worker of it, and a marked process of
    another parent.
    """
    rank = (
        "import subprocess, sys, time\nheld = b'x' * (64 << 20)\nw = "
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\nt = "
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', "
        "'resource_tracker'])\nprint(w.pid, t.pid, flush=True)\nend = time.time() + 60\nwhile "
        "time.time() < end: pass"
    )
    launcher = (
        f"import subprocess, sys, time\nr = subprocess.Popen([sys.executable, '-c', {rank!r}])\n"
        "print(r.pid, flush=True)\ntime.sleep(60)"
    )
    marked = {**os.environ, wire.ENV_RUN_ID: "run-1"}
    root = subprocess.Popen(
        [sys.executable, "-c", launcher], stdout=subprocess.PIPE, text=True, env={"PATH": "/bin"}
    )
    daemon = subprocess.Popen(["sleep", "60"], env=marked, start_new_session=True)
    foreign = subprocess.Popen(["sleep", "60"], env={**marked, wire.ENV_RUN_ID: "run-12"})
    assert root.stdout is not None
    pids = [int(word) for _ in range(2) for word in root.stdout.readline().split()]
    yield SimpleNamespace(
        root=root.pid,
        rank=pids[0],
        worker=pids[1],
        helper=pids[2],
        daemon=daemon.pid,
        foreign=foreign.pid,
    )
    for pid in pids:
        os.kill(pid, 9)
    for process in (root, daemon, foreign):
        process.kill()
        process.wait()


def test_processes_of_a_run(family) -> None:
    tree = ProcessTree(family.root, "run-1")
    sampler = ProcessSampler(tree, lambda: {family.rank: (5, family.rank)}, lambda: 77)
    first = rows("process", sampler.sample(ranks_only=False))
    time.sleep(0.4)
    second = rows("process", sampler.sample(ranks_only=False))
    found = {int(row["pid"]): row for row in second}
    assert set(found) == {family.root, family.rank, family.worker, family.helper, family.daemon}
    kinds = {pid: (int(row["kind"]), int(row["rank"])) for pid, row in found.items()}
    assert kinds[family.root] == (layout.PROCESS_LAUNCHER, -1)
    assert kinds[family.rank] == (layout.PROCESS_RANK, 5)
    assert kinds[family.worker] == (layout.PROCESS_WORKER, 5)
    assert kinds[family.helper] == (layout.PROCESS_OTHER, 5)
    assert kinds[family.daemon] == (layout.PROCESS_OTHER, -1)
    rank, before = found[family.rank], next(row for row in first if row["pid"] == family.rank)
    assert rank["rss_bytes"] > 64 * MIB
    assert before["pss_bytes"] > 64 * MIB  # read at the first tick, then only every ten seconds
    assert rank["pss_bytes"] == -1
    assert rank["thread_cpu_ns_total"] - before["thread_cpu_ns_total"] > 20e6
    assert rank["run_wait_ns_total"] >= before["run_wait_ns_total"] >= 0
    assert rank["voluntary_switches_total"] >= 0 <= rank["involuntary_switches_total"]
    assert found[family.worker]["thread_cpu_ns_total"] == -1
    assert found[family.worker]["run_wait_ns_total"] >= 0
    assert rank["ppid"] == family.root
    assert rank["open_files"] >= 3
    assert sampler.tree_rss_bytes == second["rss_bytes"].sum()
    only = rows("process", sampler.sample(ranks_only=True))
    assert only["pid"].tolist() == [family.rank]


def test_a_reused_process_id_is_not_ours() -> None:
    tree = ProcessTree(os.getpid(), "none")
    tree.refresh()
    member = tree.members[os.getpid()]
    tree.members[os.getpid()] = member._replace(start_ticks=member.start_ticks - 1)
    tree.root = -1
    tree.refresh()
    assert os.getpid() not in tree.members


def test_host(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_bytes(b"abc")
    logs = [tmp_path / name for name in layout.LOG_LENGTHS]
    sampler = HostSampler(Cgroup(os.getpid()), 2, lambda: 5, logs=logs)
    time.sleep(0.1)
    (row,) = rows("host", sampler.sample(10, 9, 3))
    assert row["memory_total_bytes"] > row["memory_available_bytes"] > 0
    assert 0 <= row["cpu_pct"] <= 100
    assert row["net_rx_bytes_total"] >= 0 <= row["disk_read_bytes_total"]
    assert (row["t_ns"], row["tree_rss_bytes"], row["tree_pss_bytes"], row["process_count"]) == (
        5,
        10,
        9,
        3,
    )
    assert row["shm_total_bytes"] != 0
    assert (row["output_bytes"], row["stderr_bytes"]) == (3, -1)


def make(root: Path, **files: str) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (root / name.replace("__", ".")).write_text(content)


def test_cgroup_2_takes_the_tightest_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputop_probes.samplers.cgroup._group_paths", lambda pid: {"": "/job/step"})
    make(tmp_path, cgroup__controllers="cpu memory")
    make(
        tmp_path / "job",
        memory__max="1000",
        cpu__max="150000 100000",
        cpu__stat="throttled_usec 7\n",
    )
    make(
        tmp_path / "job" / "step",
        memory__max="max",
        memory__current="400",
        memory__events="oom 1\noom_kill 2\n",
    )
    make(
        tmp_path / "job" / "step",
        cpu__max="max 100000",
        cpu__stat="usage_usec 3\nthrottled_usec 5\n",
    )
    assert Cgroup(1, tmp_path).read() == (400, 1000, 2, 7, 1.5)


def test_cgroup_1_and_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "gputop_probes.samplers.cgroup._group_paths",
        lambda pid: {"memory": "/outside/the/container", "cpu": "/"},
    )
    limits = Cgroup(1, tmp_path).read()
    assert limits[:4] == (-1, -1, -1, -1)
    assert math.isnan(limits.cpu_limit_cores)
    make(tmp_path / "unified", cgroup__controllers="hugetlb")  # a hybrid set-up
    make(
        tmp_path / "memory",
        memory__usage_in_bytes="5",
        memory__limit_in_bytes="9223372036854771712",
    )
    make(tmp_path / "memory", memory__oom_control="oom_kill_disable 0\noom_kill 1\n")
    make(
        tmp_path / "cpu",
        cpu__stat="throttled_time 9000\n",
        cpu__cfs_quota_us="50000",
        cpu__cfs_period_us="100000",
    )
    assert Cgroup(1, tmp_path).read() == (5, -1, 1, 9, 0.5)


@pytest.mark.parametrize(
    ("words", "environment", "reason"),
    [
        (["python", "-I", "t.py"], {}, "-I"),
        (["python", "-uE", "t.py"], {}, "-uE"),
        (["python", "-W", "ignore", "-S", "t.py"], {}, "-S"),
        (["python", "-c", "pass", "-I"], {"PYTHONPATH": "/x"}, "PYTHONPATH"),
        (["python", "t.py", "-S"], {}, "PYTHONPATH"),
        (["python", "t.py"], {wire.ENV_DISABLE: "1"}, wire.ENV_DISABLE),
        (["python", "t.py"], None, "cannot be read"),
        (["python", "t.py"], {"PYTHONPATH": strangers._INJECT_DIR, wire.ENV_SOCKET: "/s"}, ""),
    ],
)
def test_why_a_process_never_said_hello(words, environment, reason: str) -> None:
    found = strangers.why_silent(words, environment)
    assert reason in found
    assert bool(found) == bool(reason)


def test_a_sampler_that_fails_goes_on() -> None:
    seen: list[str] = []

    def sample() -> None:
        seen.append("tick")
        raise OSError

    thread = SamplerThread("x", 0.01, sample, seen.append)
    thread.start()
    support.until(lambda: seen.count("tick") >= 3)
    thread.stop()
    thread.join(2)
    assert seen.count("x") >= 2


class Driver:
    """A driver with two devices that knows some calls, refuses one, and lacks the rest."""

    NVML_FI_DEV_MEMORY_TEMP = 82

    def __init__(self, processes: dict[int, list[SimpleNamespace]]):
        self.processes = processes
        self.refused = 0
        self.xids = [SimpleNamespace(eventType=8, eventData=79, device=1)]

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, device: int) -> bytes:
        return b"Test GPU"

    def nvmlDeviceGetUUID(self, device: int) -> str:
        return f"GPU-{device}"

    def nvmlDeviceGetMemoryInfo(self, device: int) -> SimpleNamespace:
        return SimpleNamespace(total=80 << 30, used=device << 30)

    def nvmlDeviceGetUtilizationRates(self, device: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=90, memory=30)

    def nvmlDeviceGetPowerUsage(self, device: int) -> int:
        return 350_000

    def nvmlDeviceGetFanSpeed(self, device: int) -> int:
        self.refused += 1
        raise type("NVMLError_NotSupported", (Exception,), {})

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[SimpleNamespace]:
        return self.processes[device]

    def nvmlDeviceGetFieldValues(
        self, device: int, fields: tuple[int, ...]
    ) -> list[SimpleNamespace]:
        return [SimpleNamespace(nvmlReturn=0, valueType=1, value=SimpleNamespace(uiVal=61))]

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlEventSetWait_v2(self, events: object, timeout: int) -> SimpleNamespace:
        return self.xids.pop()


def test_gpus_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.getpid(), os.getppid()
    driver = Driver(
        {
            0: [SimpleNamespace(pid=theirs, usedGpuMemory=5)],
            1: [
                SimpleNamespace(pid=ours, usedGpuMemory=7),
                SimpleNamespace(pid=theirs, usedGpuMemory=3),
            ],
        }
    )
    monkeypatch.setattr(nvml, "_load", lambda: driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    inbox = Inbox()
    pids: list[int] = []
    sampler = gpu.GpuSampler(inbox, lambda: pids, lambda: 9)
    sampler.sample()
    assert rows("gpu", inbox.records.pop()[1])["index"].tolist() == [0, 1]
    pids.append(ours)
    sampler.sample()
    (row,) = rows("gpu", inbox.records.pop()[1])
    assert (row["index"], row["memory_ours_bytes"], row["memory_foreign_bytes"]) == (1, 7, 3)
    assert (row["util_pct"], row["power_w"], row["memory_temperature_c"]) == (90, 350, 61)
    assert row["memory_used_bytes"] == 1 << 30
    for name in ("temperature_c", "fan_pct", "sm_active_pct", "nvlink_tx_mb_s", "sm_clock_mhz"):
        assert np.isnan(row[name])
    for name in (
        "energy_mj_total",
        "ecc_uncorrected_total",
        "pstate",
        "pcie_gen",
        "clock_event_reasons",
    ):
        assert row[name] == -1
    assert driver.refused == 2  # once a device, though three records were packed
    assert list(inbox.events) == [("xid", {"gpu": 1, "code": 79})]
    assert [device["ours"] for device in inbox.state.pop()["gpus"]] == [False, True]


@pytest.mark.parametrize(
    ("variable", "expected"),
    [(None, [0, 1]), ("1", [1]), ("GPU-1,GPU-0", [1, 0]), ("", []), ("1,-1,0", [1])],
)
def test_visible_devices(variable: str | None, expected: list[int]) -> None:
    devices = [SimpleNamespace(index=index, uuid=f"GPU-{index}") for index in range(2)]
    assert [device.index for device in gpu.visible(devices, variable)] == expected  # type: ignore[arg-type]


def test_no_driver_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    inbox = Inbox()
    stopped: list[bool] = []
    sampler = gpu.GpuSampler(inbox, list, lambda: 9)
    sampler.give_up = lambda: stopped.append(True)
    sampler.sample()
    assert list(inbox.state) == [{"gpu_note": "no NVIDIA driver here"}]
    assert stopped == [True]
    assert not inbox.records


def test_a_process_that_trains_unseen_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(strangers, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(strangers, "_runs_torch", lambda pid: True)
    monkeypatch.setattr(
        strangers.procfs, "environment", lambda pid: {"PYTHONPATH": ""} if pid == 1 else None
    )
    member = SimpleNamespace(command_line=["python", "train.py"])
    tree = SimpleNamespace(
        stats={pid: SimpleNamespace(cpu_ticks=0) for pid in (1, 2, 3)},
        members=dict.fromkeys((1, 2, 3), member),
        ancestors=lambda pid: [2] if pid == 3 else [],
    )
    told: list[tuple[str, dict]] = []
    watch = strangers.StrangerWatch(
        SimpleNamespace(state={"host": "h"}),  # type: ignore[arg-type]
        tree,  # type: ignore[arg-type]
        lambda: {2},
        lambda kind, fields: told.append((kind, fields)),
    )
    for _ in range(40):
        clock.now += 1
        for stat in tree.stats.values():
            stat.cpu_ticks += 90
        watch.check()
        assert not told or clock.now >= 115
    reason = "PYTHONPATH was overwritten or the environment was cleared"
    assert told == [("no_agent", {"pid": 1, "host": "h", "reason": reason})]
    watch.finish()
    assert len(told) == 1


def test_of_a_short_run_the_end_names_the_process_that_trained_unseen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strangers, "_runs_torch", lambda pid: True)
    monkeypatch.setattr(strangers.procfs, "environment", lambda pid: {})
    member = SimpleNamespace(command_line=["python", "-I", "train.py"])
    tree = SimpleNamespace(
        stats=dict.fromkeys((1, 2), SimpleNamespace(cpu_ticks=0)),
        members=dict.fromkeys((1, 2), member),
        ancestors=lambda pid: [1] if pid == 2 else [],
    )
    known: set[int] = set()
    for expected in ([1], []):  # the second time a rank has been seen by the end
        told: list[int] = []
        watch = strangers.StrangerWatch(
            SimpleNamespace(state={"host": "h"}),  # type: ignore[arg-type]
            tree,  # type: ignore[arg-type]
            lambda: known,
            lambda kind, fields, told=told: told.append(fields["pid"]),  # type: ignore[misc]
        )
        watch.check()
        assert not told
        watch.finish()
        assert told == expected
        known = {7}
