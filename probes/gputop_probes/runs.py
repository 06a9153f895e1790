"""Lists runs and finds one by name. No NumPy, no pydantic: ``gputop runs`` answers at once."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from gputop_probes import locations, lock, procfs
from gputop_probes.errors import StartError
from gputop_probes.record import files, layout, schema
from gputop_probes.record.fields import Tally
from gputop_probes.record.files import exists, host_folders, rank_files
from gputop_probes.record.one_row import last_rows, row_is_sound
from gputop_probes.record.plain import plain_line
from gputop_probes.record.stopping import first_stop, last_interrupts, stopped_by

_LAST_ROWS = 64
"""Of a file, among which the newest that can be true is looked for."""
_SILENT_S = 60.0
_BACK = re.compile(r"last~(\d{1,6})")


class RunNotFound(ValueError):
    """No run of that name, or several; the text is one line for the user."""


class RunInfo(NamedTuple):
    """One line of ``gputop runs``."""

    name: str
    path: Path
    command: list[str]
    started_ns: int
    ended_ns: int | None
    state: str
    """``running``, ``ended``, ``lost`` (the recorder is gone), or ``damaged``: not readable."""
    exit_code: int | None
    steps: int
    """Of the slowest rank."""
    ranks: int
    given_name: str = ""
    """By ``gputop run --name``; several runs may have the same."""
    stopped_by: str = ""
    """``you``, or the signal that ended it; empty where it ended by itself."""
    damaged: bool = False
    """A look at its manifest, states and newest rows met some that cannot be true."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**self._asdict(), "path": str(self.path)}


def runs_dir() -> Path:
    """Where new records go (see ``locations.runs_root``)."""
    return locations.runs_root()


def shell_name(run_dir: Path) -> str:
    """What to type for this run: its name if that is enough, else its quoted directory."""
    import shlex

    if run_dir.parent == runs_dir():
        return run_dir.name
    return shlex.quote(str(run_dir))


def list_runs() -> list[RunInfo]:
    """All runs of the runs directory and its fallbacks, newest first; only records."""
    runs = [info for path in _candidates() if (info := read_run(path)) is not None]
    return sorted(runs, key=lambda run: run.started_ns, reverse=True)


def newest_runs(count: int) -> list[RunInfo]:
    """The ``count`` newest runs, by when their manifests were written; the others are not read."""
    written: list[tuple[float, Path]] = []
    for path in _candidates():
        with contextlib.suppress(OSError):
            written.append(((path / layout.MANIFEST_FILE).stat().st_mtime, path))
    newest = [path for _, path in sorted(written, reverse=True)[:count]]
    runs = [info for path in newest if (info := read_run(path)) is not None]
    return sorted(runs, key=lambda run: run.started_ns, reverse=True)


def read_run(path: Path) -> RunInfo | None:
    """What there is to say of one run; None if there is no record."""
    try:
        raw = files.read_json(path / layout.MANIFEST_FILE)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return _damaged(path)
    if raw.get("format") != layout.FORMAT:
        return None
    tally = Tally()
    head = schema.manifest(raw, tally)
    if not {"run_id", "command", "created_ns"} <= set(head):
        return _damaged(path, head)
    states = {folder: _state_of(folder, tally) for folder in host_folders(path)}
    ends = [state.get("ended_ns", 0) for state in states.values()]
    codes = [state["exit_code"] for state in states.values() if "exit_code" in state]
    newest = [_newest_row(file, tally) for _, file in rank_files(path / "steps")]
    steps = [row["step"] + 1 if row else 0 for row in newest]
    ended = bool(ends) and all(ends)
    return RunInfo(
        name=plain_line(path.name),
        path=path,
        command=head["command"],
        started_ns=head["created_ns"],
        ended_ns=max(ends) if ended else None,
        state=_overall([host_state(folder, state) for folder, state in states.items()]),
        exit_code=max(codes, default=None),
        steps=min(steps, default=0),
        ranks=len(steps),
        given_name=head.get("name", ""),
        stopped_by=_stopped_by(states, newest) if ended else "",
        damaged=tally.dropped > 0,
    )


def _state_of(host_dir: Path, tally: Tally) -> dict[str, Any]:
    try:
        return schema.host_state(files.read_json(host_dir / layout.STATE_FILE), tally)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        tally.dropped += 1
        return {}


def _damaged(path: Path, head: dict[str, Any] | None = None) -> RunInfo:
    """A directory whose ``run.json`` cannot be read; its own time stands for the run's."""
    head = head or {}
    try:
        changed_ns = path.stat().st_mtime_ns
    except OSError:
        changed_ns = 0
    started_ns = head.get("created_ns", changed_ns)
    return RunInfo(
        name=plain_line(path.name),
        path=path,
        command=head.get("command", []),
        started_ns=started_ns,
        ended_ns=None,
        state="damaged",
        exit_code=None,
        steps=0,
        ranks=0,
        damaged=True,
    )


def find_run(name: str) -> Path:
    """The directory of a run: a path, a run's name, a unique beginning or part of one, the name
    that it was given by ``--name`` (of several the newest), ``last``, or ``last~1`` for the one
    before it.

    Raises:
        RunNotFound: there is none, or more than one.
    """
    path = Path(name)
    if "\0" not in name and (exists(path / layout.MANIFEST_FILE) or ("/" in name and exists(path))):
        return path.absolute()
    candidates = sorted(_candidates(), key=lambda run: run.name, reverse=True)
    if name == "last":
        return _last(candidates)
    if back := _BACK.fullmatch(name):
        return _before_last(int(back[1]), name)
    if path := next((run for run in candidates if run.name == name), None) or _newest_called(
        candidates, name
    ):
        return path
    matches = _similar(candidates, name)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise RunNotFound(
            f"{name!r} fits {len(matches)} runs: {', '.join(run.name for run in matches[:3])}, ..."
        )
    raise RunNotFound(f"no run {name[:200]!r}: `gputop runs` lists the ones there are")


def _before_last(back: int, name: str) -> Path:
    runs = list_runs()
    if back >= len(runs):
        raise RunNotFound(f"no run {name!r}: there are {len(runs)}, see `gputop runs`")
    return runs[back].path


def host_state(host_dir: Path, state: dict[str, Any]) -> str:
    """``running``, ``ended`` or ``lost`` of one host's part."""
    written = str(state.get("state", "starting"))
    if written == "ended":
        return "ended"
    if state.get("boot_id") == procfs.boot_id() and host_dir.name == locations.host_name():
        return "running" if lock.held(host_dir) else "lost"
    return "running" if _seconds_silent(host_dir) < _SILENT_S else "lost"


def local_state(run_dir: Path) -> tuple[str, dict[str, Any]]:
    """This machine's part of a run: host name and ``host.json``.

    Raises:
        StartError: no record, or none of this machine.
    """
    if not (run_dir / layout.MANIFEST_FILE).exists():
        raise StartError(f"no run record at {run_dir}: `gputop runs` lists the ones there are")
    host = locations.host_name()
    state = files.json_or_empty(layout.host_dir(run_dir, host) / layout.STATE_FILE)
    if not state:
        raise StartError(
            f"{run_dir.name} was not recorded on this machine ({host}): `gputop open` shows its "
            "record"
        )
    return host, state


def require_living_command(run_dir: Path, state: dict[str, Any]) -> None:
    """Check that the command of a run without recorder still lives.

    Raises:
        StartError: it has ended.
    """
    same_boot = state.get("boot_id") == procfs.boot_id()
    if not same_boot or not procfs.alive(
        int(state.get("command_pid", -1)), int(state.get("command_start_ticks", 0))
    ):
        raise StartError(
            f"the command of {run_dir.name} has ended: `gputop open {run_dir.name}` shows its "
            "record"
        )


def _candidates() -> list[Path]:
    candidates: list[Path] = []
    for root in (locations.runs_root(), *locations.fallback_roots()):
        try:
            candidates += [path for path in root.iterdir() if exists(path / layout.MANIFEST_FILE)]
        except OSError:
            continue
    return candidates


def no_runs_yet() -> str:
    """What to say where nothing was ever recorded."""
    return f"no runs in {runs_dir()} yet: start one with `gputop run python train.py`"


def _manifest(run_dir: Path) -> dict[str, Any]:
    return files.json_or_empty(run_dir / layout.MANIFEST_FILE)


def _last(candidates: list[Path]) -> Path:
    if not candidates:
        raise RunNotFound(no_runs_yet())
    return max(
        candidates, key=lambda run: schema.manifest(_manifest(run), Tally()).get("created_ns", 0)
    )


def _newest_called(candidates: list[Path], name: str) -> Path | None:
    """Directories begin with the time, so that the first of those sorted is the newest."""
    return next((run for run in candidates if name and _manifest(run).get("name") == name), None)


def _similar(candidates: list[Path], name: str) -> list[Path]:
    if not name:
        return []
    starting = [run for run in candidates if run.name.startswith(name)]
    return starting or [run for run in candidates if name in run.name]


def _overall(states: list[str]) -> str:
    for state in ("running", "lost"):
        if state in states:
            return state
    return "ended" if states else "lost"


def _seconds_silent(host_dir: Path) -> float:
    """Since another machine's recorder last wrote something; its sampler writes every second."""
    times = [0.0]
    for name in ("host.bin", layout.STATE_FILE):
        with contextlib.suppress(OSError):
            times.append((host_dir / name).stat().st_mtime)
    return time.time() - max(times)


def _stopped_by(hosts: Iterable[Path], newest: list[dict[str, Any] | None]) -> str:
    last_step_ns = max((row["t_end_ns"] for row in newest if row), default=0)
    stop = first_stop((event for host in hosts for event in last_interrupts(host)), last_step_ns)
    return stopped_by(stop) if stop else ""


def _newest_row(file: Path, tally: Tally) -> dict[str, Any] | None:
    """The newest record of a rank that can be true."""
    try:
        rows = last_rows(file, _LAST_ROWS)
    except OSError:
        tally.dropped += 1
        return None
    for row in reversed(rows):
        if row_is_sound(row):
            return row
        tally.dropped += 1
    return None
