"""The run's circumstances are kept, its secrets are not."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from gputop.cli import main
from gputop_probes import context, redact, runs
from gputop_probes.record import stopping
from gputop_probes.record.writer import RecordWriter

SECRETS = {
    "HF_TOKEN": "hf_abcdefgh12345",
    "WANDB_API_KEY": "0123456789",
    "AWS_SECRET_ACCESS_KEY": "s3cr3t",
    "NCCL_SECRET": "s3cr3t",
    "TORCH_PASSWORD": "s3cr3t",
    "TORCH_STORE_URL": "tcp://user:s3cr3t@host/",
    "DATABASE_URL": "postgres://u:p@h",
    "HOME": "/home/somebody",
}


def test_environment_is_an_allow_list() -> None:
    kept = {
        "OMP_NUM_THREADS": "4",
        "NCCL_DEBUG": "INFO",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "WORLD_SIZE": "8",
    }
    assert context.matters({**SECRETS, **kept}) == kept


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            ["t.py", "--hf-token", "abc", "--lr", "1"],
            ["t.py", "--hf-token", "[hidden]", "--lr", "1"],
        ),
        (["t.py", "--wandb_key=abc"], ["t.py", "--wandb_key=[hidden]"]),
        (["env", "WANDB_API_KEY=abc", "t.py"], ["env", "WANDB_API_KEY=[hidden]", "t.py"]),
        (["t.py", "hf_abcdefgh12345"], ["t.py", "[hidden]"]),
        (["t.py", "--store", "redis://u:p@h"], ["t.py", "--store", "redis://[hidden]@h"]),
        (
            ["t.py", "--max-tokens", "512", "--tokenizer", "x"],
            ["t.py", "--max-tokens", "512", "--tokenizer", "x"],
        ),
        (["t.py", "--auth", "--lr", "1"], ["t.py", "--auth", "--lr", "1"]),
    ],
)
def test_command_without_secrets(words: list[str], shown: list[str]) -> None:
    assert redact.command(words) == shown


def test_git(tmp_path: Path) -> None:
    assert context.git(str(tmp_path)) == {}
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@x"]
    (tmp_path / "train.py").write_text("1")
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    found = context.git(str(tmp_path))
    assert (len(found["commit"]), found["branch"], found["dirty"]) == (40, "main", False)
    (tmp_path / "notes").write_text("not tracked")
    assert context.git(str(tmp_path))["dirty"] is False
    (tmp_path / "train.py").write_text("2")
    assert context.git(str(tmp_path))["dirty"] is True


def test_scheduler_and_container(tmp_path: Path) -> None:
    environment = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NAME": "pre",
        "KUBERNETES_SERVICE_HOST": "h",
        "POD_NAME": "p",
        **SECRETS,
    }
    found = context.collect(["python", "t.py", "--token", "abc"], str(tmp_path), environment)
    assert found["slurm"] == {"job_id": "7", "job_name": "pre"}
    assert found["container"] == "kubernetes"
    assert found["kubernetes"]["pod"] == "p"
    assert found["host"]["cpu_count_machine"] == os.cpu_count()
    text = repr(found)
    assert not [value for value in (*SECRETS.values(), "abc'") if value in text]


T0 = 1_700_000_000_000_000_000


@pytest.fixture
def three_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "runs"
    monkeypatch.setenv("GPUTOP_RUNS_DIR", str(root))
    monkeypatch.setattr(runs.locations, "fallback_roots", list)
    for number, name in enumerate(("20260101-train-aa", "20260102-train-bb", "20260103-tune-cc")):
        writer = RecordWriter.create(
            root / name, "h", {"run_id": name, "command": ["x"], "created_ns": T0 + number}
        )
        writer.write_state({"host": "h", "state": "ended", "exit_code": number, "ended_ns": T0 + 5})
        writer.close()
    (root / "notes").mkdir()
    (root / "20260104-broken").mkdir()
    (root / "20260104-broken" / "run.json").write_text("{")
    return root


def test_list_of_runs(three_runs: Path) -> None:
    broken, *found = runs.list_runs()
    assert (broken.name, broken.state, broken.damaged) == ("20260104-broken", "damaged", True)
    assert [run.name for run in found] == [
        "20260103-tune-cc",
        "20260102-train-bb",
        "20260101-train-aa",
    ]
    assert (found[0].state, found[0].exit_code, found[0].steps) == ("ended", 2, 0)
    assert found[0].as_dict()["path"] == str(three_runs / "20260103-tune-cc")


@pytest.mark.parametrize(
    ("event", "stopped_by", "state"),
    [
        ({"type": "interrupt", "signal": 2, "by": "user", "pids": [1]}, "you", "stopped"),
        ({"type": "interrupt", "signal": 15, "by": "signal", "pids": [1]}, "SIGTERM", "SIGTERM"),
        ({"type": "interrupt", "signal": 15, "by": "recorder", "pids": [1]}, "", "exit 2"),
        ({"type": "interrupt", "signal": "?", "by": 7}, "signal ?", "signal ?"),
        ({"type": "log", "values": {"interrupt": 1.0}}, "", "exit 2"),
    ],
)
def test_the_list_says_who_stopped_a_run(
    three_runs: Path, capsys, event: dict, stopped_by: str, state: str
) -> None:
    host = three_runs / "20260103-tune-cc" / "hosts" / "h"
    (host / "events.jsonl").write_text(json.dumps({"t_ns": T0, **event}) + "\n{broken interrupt\n")
    run = runs.read_run(three_runs / "20260103-tune-cc")
    assert run is not None and (run.stopped_by, run.exit_code) == (stopped_by, 2)
    assert main(["runs"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "tune-cc" in line)
    assert f" {state} " in line


def test_a_run_that_went_on_after_a_signal_was_not_stopped_by_it() -> None:
    event = {"t_ns": T0, "type": "interrupt", "signal": 15, "by": "signal"}
    assert stopping.first_stop([event], last_step_ns=T0 + stopping.WENT_ON_NS - 1) == event
    assert stopping.first_stop([event], last_step_ns=T0 + stopping.WENT_ON_NS) is None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("last", "20260103-tune-cc"),
        ("20260101-train-aa", "20260101-train-aa"),
        ("20260102", "20260102-train-bb"),
        ("tune", "20260103-tune-cc"),
        ("train", "fits 2 runs"),
        ("2026", "fits"),
        ("other", "no run 'other'"),
        ("", "no run ''"),
    ],
)
def test_find_run(three_runs: Path, name: str, found: str) -> None:
    if found.startswith("2026"):
        assert runs.find_run(name) == three_runs / found
        assert runs.find_run(str(three_runs / found)) == three_runs / found
    else:
        with pytest.raises(runs.RunNotFound, match=found):
            runs.find_run(name)


def test_a_given_name_finds_the_newest_of_that_name(three_runs: Path) -> None:
    for name in ("20260101-train-aa", "20260102-train-bb"):
        head = three_runs / name / "run.json"
        head.write_text(json.dumps(json.loads(head.read_text()) | {"name": "baseline"}))
    assert runs.find_run("baseline") == three_runs / "20260102-train-bb"
    assert runs.list_runs()[2].as_dict()["given_name"] == "baseline"


def test_a_run_of_an_earlier_boot_is_lost(three_runs: Path) -> None:
    writer = RecordWriter(three_runs / "20260101-train-aa", runs.locations.host_name())
    writer.host_dir.mkdir()
    writer.write_state({"state": "running", "boot_id": "another", "recorder_pid": os.getpid()})
    os.utime(writer.host_dir / "host.json", (1, 1))
    run = runs.read_run(three_runs / "20260101-train-aa")
    assert run is not None
    assert run.state == "lost"
