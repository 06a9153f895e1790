"""What shells get: completion, the manual page, the line for a status bar."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from tui_support import START_NS, step_row, write_run

from gputop.cli import main
from gputop.cli.commands import COMMANDS
from gputop.cli.happened.status import standing_of
from gputop.cli.house import completion, man
from gputop_agent.wire import F_NONFINITE
from gputop_probes.record.writer import RecordWriter
from gputop_probes.runs import read_run


@pytest.fixture(scope="module")
def known():
    return [completion.words_of(command.name) for command in COMMANDS]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["repo"], {"report"}),
        (["run", "--pub"], {"--publish"}),
        (["catalog", "sh"], {"show"}),
        (["completion", "f"], {"fish"}),
        (["export", "--format", "per"], {"perfetto"}),
        (["open", "2026"], {"20260101-a", "20260102-b"}),
        (["help", "compl"], {"completion"}),
    ],
)
def test_bash_completes_commands_options_values_and_runs(known, words, expected, tmp_path):
    for name in ("20260101-a", "20260102-b"):
        (tmp_path / name).mkdir()
    script = completion.bash(known) + (
        f"COMP_WORDS=(gputop {' '.join(words)}); COMP_CWORD={len(words)}; _gputop; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = {"PATH": os.environ["PATH"], "GPUTOP_RUNS_DIR": str(tmp_path)}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.stderr == "" and set(done.stdout.split()) == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_take_the_script_and_it_has_every_command(known, shell, tmp_path):
    text = getattr(completion, shell)(known)
    for one in known:
        assert one.summary in text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
        for option, _ in one.options:
            assert (option if shell == "zsh" else f"-l {option[2:]} ") in text
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here: its parser has not read the script")
    script = tmp_path / "script"
    script.write_text(text)
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_manual_page_has_every_command_and_no_warning(tmp_path):
    source = tmp_path / "gputop.1"
    source.write_text(man.page())
    for command in COMMANDS:
        assert f".SS gputop {command.name}\n" in man.page()
    if shutil.which("man") is None or shutil.which("groff") is None:
        pytest.skip("no man(1) here")
    environment = {**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        ["man", "--warnings", "-l", str(source)], env=environment, capture_output=True, text=True
    )
    assert done.stderr == ""
    assert "--hang-seconds S" in done.stdout and "last or last~1." in done.stdout


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "r", ranks=2, state="running", exit_code=None)


def test_the_line_says_where_the_run_stands(folder):
    run = read_run(folder)._replace(state="running")
    last_ns = START_NS + 2 * 10**9 + 400 * 15_900_000
    assert standing_of(run, last_ns).short() == "train.py 400 15.8 ms loss 2.258"
    assert standing_of(run, last_ns + 246 * 10**9).short() == (
        "▲ attention train.py 400 NO STEP 4:06 loss 2.258"
    )
    row = step_row(0, 400, last_ns, {"forward": 5.0}, loss=float("inf"), flags=F_NONFINITE)
    RecordWriter(folder, "box").append_rank("steps", 1, row * 64)
    bad = standing_of(run, last_ns)
    assert "loss" in bad.short() and json.loads(json.dumps(bad.data(), allow_nan=False))
    over = standing_of(run._replace(state="ended", exit_code=3), last_ns)
    assert over.short().startswith("✖ failed train.py exit 3 ")


def test_the_line_begins_with_what_is_wrong(folder):
    run = read_run(folder)._replace(state="running")
    last_ns = START_NS + 2 * 10**9 + 400 * 15_900_000
    writer = RecordWriter(folder, "box")
    writer.append_event({"t_ns": last_ns, "type": "hang_suspected", "ranks": [0, 1]})
    hangs = standing_of(run, last_ns + 246 * 10**9)
    assert hangs.short().startswith("✖ critical train.py 400 NO STEP 4:06")
    assert hangs.data()["severity"] == "critical"
    assert standing_of(run, last_ns).severity == ""  # steps come: what was suspected is over
    stopped = run._replace(state="ended", exit_code=130, stopped_by="you")
    assert standing_of(stopped, last_ns).short().startswith("■ stopped train.py exit 130")
    assert standing_of(run._replace(state="lost"), last_ns).short().startswith("✖ failed ")


def test_how_a_run_ended_is_said_once(tmp_path, capsys):
    folder = write_run(tmp_path / "over")
    assert main(["status", str(folder)]) == 0
    line = capsys.readouterr().out
    assert line.count("ended") == 1 and line.startswith(f"{folder.name}: ■ ended"), line


def test_the_line_is_of_any_rank_whose_loss_is_no_number(folder):
    run = read_run(folder)._replace(state="running")
    last_ns = START_NS + 2 * 10**9 + 400 * 15_900_000
    row = step_row(1, 500, last_ns, {"forward": 5.0}, loss=float("nan"), flags=F_NONFINITE)
    RecordWriter(folder, "box").append_rank("steps", 1, row * 3)  # the faster of two ranks
    assert standing_of(run, last_ns).short() == "✖ critical train.py 400 15.8 ms loss NaN"


def test_the_line_is_ascii_where_the_locale_has_no_more(folder):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    words = [sys.executable, "-m", "gputop", "status", "--short", str(folder)]
    done = subprocess.run(words, env=environment, capture_output=True)
    assert done.stdout.startswith(b"^ attention train.py") and done.stdout.isascii(), done


def test_a_status_bar_shows_nothing_where_no_run_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GPUTOP_RUNS_DIR", str(tmp_path))
    monkeypatch.setattr("gputop_probes.locations.fallback_roots", lambda: iter(()))
    assert main(["status", "--short"]) == 3 and capsys.readouterr() == ("", "")
    assert main(["status"]) == 3 and "no runs in" in capsys.readouterr().err


def test_the_line_needs_no_numpy():
    program = (
        "import sys; from gputop.cli import main; main(['status', '--short', 'none']); "
        "print([m for m in ('numpy', 'pydantic', 'textual', 'gputop_analysis')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done
