"""``run.json`` is there whole or not at all, and the first host's stays."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from gputop_probes.record import writer
from gputop_probes.record.writer import RecordWriter


def manifest(run_id: str) -> dict[str, object]:
    return {"run_id": run_id, "command": ["train"], "created_ns": 1}


def make(run_dir: Path, host: str = "box", run_id: str = "first") -> None:
    RecordWriter.create(run_dir, host, manifest(run_id)).close()


def files_of(run_dir: Path) -> set[str]:
    return {path.name for path in run_dir.iterdir() if path.is_file()}


def run_id_of(run_dir: Path) -> str:
    return json.loads((run_dir / "run.json").read_text())["run_id"]


def test_nobody_sees_a_part_of_it(tmp_path, monkeypatch) -> None:
    write, seen = json.dump, []

    def watched(content, file, **options) -> None:
        write(content, file, **options)
        seen.append((tmp_path / "run.json").exists())

    monkeypatch.setattr(writer.json, "dump", watched)
    make(tmp_path)
    assert seen == [False]
    assert files_of(tmp_path) == {"run.json"}
    assert run_id_of(tmp_path) == "first"


def test_a_disk_that_fills_up_leaves_nothing(tmp_path, monkeypatch) -> None:
    def full(content, file, **options) -> None:
        file.write("{")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer.json, "dump", full)
    with pytest.raises(OSError, match="No space"):
        make(tmp_path)
    assert not files_of(tmp_path)


def test_a_file_system_without_hard_links(tmp_path, monkeypatch) -> None:
    def refused(source, target) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    make(tmp_path)
    assert files_of(tmp_path) == {"run.json"}


def test_the_first_hosts_stays(tmp_path, monkeypatch) -> None:
    link = os.link

    def late(source, target) -> None:
        monkeypatch.setattr(os, "link", link)
        make(tmp_path, "other", "second")  # another host is faster by a moment
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    make(tmp_path)
    assert run_id_of(tmp_path) == "second"
    assert files_of(tmp_path) == {"run.json"}
