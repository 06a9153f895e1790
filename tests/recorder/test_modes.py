"""Records can be read by their owner alone, whatever the umask; secrets of a run lie in none of
their files.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

SECRET = "hunter2x9Zq"


def run(
    words: list[str], home: Path, umask: int, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    state = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "GPUTOP_RUNS_DIR": ""}
    return subprocess.run(
        [sys.executable, "-m", "gputop", "run", "--headless", *words],
        env={**os.environ, **state, **environment},
        umask=umask,
        cwd=home,
        capture_output=True,
        timeout=60,
        check=False,
    )


def modes(root: Path) -> dict[str, int]:
    found = {path: path.lstat() for path in [root, *root.rglob("*")]}
    return {str(path.relative_to(root)): stat.S_IMODE(one.st_mode) for path, one in found.items()}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_nobody_else_can_read_a_record(tmp_path: Path, umask: int) -> None:
    done = run(["--", "sh", "-c", "echo out; echo err >&2"], tmp_path, umask)
    assert done.returncode == 0, done.stderr
    root = tmp_path / "state" / "gputop" / "runs"
    found = modes(root)
    assert any(name.endswith("output.log") for name in found) and any(
        name.endswith("run.json") for name in found
    )
    folders = {name: mode for name, mode in found.items() if (root / name).is_dir()}
    assert set(folders.values()) == {0o700}, folders
    files = {name: mode for name, mode in found.items() if name not in folders}
    assert set(files.values()) == {0o600}, files


def test_a_folder_that_the_user_gives_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2770)
    assert run(["--run-dir", str(shared), "--", "true"], tmp_path, 0o022).returncode == 0
    assert stat.S_IMODE(shared.stat().st_mode) == 0o2770
    assert stat.S_IMODE((shared / "run.json").stat().st_mode) == 0o600


def test_an_open_root_of_an_earlier_version_is_closed(tmp_path: Path) -> None:
    root = tmp_path / "state" / "gputop" / "runs"
    root.mkdir(parents=True)
    root.chmod(0o755)
    run(["--", "true"], tmp_path, 0o022)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_no_file_of_a_record_holds_a_secret(tmp_path: Path) -> None:
    words = [
        "python",
        "-c",
        "pass",
        "--hf-token",
        SECRET,
        f"trainer.apiKey={SECRET}",
        "--cfg",
        f'{{"password": "{SECRET}"}}',
    ]
    environment = {
        "NCCL_X_TOKEN": SECRET,
        "WANDB_API_KEY": SECRET,
        "TORCH_URL": f"https://me:{SECRET}@host/",
    }
    done = run(["--", *words], tmp_path, 0o022, **environment)
    assert done.returncode == 0, done.stderr
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert any(b"[hidden]" in path.read_bytes() for path in files)
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
