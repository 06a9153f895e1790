"""The recipes of CONTRIBUTING.md, followed: one place each, then seen wherever a user
would look.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from analysis_support import Builder
from tui_pilot import press, screen_text, settle

from gputop.app.strategy import StrategyApp
from gputop.cli import main
from gputop.cli.commands import COMMANDS, FIT, Command
from gputop.cli.commands_page import markdown
from gputop.feed.build import build
from gputop.feed.evidence import EvidenceLoader
from gputop.feed.planning import Ask
from gputop.render.rows import row_text
from gputop.widgets import findings as panel
from gputop_analysis.catalog import model
from gputop_analysis.findings import CATALOGUE, evaluate
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import phases
from gputop_analysis.findings.registry import finding
from gputop_analysis.launch.emit import LAUNCHERS, Launcher
from gputop_analysis.launch.strategy import Launch
from gputop_analysis.model import Proof
from gputop_analysis.report import Report
from gputop_analysis.report.text import as_text

TOY_COMMAND = """
from gputop.cli.parsing import Parser

def parser():
    parser = Parser("toy", "Say how many toys there are.")
    parser.add_argument("--toys", type=int, default=1, help="so many")
    return parser

def execute(words):
    print(f"toys: {parser().parse_args(words).toys}")
    return 0
"""


@pytest.fixture
def toy_command(tmp_path, monkeypatch):
    (tmp_path / "toy_command.py").write_text(TOY_COMMAND)
    monkeypatch.syspath_prepend(str(tmp_path))
    row = Command("toy", FIT, "how many toys there are", "toy_command")
    COMMANDS.append(row)
    yield row
    COMMANDS.remove(row)
    sys.modules.pop("toy_command", None)


def test_a_command_is_a_row_and_a_module(toy_command, capsys) -> None:
    assert main(["toy", "--toys", "3"]) == 0
    assert capsys.readouterr().out == "toys: 3\n"
    assert main(["--help"]) == 0
    will_it_fit = capsys.readouterr().out.split("Will it fit?")[1].split("\n\n")[0]
    assert re.search(r"^  toy +how many toys there are$", will_it_fit, re.MULTILINE)
    with pytest.raises(SystemExit):
        main(["help", "toy"])
    assert "so many" in capsys.readouterr().out
    assert main(["ty"]) == 2 and "did you mean `gputop toy`" in capsys.readouterr().err
    page = markdown()
    assert "[`gputop toy`](#gputop-toy)" in page and "| `--toys TOYS` | so many |" in page


@pytest.fixture
def toy_finding():
    @finding(
        id="XX99",
        name="toy left in the step",
        family="input",
        cause="input",
        trigger="a toy in the step",
        fix="put it away",
        no_use="where toys are the work",
        reads="steps.data_ns",
        silent="no steps",
        traps="a tool that looks like a toy",
        seen_on=CPU,
        explained_by=("HC06",),
        pictures=(phases("data"),),
        immediate=True,
    )
    def toy(view, spec):
        proof = Proof(
            statistic="toys", value=2.0, unit="toys", threshold=1.0, formula="count", inputs=()
        )
        return spec.make(
            severity="high",
            title="2 toys lie in each step",
            evidence="2 toys",
            fix="put them away",
            proof=proof,
        )

    yield
    del CATALOGUE["XX99"]


def test_a_finding_is_one_decorated_function(toy_finding, tmp_path, capsys) -> None:
    record = _record(tmp_path)
    found = [one for one in evaluate(record) if one.id == "XX99"]
    assert [one.title for one in found] == ["2 toys lie in each step"]
    assert "2 toys lie in each step" in as_text(Report(record), 100)

    assert main(["findings", "XX99"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in ("a toy in the step", "where toys are the work", "a tool that looks like a toy"):
        assert words in shown
    assert main(["findings", "--markdown"]) == 0
    assert "### XX99 toy left in the step" in capsys.readouterr().out
    assert main(["findings", "HC06"]) == 0
    assert "XX99" in capsys.readouterr().out.split("takes in")[1]

    snapshot = build(record, tuple(found), window_steps=500, now_ns=10**18, ended=True)
    assert "2 toys lie in each step" in row_text(panel.draw(snapshot, 100, 3)[0])
    evidence = EvidenceLoader("XX99", None)(record, snapshot)
    assert evidence is not None and [plot.title for plot in evidence.plots] == ["data in each step"]


def _record(tmp_path):
    builder = Builder(tmp_path / "r")
    builder.hello(0)
    for _ in range(60):
        builder.step(0, data=1.0, forward=5.0)
    builder.end()
    return builder.open()


TOY_PANEL = """
from gputop.widgets.panel import Panel

def count(record):
    return len(record.ranks())

class Toy(Panel):
    def content(self, snapshot, width, height):
        return [[(f"toys of {snapshot.panels['toy']} ranks", "text")]]
"""
SEE_THE_PANEL = """
import asyncio
from pathlib import Path
from gputop.panels import PANELS, PanelSpec, Want

PANELS.append(
    PanelSpec(
        id="toy",
        keys="T",
        title="Toys",
        label="toys",
        description="Go to the toys.",
        widget="toy_panel:Toy",
        rows=lambda request: Want(3, 3),
        compact=(2, 0),
        normal=(4, 0),
        wide=(1, 4),
        footer=2,
        reads="toy_panel:count",
    )
)

from tui_pilot import screen_text, started
from tui_support import START_NS, write_run
from gputop.cli.commands_page import markdown
from gputop.feed.build import build
from gputop_probes.record.reader import RunRecord

async def see(running):
    for size in ((80, 24), (120, 40), (200, 50)):
        async with started(running, size=size) as (app, pilot):
            assert "T toys" in screen_text(app).splitlines()[-1]
            await pilot.press("T")
            await pilot.pause()
            assert app.main.focused.id == "toy"
            text = screen_text(app)
            assert "Toys" in text or "T toys" in text, text
            assert "toys of 2 ranks" in text, text
            listed = app.get_system_commands(app.screen)
            commands = {command.title: command.help for command in listed}
            assert commands["Toys (T)"] == "Go to the toys."
    async with started(running, size=(120, 70)) as (app, pilot):
        await pilot.press("question_mark")
        await pilot.pause()
        assert "Go to the toys." in screen_text(app)

record = RunRecord.open(write_run(Path("run"), ranks=2))
now_ns = START_NS + 11 * 10**9
asyncio.run(see(build(record, (), window_steps=500, now_ns=now_ns)))
assert "| `T` | toys | Go to the toys. |" in markdown()
"""


def test_a_panel_is_a_row_and_a_widget(tmp_path) -> None:
    """In a process of its own: screens read the table when they are imported."""
    (tmp_path / "toy_panel.py").write_text(TOY_PANEL)
    done = _python(SEE_THE_PANEL, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


def _python(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    path = [str(folder), *(str(root / name) for name in ("tui_app", "analysis", "probes", "tests"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


SEE_THE_GPU = """
import csv, io
import gputop_analysis.data as data
read = data.read

def with_toy(name):
    found = read(name)
    if name != "gpus.csv":
        return found
    text = found.decode()
    row = next(row for row in csv.DictReader(io.StringIO(text)) if row["name"] == "H100-SXM5-80GB")
    row |= {"name": "TOY900-96GB", "aliases": "TOY900", "driver_names": "", "chip": "toy900"}
    row |= {"memory_gb": "96", "usable_gib": ""}
    out = io.StringIO()
    csv.DictWriter(out, next(csv.reader(io.StringIO(text))), extrasaction="ignore").writerow(row)
    return (text.rstrip() + "\\n" + out.getvalue()).encode()

data.read = with_toy
from gputop.cli import main
job = ["--model", "llama-3-8b", "--gpu", "TOY900"]
assert main(["catalog", "show", "TOY900"]) == 0
assert main(["estimate", *job, "--lora"]) == 0
assert main(["plan", *job, "--gpus", "8"]) == 0
assert main(["launch", *job, "--gpus", "8"]) == 0
"""


def test_a_gpu_is_a_row(tmp_path) -> None:
    """In a process of its own: the table is read once."""
    done = _python(SEE_THE_GPU, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    shown, estimate, plan = (
        done.stdout,
        "on TOY900 the largest micro-batch",
        "on 8 x TOY900-96GB",
    )
    assert "96 GB" in shown and estimate in shown and plan in shown and "torchrun" in shown


@pytest.fixture
def toy_launcher():
    LAUNCHERS["toy"] = Launcher(lambda strategy: Launch("toy", ("toyrun", strategy.script)))
    yield
    del LAUNCHERS["toy"]


def test_a_launcher_is_a_row_and_a_function(toy_launcher, capsys) -> None:
    words = ["launch", "--model", "llama-3-8b", "--gpu", "H100", "--gpus", "8", "--for", "toy"]
    assert main(words) == 0
    assert "toyrun train.py" in capsys.readouterr().out
    assert main([*words, "--slurm"]) == 0
    assert "toyrun" in capsys.readouterr().out
    assert main([*words, "--pp", "2", "--schedule", "zero-bubble"]) == 2
    assert "toy has no zero-bubble schedule: emit it for torchtitan" in capsys.readouterr().err
    assert "torchtitan,toy}" in markdown()


async def test_a_launcher_is_on_the_strategy_screen(toy_launcher, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    app = StrategyApp(Ask(model("llama-3-8b"), gpus=8, global_batch=64))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "l")
        assert "6  toy" in " ".join(screen_text(app).split("\n"))
