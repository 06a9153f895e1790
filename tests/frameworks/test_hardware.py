"""Who is an outlier, on made figures, and through a shell in place of ssh with one host
made slow.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gputop.doctor import hardware
from gputop.doctor.hardware import HardwareError, places, run_hardware


def test_the_slow_device_is_named_and_no_other():
    sound = {"gemm_tflops": 600.0, "memory_gbs": 2900.0, "gpu": "NVIDIA H100 80GB HBM3"}
    measured = {f"a cuda:{i}": dict(sound) for i in range(8)}
    measured["a cuda:5"]["gemm_tflops"] = 400.0
    checks = {check.name: check for check in hardware._compared(measured)}
    assert [name for name, check in checks.items() if check.status == "warn"] == ["a cuda:5"]
    assert "67 % of the median of its peers" in checks["a cuda:5"].detail


def test_a_device_without_peers_is_held_against_the_catalog():
    figures = {"gemm_tflops": 90.0, "memory_gbs": 2900.0, "gpu": "NVIDIA H100 80GB HBM3"}
    (check,) = hardware._compared({"a cuda:0": figures})
    assert check.status == "warn" and "of the data sheet of H100" in check.detail


@pytest.mark.parametrize("text", ["", "# none\n", "-oProxyCommand=touch\n"])
def test_a_file_without_hosts_is_refused(tmp_path, text):
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(HardwareError):
        places(tmp_path / "hosts")


SLOW = """s/    data = torch.ones(LINK/\\
    send = dist.send\\
    dist.send = lambda *a: (time.sleep(0.5), send(*a))\\
    data = torch.ones(LINK/"""
SSH = f"""#!/bin/sh
host=$1; shift
if [ "$host" = 127.0.0.3 ]; then
  sed '{SLOW}' | sh -c "$*"
else
  exec sh -c "$*"
fi
"""


@pytest.mark.e2e
def test_the_host_whose_links_are_slow_is_named(tmp_path, monkeypatch):
    ssh, hosts = tmp_path / "ssh", tmp_path / "hosts"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    hosts.write_text("127.0.0.1\n127.0.0.2  # rack 4\n127.0.0.3\n127.0.0.4\n")
    monkeypatch.setenv("GPUTOP_SSH", str(ssh))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text = Path(hardware._PROBE).read_text("utf-8").replace("REPEATS = 7", "REPEATS = 3")
    (tmp_path / "probe.py").write_text(text)
    monkeypatch.setattr(hardware, "_PROBE", tmp_path / "probe.py")
    links = list(hardware._links(places(hosts), sys.executable))[-1]
    assert links.status == "warn", links
    assert "127.0.0.3: every link is slow" in links.detail
    assert links.detail.count("every link is slow") == 1


@pytest.mark.parametrize(("there", "linked"), [(("a",), []), (("a", "c"), ["a", "c"])])
def test_a_host_that_cannot_be_reached_is_a_line(tmp_path, monkeypatch, there, linked):
    """And the links are measured between the others, if there are any."""
    answer = hardware._MARK + '{"devices": {}, "figures": {}}'
    ssh, hosts = tmp_path / "ssh", tmp_path / "hosts"
    cases = "|".join(there)
    ssh.write_text(f"#!/bin/sh\ncase $1 in {cases}) echo '{answer}';; *) exit 1;; esac\n")
    ssh.chmod(0o755)
    hosts.write_text("a slots=4\nb\na\n" + ("c\n" if "c" in there else ""))
    asked: list[str] = []
    monkeypatch.setenv("GPUTOP_SSH", str(ssh))
    monkeypatch.setattr(
        hardware, "_links", lambda places, _: asked.extend(p.name for p in places) or iter(())
    )
    checks = list(run_hardware(sys.executable, hosts))
    assert asked == linked
    failed = [(check.name, check.detail) for check in checks if check.status == "fail"]
    assert failed == [("b", "exit code 1: no answer")]
