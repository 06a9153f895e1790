"""Whatever a record holds, every command ends soon, with one clear line or plausible figures, and
damage is said.

``bench/fuzz_records.py`` does the same with thousands; ``evil_records`` is the table of those made
by hand.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import record_fuzz
from evil_records import EVIL, field
from record_fuzz import damaged_copy, outcome, problems, sound_figures
from tui_support import write_run

from gputop_agent import wire
from gputop_probes.record.events import GrowingLines
from gputop_probes.record.reader import RunRecord
from gputop_probes.record.tables import GrowingTable

SEEDS = 150
PARTS = 10
"""Tests that the seeds are spread over, so that several workers share them."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    run = write_run(
        tmp_path_factory.mktemp("sound") / "run", ranks=2, steps=120, gpus=1, slow_rank=1
    )
    return run, sound_figures(run)


@pytest.fixture
def few_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        record_fuzz,
        "COMMANDS",
        (("report", "--json"), ("report", "--md"), ("export", "--format", "csv")),
    )


@pytest.mark.usefixtures("few_commands")
@pytest.mark.parametrize("part", range(PARTS))
def test_records_damaged_by_chance(sound, tmp_path: Path, part: int) -> None:
    run, figures = sound
    for seed in range(part, SEEDS, PARTS):
        copy, done = damaged_copy(run, tmp_path, seed)
        found = list(problems(copy, figures, tmp_path / "page.html"))
        assert not found, f"seed {seed}, {done}:\n" + "\n".join(found)
        shutil.rmtree(copy)


@pytest.mark.usefixtures("few_commands")
@pytest.mark.parametrize("name", EVIL)
def test_records_made_by_hand(sound, tmp_path: Path, name: str) -> None:
    run, figures = sound
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    EVIL[name](copy)
    assert list(problems(copy, figures, tmp_path / "page.html")) == []


def test_there_are_enough_of_them() -> None:
    assert len(EVIL) >= 200


def test_no_directory_breaks_the_list_of_runs(
    sound, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    for number, name in enumerate(list(EVIL)[::2]):
        if not name.startswith(("events", "event", "many events", "a trace")):
            shutil.copytree(sound[0], root / f"evil-{number}")
            EVIL[name](root / f"evil-{number}")
    shutil.copytree(sound[0], root / "sound")
    monkeypatch.setenv("GPUTOP_RUNS_DIR", str(root))
    code, out, err = outcome(["runs", "-n", "0"])
    assert (code, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert "exit 0" in lines["sound"] and "damaged" not in lines["sound"]
    assert sum("damaged" in line for line in lines.values()) > 20
    assert outcome(["runs", "--json", "-n", "0"])[0] == 0
    assert outcome(["report", "sound"])[0] == 0


def test_damage_is_said_in_every_form(sound, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(sound[0], copy)
    field("wall_ns", -152_000_000)(copy)
    data = json.loads(outcome(["report", str(copy), "--json"])[1])
    assert (data["damaged_rows"], data["damage"]) == (
        1,
        ["steps/rank-00000.bin: 1 damaged row left out"],
    )
    assert data["step_time_p50_ms"] == pytest.approx(sound[1]["step_time_p50_ms"], rel=0.02)
    for words in (
        ["report"],
        ["report", "--md"],
        ["report", "--html", str(tmp_path / "page.html")],
    ):
        code, out, _ = outcome([words[0], str(copy), *words[1:]])
        text = out or (tmp_path / "page.html").read_text()
        assert code == 0 and "1 damaged row left out" in text.replace("\\", "")
    assert "1 damaged row left out" in outcome(["diff", str(sound[0]), str(copy)])[2]


@pytest.mark.parametrize("column", ["t_end_ns", "wall_ns", "forward_ns", "step", "n_steps"])
@pytest.mark.parametrize("at", [0, 1, 60, -1])
def test_a_changed_bit_of_what_is_checked_drops_that_row_alone(
    sound, tmp_path: Path, column: str, at: int
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(sound[0], copy)
    path = copy / "steps/rank-00000.bin"
    before = RunRecord.open(sound[0]).steps(0)
    rows = before.copy()
    rows[column][at] ^= 1 << (45 if column == "t_end_ns" else 28)
    path.write_bytes(rows.tobytes())
    record = RunRecord.open(copy)
    assert record.damage.rows == 1
    others = np.delete(np.arange(len(before)), at)
    assert record.steps(0).tobytes() == before.take(others).tobytes(), "all others are as they were"


def test_where_attempts_begin_is_told_in_the_rows_that_are_left(tmp_path: Path) -> None:
    from analysis_support import Builder

    build = Builder(tmp_path / "r")
    for attempt in range(2):
        build.event(
            "rank_start", rank=0, pid=100 + attempt, record_index=80 * attempt, attempt=attempt
        )
        build.steps(80, forward=5.0)
        build.next_step[0] = -1
    build.end()
    field("forward_ns", 7, at=10)(tmp_path / "r")
    record = build.open()
    assert (record.damage.rows, record.rank_starts(0), len(record.steps(0))) == (1, [0, 79], 159)
    assert record.steps(0)["step"][79] == 0


def test_a_row_that_is_being_written_is_no_damage_and_damage_in_a_growing_file_is(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "run", steps=40)
    path = run / "steps/rank-00000.bin"
    whole, size = path.read_bytes(), wire.STEP.size
    path.write_bytes(whole[: 10 * size + 7])
    record = RunRecord.open(run)
    assert (len(record.steps(0)), bool(record.damage)) == (10, False)
    path.write_bytes(whole[: 20 * size])
    assert record.refresh() and (len(record.steps(0)), bool(record.damage)) == (20, False)
    path.write_bytes(whole[: 20 * size] + b"\x7f" * size + whole[20 * size :])
    assert record.refresh() and (len(record.steps(0)), record.damage.rows) == (40, 1)
    assert record.steps(0)["step"].tolist() == list(range(40))


def test_a_long_file_is_checked_where_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gputop_probes.record import tables

    run = write_run(tmp_path / "run", steps=3000)
    monkeypatch.setattr(tables, "WHOLE_AT_MOST", 1000)
    monkeypatch.setattr(tables, "KEPT_AT_MOST", 2000)
    path = run / "steps/rank-00000.bin"
    dtype = RunRecord.open(run).steps(0).dtype
    table = GrowingTable(path, dtype, "steps")
    assert table.refresh() and (len(table.rows), table.damaged, table.unread) == (3000, 0, 0)
    data = bytearray(path.read_bytes())
    data[-wire.STEP.size + 10] ^= 1
    path.write_bytes(data)
    table = GrowingTable(path, dtype, "steps")
    assert table.refresh() and (len(table.rows), table.damaged, table.unread) == (1999, 1, 1000)


def test_of_very_many_events_the_rare_ones_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gputop_probes.record import events

    monkeypatch.setattr(events, "KEPT_OF_A_TYPE", 100)
    path = tmp_path / "events.jsonl"
    log = [
        {"t_ns": 1_790_000_000 * 10**9 + n, "type": "log", "step": n, "values": {"a": 1.0}}
        for n in range(10_000)
    ]
    end = {"t_ns": 1_790_000_100 * 10**9, "type": "run_end", "exit_code": 3}
    path.write_text("".join(json.dumps(one) + "\n" for one in [*log, end]))
    lines = GrowingLines(path)
    assert lines.refresh() and lines.items[-1]["exit_code"] == 3
    kept = [one["step"] for one in lines.of(("log",))]
    assert 200 < len(kept) < 1000 and max(kept) > 9000, "they are spread over the run"
    assert lines.left_out == 10_000 - len(kept) and lines.damaged == 0


def test_events_behind_a_hole_are_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    line = b'{"t_ns": 1790000000000000000, "type": "run_end", "exit_code": 0}\n'
    with path.open("wb") as file:
        file.write(line)
        file.seek(20 << 30)
        file.write(b"\n" + line)
    lines = GrowingLines(path)
    assert lines.refresh() and len(lines.items) == 2


def test_no_warning_of_numpy_reaches_the_user(sound) -> None:
    import subprocess
    import sys

    code = (
        "import sys, warnings, gputop.cli.happened.report as report\n"
        "report.execute = lambda words: warnings.warn('overflow', RuntimeWarning) or 0\n"
        "from gputop.cli import main; sys.exit(main(['report', 'x']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
