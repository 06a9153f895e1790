"""Scripts that gputop has not started: what they call begins a recorder of its own, or finds the
run they are in.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from e2e_support import environment, gputop
from libraries import needs
from recorder_support import until

from gputop_probes.record.reader import RunRecord
from gputop_probes.runs import RunInfo, read_run

pytestmark = pytest.mark.e2e

LOOP = """
import eager, torch, time
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
def train(steps):
    for i in range(steps):
        model(torch.randn(8, 32)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.006)
"""

NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)
    def forward(self, x, labels):
        found = self.layer(x)
        return {"loss": (found.squeeze(-1) - labels).pow(2).mean(), "logits": found}
"""


def run(tmp_path: Path, body: str, *before: str) -> str:
    """What a script prints; it must end well."""
    script = tmp_path / "script.py"
    script.write_text(body)
    done = subprocess.run(
        [sys.executable, *before, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(tmp_path),
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def ended(run_dir: Path) -> RunInfo:
    """The run once its recorder has seen its process end."""
    until(lambda: (info := read_run(run_dir)) is not None and info.state == "ended", 20)
    info = read_run(run_dir)
    assert info is not None
    return info


def test_two_runs_of_one_process_and_nothing_of_what_lies_between(tmp_path):
    body = (
        LOOP
        + """
from gputop.recording import begin
first = begin("first"); a = first.run_dir
train(40)
values = first.values()
first.finish(3)
train(10)
second = begin("second"); b = second.run_dir
train(25)
import json; print(json.dumps([str(a), str(b), values]))
"""
    )
    a, b, values = json.loads(run(tmp_path, body))
    assert ended(Path(a)).exit_code == 3
    assert ended(Path(b)).exit_code is None, "nobody is there to learn how a process ended"
    for run_dir, steps in ((a, 40), (b, 25)):
        record = RunRecord.open(Path(run_dir))
        rows = record.steps(0)
        assert int(rows["n_steps"].sum()) == steps
        assert int(rows["step"][0]) < steps
        assert rows["forward_ns"].sum() > 0 and rows["backward_ns"].sum() > 0
    phases = sum(
        values[f"gputop/{name}_ms"] for name in ("forward", "backward", "optimizer", "other")
    )
    assert phases == pytest.approx(values["gputop/step_ms"], rel=0.01)
    assert values["gputop/step_ms"] >= 6


def test_where_no_recorder_can_be_had_the_script_runs_on(tmp_path):
    body = (
        LOOP
        + """
import warnings
from gputop.recording import begin
warnings.simplefilter("error", ResourceWarning)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    mine = begin(run_dir="script.py")
train(3)
print(mine.values(), [str(one.message) for one in said])
"""
    )
    printed = run(tmp_path, body)
    assert printed.startswith("{} ['gputop: not recorded: ")
    assert printed.count("gputop:") == 1


@needs("transformers")
def test_the_trainers_log_and_the_record_have_each_others_values(tmp_path):
    (tmp_path / "hf.py").write_text(
        NET
        + """
from transformers import Trainer, TrainerCallback, TrainingArguments
from gputop.transformers import GputopCallback
class Store(TrainerCallback):
    logs = []
    def on_log(self, args, state, control, logs=None, **_):
        self.logs.append(dict(logs))
data = [{"x": torch.randn(16), "labels": torch.tensor(1.0)} for _ in range(160)]
arguments = TrainingArguments("out", max_steps=40, logging_steps=20, report_to="none", use_cpu=True,
    per_device_train_batch_size=4, save_strategy="no", disable_tqdm=True)
ours = GputopCallback()
trainer = Trainer(Net(), arguments, train_dataset=data, callbacks=[Store(), ours])
trainer.train()
for log in (Store.logs[0], trainer.state.log_history[0]):
    assert log["gputop/step_ms"] > 0 and "loss" in log, log
print("own recorder:", ours.recording.run_dir)
"""
    )
    done = gputop("run", "--headless", sys.executable, "hf.py", tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "own recorder: None" in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    logged = [event["values"] for event in RunRecord.open(folder).events("log")]
    assert logged and all("loss" in values for values in logged[:1])
    assert not any(name.startswith("gputop/") for values in logged for name in values)


@needs("lightning")
def test_lightnings_actions_are_named_phases_and_its_log_has_our_values(tmp_path):
    body = """
import torch, json, lightning.pytorch as pl
from lightning.pytorch.loggers import CSVLogger
from gputop.lightning import GputopCallback, GputopProfiler
class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)
    def training_step(self, batch, index):
        loss = self.layer(batch[0]).pow(2).mean()
        self.log("train_loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-2)
source = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(240, 16)), 4)
profiler = GputopProfiler("lit")
trainer = pl.Trainer(max_steps=60, log_every_n_steps=20, profiler=profiler,
    callbacks=[GputopCallback()], logger=CSVLogger("."), accelerator="cpu",
    enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False)
trainer.fit(Net(), source)
trainer.logger.save()
print(json.dumps([str(profiler.recording.run_dir), trainer.logger.log_dir, profiler.summary()]))
"""
    run_dir, log_dir, summary = json.loads(run(tmp_path, body).splitlines()[-1])
    head = (tmp_path / log_dir / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"gputop/step_ms", "gputop/backward_ms", "train_loss"} <= set(head)
    assert "SingleDeviceStrategy.training_step" in summary
    assert ended(Path(run_dir)).steps == 60
    record = RunRecord.open(Path(run_dir))
    named = {event["name"]: event["count"] for event in record.events("named_phase")}
    assert named["SingleDeviceStrategy.training_step"] == 59, "of 60, the first sets up"
    assert any("train_loss" in event["values"] for event in record.events("log"))


@needs("accelerate")
def test_the_ranks_of_a_launcher_meet_in_one_run(tmp_path):
    body = (
        LOOP.replace("eager, ", "")
        + """
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from gputop.accelerate import GputopTracker
class Store(GeneralTracker):
    name, requires_logging_directory, tracker = "store", False, None
    logs = []
    def store_init_configuration(self, values): pass
    def log(self, values, step=None, **_): self.logs.append(values)
ours = GputopTracker("both")
accelerator = Accelerator(log_with=[Store(), ours], cpu=True)
accelerator.init_trackers("project", {"rate": 1e-3})
ours.follow(accelerator)
model, optimizer = accelerator.prepare(model, optimizer)
train(20)
accelerator.log({"loss": 0.5}, step=20)
train(20)
accelerator.end_training()
if accelerator.is_main_process:
    print("logs:", [sorted(log) for log in Store.logs])
"""
    )
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    printed = run(tmp_path, body, *words)
    assert "['loss'], ['gputop/backward_ms'," in printed
    (folder,) = (tmp_path / "runs").iterdir()
    assert (ended(folder).ranks, ended(folder).steps) == (2, 40)
    events = RunRecord.open(folder).events
    assert {event["rank"] for event in events("log")} == {0}, "Accelerate logs on the first rank"
    assert list(events("orphans")) == []


@needs("nbclient", "ipykernel")
def test_a_notebooks_cell_has_a_live_panel_and_the_report(tmp_path, monkeypatch):
    import nbclient
    import nbformat

    monkeypatch.setenv("GPUTOP_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    cells = [
        "%load_ext gputop",
        f"%%gputop first\n{LOOP}\ntrain(150)\n[1, 2]",
        "%%gputop\ntrain(30)\n1/0",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    kernel = {"display_name": "here", "language": "python", "name": "here"}
    spec = {
        **kernel,
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
    }
    folder = tmp_path / "jupyter" / "kernels" / "here"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    client = nbclient.NotebookClient(notebook, timeout=120, kernel_name="here")
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="division by zero"):
        client.execute()
    panel, report, value = notebook.cells[1].outputs
    assert "ms a step" in panel.data["text/plain"] and "backward" in panel.data["text/plain"]
    assert report.data["text/plain"].startswith("ended: 150 steps, exit 0")
    assert report.data["text/html"].startswith("<iframe")
    assert value.data["text/plain"] == "[1, 2]"
    told = notebook.cells[2].outputs[1].data["text/plain"]
    assert "exit 1" in told and "ZeroDivisionError" in told and "no exception" not in told


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("own"), 1),
        (KeyboardInterrupt(), 130),
        (SystemExit(), 0),
        (SystemExit(3), 3),
        (SystemExit("words"), 1),
    ],
)
def test_a_cell_ends_with_the_exit_code_that_a_script_would_have(error, code):
    from gputop.notebook import _exit_code

    assert _exit_code(error) == code


@pytest.mark.parametrize("name", ["transformers", "lightning", "accelerate"])
def test_a_missing_framework_is_one_line(name):
    code = f"import sys; sys.modules['{name}'] = None; import gputop.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: gputop.{name} needs {name}") and "pip install" in last
    assert "During handling" not in done.stderr
