"""`.gputop.toml`: written, read from a folder above, refused in words; asked for on a terminal."""

import os
import pty
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop.cli import main
from gputop.fleet import Fleet, FleetError, GpuGroup, as_text, from_text, load, parse_group
from gputop_analysis.catalog import gpus

NAMES = [spec.name for spec in gpus()]
GROUPS = st.builds(GpuGroup, st.sampled_from(NAMES), st.integers(1, 72), st.integers(1, 64))
USD = st.none() | st.floats(0.01, 1e6).map(lambda value: round(value, 2))


@given(
    st.builds(
        Fleet,
        st.tuples(GROUPS),
        st.tuples(st.sampled_from(NAMES)),
        USD,
        USD,
        st.sampled_from(["speed", "cost"]),
    )
)
def test_what_is_written_is_read_back(fleet):
    found = from_text(as_text(fleet))
    assert (found.have, found.explore, found.priority) == (
        fleet.have,
        fleet.explore,
        fleet.priority,
    )
    assert (found.usd_per_hour, found.usd_total) == (fleet.usd_per_hour, fleet.usd_total)


def test_groups():
    assert parse_group("h100") == GpuGroup("H100-SXM5-80GB", 1, 1)
    assert parse_group("8xH100 x 2 nodes").count == 16 and parse_group("8 x A100").per_node == 8
    with pytest.raises(FleetError, match="nearest names"):
        parse_group("8xH1000")


def test_the_nearest_file_counts(tmp_path, monkeypatch):
    (tmp_path / ".gputop.toml").write_text('[fleet]\nhave = ["8xH100"]\n')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert load(inner).have == (GpuGroup("H100-SXM5-80GB", 8),)
    monkeypatch.setenv("GPUTOP_NO_CONFIG", "1")
    assert load(inner) == Fleet()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[fleet", "is no TOML"),
        ("[flet]\n", "unknown key 'flet'"),
        ('[fleet]\nhave = "H100"\n', "have is a list of names"),
        ('[fleet]\nhave = ["8xH1000"]\n', "nearest names"),
        ("[budget]\nusd_per_hour = -1\n", "above 0, not -1"),
        ('priority = "fun"\n', "speed or cost"),
        ("fleet = 3\n", "fleet is a section"),
    ],
)
def test_a_bad_file_is_refused_in_words(text, said):
    with pytest.raises(FleetError, match=said):
        from_text(text)


def test_init_without_asking(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert (
        main(["init", "--yes", "--have", "8xH100", "--explore", "A100", "--budget-hourly", "40"])
        == 0
    )
    assert load(tmp_path).usd_per_hour == 40 and load(tmp_path).explore == ("A100-SXM4-40GB",)
    capsys.readouterr()
    assert main(["init", "--yes"]) == 2 and "--force" in capsys.readouterr().err
    assert main(["init", "--yes", "--force", "--budget-total", "-3"]) == 2
    assert "above 0" in capsys.readouterr().err and load(tmp_path).usd_per_hour == 40


def test_init_asks_on_a_terminal(tmp_path):
    front, back = pty.openpty()
    command = [sys.executable, "-m", "gputop", "init"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=back, stderr=subprocess.PIPE, env={**os.environ}
    ) as process:
        os.write(front, b"4xL40S\nH100, H200\n12.5\n\ncost\n")
        _, said = process.communicate(timeout=60)
    os.close(front)
    os.close(back)
    assert process.returncode == 0, said
    fleet = load(tmp_path)
    assert fleet.have == (GpuGroup("L40S", 4),) and len(fleet.explore) == 2
    assert (fleet.usd_per_hour, fleet.usd_total, fleet.priority) == (12.5, None, "cost")
