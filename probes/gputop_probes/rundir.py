"""Makes the directory of a new run, or joins one that another host has begun."""

from __future__ import annotations

import errno
import itertools
import os
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from gputop_probes import locations, lock
from gputop_probes.errors import RecordingImpossible, StartError
from gputop_probes.record import files, layout
from gputop_probes.record.private import close_to_others, make_folder
from gputop_probes.record.writer import RecordWriter

MINIMUM_FREE_BYTES = 16 << 20
"""With less space than this a disk counts as full."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_WRONG = (errno.ENOTDIR, errno.EEXIST)
"""A file lies where ``--run-dir`` wants a directory: the words are wrong, not the machine."""


class RunDir(NamedTuple):
    """A prepared run directory."""

    path: Path
    run_id: str
    host: str
    note: str
    """One line for the user when the record went elsewhere; else empty."""
    created: bool
    """False when another host had made it."""


def prepare(run_dir: Path | None, command: list[str], manifest: dict[str, Any]) -> RunDir:
    """Make the run's directory and manifest; where that cannot be done the record goes elsewhere,
    and ``note`` says so.

    Raises:
        StartError: the chosen directory is a wrong one.
        RecordingImpossible: there is no place for a record anywhere.
    """
    run_id = _new_id(command)
    try:
        return _create(run_dir, run_id, manifest)
    except OSError as error:
        if run_dir is not None and error.errno in _WRONG:
            raise StartError(_refusal(run_dir, error)) from None
        wanted = run_dir if run_dir is not None else locations.runs_root()
        return _create_elsewhere(_reason(wanted, error), run_id, manifest)


def discard(run: RunDir) -> None:
    """Remove a record that never came to be, because the command did not start."""
    if run.created:
        _remove(run.path)


def script_stem(command: list[str]) -> str:
    """What the run is called after: the script, else the module, else the program."""
    scripts = [word for word in command[1:] if word.endswith(".py")]
    modules = [after for word, after in itertools.pairwise(command) if word == "-m"]
    named = scripts or (modules if "python" in os.path.basename(command[0]) else []) or command[:1]
    return (
        re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(named[0]).name.removesuffix(".py")).strip("-.")[:40]
        or "run"
    )


def _new_id(command: list[str]) -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{script_stem(command)}-{os.urandom(2).hex()}"


def _create(chosen: Path | None, run_id: str, manifest: dict[str, Any]) -> RunDir:
    if chosen is None:
        return _create_new(locations.runs_root(), run_id, manifest)
    path = Path(locations.working_directory(), chosen)
    if (path / layout.MANIFEST_FILE).exists():
        return _join(path, manifest)
    if path.is_dir() and any(path.iterdir()):
        raise StartError(f"{chosen} is not empty and holds no run: give --run-dir a new directory")
    return _fill(path, run_id, manifest)


def _create_new(root: Path, run_id: str, manifest: dict[str, Any]) -> RunDir:
    make_folder(root)
    if root == locations.own_root():
        close_to_others(root)
    while True:
        try:
            make_folder(root / run_id, exist_ok=False)
            break
        except FileExistsError:
            run_id = f"{run_id[:-4]}{os.urandom(2).hex()}"
    return _fill(root / run_id, run_id, manifest)


def _fill(path: Path, run_id: str, manifest: dict[str, Any]) -> RunDir:
    existed = path.exists()
    host = locations.host_name()
    try:
        make_folder(path)
        free = os.statvfs(path)
        if free.f_bavail * free.f_frsize < MINIMUM_FREE_BYTES:
            raise OSError(errno.ENOSPC, "no space left on device", str(path))
        RecordWriter.create(path, host, {"run_id": run_id, **manifest}).close()
    except OSError:
        if not existed or not any(path.iterdir()) or (path / layout.MANIFEST_FILE).exists():
            _remove(path)
        raise
    return RunDir(path, run_id, host, "", True)


def _join(path: Path, manifest: dict[str, Any]) -> RunDir:
    """Take part in a run that another host records into the same directory."""
    host = locations.host_name()
    head = _read_manifest(path)
    if head is None or head.get("format") != layout.FORMAT:
        raise StartError(
            f"{path}/run.json was not written by gputop: give --run-dir a new directory"
        )
    if layout.host_dir(path, host).exists():
        busy = lock.held(layout.host_dir(path, host))
        if busy:
            reason = "is being recorded by another gputop right now"
        else:
            reason = "already holds a run of this host"
        raise StartError(f"{path} {reason}: give --run-dir a new directory")
    if not _others_running(path):
        raise StartError(f"{path} already holds a finished run: give --run-dir a new directory")
    RecordWriter.create(path, host, manifest).close()
    return RunDir(path, str(head["run_id"]), host, "", False)


def _others_running(path: Path) -> bool:
    folders = files.host_folders(path)
    states = [files.json_or_empty(folder / layout.STATE_FILE) for folder in folders]
    return not states or any(
        not state or state.get("state") in ("starting", "running") for state in states
    )


def _read_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest; the host that writes it may be half-way through."""
    for _ in range(20):
        manifest = files.json_or_empty(path / layout.MANIFEST_FILE)
        if manifest:
            return manifest
        time.sleep(0.1)
    return None


def _create_elsewhere(reason: str, run_id: str, manifest: dict[str, Any]) -> RunDir:
    for root in locations.new_fallback_roots():
        try:
            run = _create_new(root, run_id, manifest)
        except OSError:
            continue
        return run._replace(note=f"{reason}: this run is recorded in {run.path}")
    raise RecordingImpossible(f"{reason}, and neither /tmp nor memory has a place for a record")


def _remove(path: Path) -> None:
    import shutil  # brings the compression modules along; seldom needed

    shutil.rmtree(path, ignore_errors=True)


def _reason(wanted: Path, error: OSError) -> str:
    if error.errno in _FULL:
        return f"the disk of {wanted} is full"
    return f"cannot record in {wanted} ({error.strerror})"


def _refusal(wanted: Path, error: OSError) -> str:
    where = error.filename or wanted
    return (
        f"cannot record in {where}: {error.strerror}; give --run-dir a directory that can be "
        "written"
    )
