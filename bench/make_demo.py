"""Records the run that ``gputop demo`` replays: a real training of examples/tiny_gpt.py on eight
ranks, of which one gets its batches late.

    python bench/make_demo.py

The ranks train on CPUs. The record is taken as it is, but for two things: paths of the machine that
made it are shortened in its text files, and figures of GPUs are added and marked as added
(bench/added_gpus.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from pathlib import Path

import added_gpus

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "tui_app" / "gputop" / "recordings" / "demo.zip"
RANKS = "8"
TRAINING = [
    "examples/tiny_gpt.py",
    "--steps",
    "600",
    "--width",
    "48",
    "--layers",
    "2",
    "--batch",
    "4",
    "--slow-data",
    "120",
    "--slow-rank",
    "5",
    "--eval-every",
    "200",
]
TEXT = {".json", ".jsonl", ".log"}


def record(run_dir: Path) -> None:
    """Run the training under gputop, from the repository's root."""
    launcher = Path(sysconfig.get_path("scripts")) / "torchrun"
    command = [str(launcher), "--standalone", "--nproc-per-node", RANKS, *TRAINING]
    run = [
        sys.executable,
        "-m",
        "gputop",
        "run",
        "--headless",
        "--name",
        "tiny-gpt",
        "--run-dir",
        str(run_dir),
        *command,
    ]
    subprocess.run(
        run,
        check=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )


def shorten(run_dir: Path) -> None:
    """Take this machine's paths and name out of the text files."""
    names = {
        str(ROOT): "/home/you/gputop",
        sys.prefix: "/home/you/venv",
        sys.base_prefix: "/usr",
        str(Path.home()): "/home/you",
        str(run_dir.parent): "/home/you/runs",
    }
    for path in run_dir.rglob("*"):
        if path.suffix in TEXT:
            text = path.read_text()
            for long in sorted(names, key=len, reverse=True):
                text = text.replace(long, names[long])
            path.write_text(text)


def mark(run_dir: Path) -> None:
    """Say in the manifest that this is a recording, and of what."""
    path = run_dir / "run.json"
    manifest = json.loads(path.read_text())
    manifest["command"] = ["torchrun", "--nproc-per-node", RANKS, *TRAINING]
    day = time.strftime("%Y-%m-%d")
    manifest["recording"] = (
        f"real run of {RANKS} ranks on {os.cpu_count()} CPU cores, {day}; GPU figures added"
    )
    path.write_text(json.dumps(manifest, indent=1))


def main() -> None:
    """Record, shorten, add, pack."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "tiny-gpt"
        record(run_dir)
        shorten(run_dir)
        added_gpus.add(run_dir)
        mark(run_dir)
        TARGET.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(TARGET, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
            for path in sorted(run_dir.rglob("*")):
                if path.is_file() and path.name not in ("recorder.lock", "recorder.log"):
                    packed.write(path, path.relative_to(run_dir.parent))
    print(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
