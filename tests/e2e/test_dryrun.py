"""`gputop dryrun`: real trainings of a few steps, and what is said of each."""

import json
import sys

import pytest
from analysis_support import T0, Builder
from e2e_support import gputop

from gputop.cli import main
from gputop.cli.fit.dryrun_data import as_data, verdict
from gputop.cli.fit.dryrun_text import as_text
from gputop_analysis.trial import trial_of
from gputop_probes.record.reader import RunRecord

RANKS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters())
try:
    for i in range(1000):
        model(torch.randn(8, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
except Exception:
    print("caught")
    raise
print("went on to the end")
"""

CUT = """
import torch
from transformers import AutoConfig, AutoModelForCausalLM
config = AutoConfig.for_model(
    "qwen2", num_hidden_layers=9, hidden_size=32, intermediate_size=64, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=128, max_position_embeddings=64)
model = AutoModelForCausalLM.from_config(config)
assert not torch.cuda.is_available()
print("layers", len(model.model.layers))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    tokens = torch.randint(0, 128, (2, 64))
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def dryrun(folder, script, *options, launcher=()):
    (folder / "train.py").write_text(script)
    command = [sys.executable, *launcher, "train.py"]
    env = {"XDG_STATE_HOME": str(folder / "state"), "XDG_DATA_HOME": str(folder / "data")}
    done = gputop("dryrun", "--json", *options, "--", *command, tmp_path=folder, env=env)
    return done, json.loads(done.stdout)


TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_two_ranks_stop_together_after_their_steps(tmp_path):
    done, found = dryrun(tmp_path, RANKS, "--steps", "6", launcher=TWO)
    assert (done.returncode, found["ok"], found["steps"], found["ranks"], found["exit_code"]) == (
        0,
        True,
        6,
        2,
        0,
    ), (found["said"], done.stderr[-3000:])
    assert "went on" not in done.stderr and "caught" not in done.stderr
    timing = found["timing"]
    assert timing["timed_steps"] <= 4 and timing["step_time_p50_ms"] > 0
    assert len(found["memory"]) == 2 and all(one["rss_gib"] > 0 for one in found["memory"])


def test_a_wrong_shape_in_the_first_forward_is_named_with_its_line(tmp_path):
    done, found = dryrun(tmp_path, "import torch\ntorch.nn.Linear(16, 4)(torch.randn(8, 15))\n")
    failure = found["failure"]
    assert (done.returncode, found["ok"], failure["rank"], failure["phase"]) == (
        1,
        False,
        0,
        "forward",
    )
    assert (
        "train.py:2" in failure["site"]
        and "mat1 and mat2" in found["said"]
        and not failure["out_of_memory"]
    )
    assert "Traceback" in done.stderr


LOSS = """
import eager, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(100):
    loss = model(torch.randn(4, 8)).square().mean() * (float("nan") if {bad} else 1.0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("bad", "works"), [("step >= 4", False), ("False", True)])
def test_a_loss_of_nan_does_not_work(tmp_path, bad, works):
    done, found = dryrun(tmp_path, LOSS.format(bad=bad), "--steps", "12")
    assert (done.returncode, found["ok"], found["steps"]) == (0 if works else 1, works, 12)
    if not works:
        assert found["said"].startswith("loss is NaN at step 4 on rank 0 and stays so")
        assert found["critical"]["id"] == "NU01" and as_text(found).startswith(
            "\nFAILS: loss is NaN"
        )


def test_a_model_of_transformers_is_cut_and_estimated_whole(tmp_path):
    done, found = dryrun(tmp_path, CUT, "--cpu", "--layers", "3", "--gpu", "T4")
    assert done.returncode == 0 and "layers 3" in done.stderr
    assert (
        found["layers"] == {"ran": 3, "of": 9}
        and found["steps"] == 4
        and "ended by itself" in found["said"]
    )
    assert (
        found["estimate"]["fits"] is True
        and found["plan"]["gpu"] == "T4"
        and found["plan"]["off_pct"] is None
    )
    assert found["stored"] == "" and not (tmp_path / "state").exists()
    assert "3 of 9 layers" in as_text(found)


def test_a_script_without_a_step_is_no_success(tmp_path):
    done, found = dryrun(tmp_path, "import sys; print('no data in here'); sys.exit(3)")
    assert (done.returncode, found["ok"], found["exit_code"], found["failure"]) == (
        1,
        False,
        3,
        None,
    )
    assert "no training step" in found["said"] and "no data in here" in found["said"]


def test_a_script_that_takes_too_long_is_stopped(tmp_path):
    done, found = dryrun(tmp_path, "import time; time.sleep(600)", "--timeout", "1")
    assert done.returncode == 1 and "0 of 30 steps in 1 s" in found["said"]


@pytest.fixture
def out_of_memory(tmp_path):
    builder = Builder(tmp_path / "run")
    for rank in (0, 1):
        builder.hello(
            rank,
            world_size=2,
            device="cuda",
            device_name="NVIDIA A100-SXM4-80GB",
            dryrun={"steps": 5},
        )
        builder.step(rank, forward=5.0, backward=8.0, optimizer=1.0, peak_allocated_bytes=60 << 30)
    gone = {
        "class": "OutOfMemoryError",
        "message": "CUDA out of memory.",
        "phase": "backward",
        "step": 1,
    }
    builder.event(
        "exception",
        rank=1,
        t_ns=T0 + 50,
        site="train.py:7 main",
        memory={"weights_bytes": 16 << 30},
        **gone,
    )
    builder.event(
        "exception",
        rank=0,
        t_ns=T0 + 70,
        **{"class": "RuntimeError", "message": "peer gone", "phase": "comm"},
    )
    return RunRecord.open(builder.path)


def test_out_of_memory_is_said_with_rank_and_phase_and_what_held_it(out_of_memory):
    trial = trial_of(out_of_memory)
    found = as_data(trial, out_of_memory, code=1, stopped="", gpu="", wanted=5)
    assert found["failure"]["later_ranks"] == [0] and found["failure"]["held_gib"] == {
        "weights": 16.0
    }
    assert found["said"] == "rank 1 runs out of GPU memory in backward at step 1, train.py:7 main"
    assert "weights 16.00" in as_text(found) and json.dumps(found)


def test_a_model_that_cannot_be_cut_is_told(tmp_path):
    builder = Builder(tmp_path / "run")
    builder.hello(0, dryrun={"steps": 4, "layers": 2, "of": None})
    for _ in range(4):
        builder.step(0, forward=1.0)
    record = RunRecord.open(builder.path)
    found = as_data(trial_of(record), record, code=0, stopped="", gpu="", wanted=4)
    assert found["ok"] and found["layers"] is None and found["not_cut_to_layers"] == 2
    assert "not cut: no model of transformers" in as_text(found)


def test_a_rank_that_never_steps_is_missed(tmp_path):
    builder = Builder(tmp_path / "run")
    builder.hello(0, world_size=2)
    for _ in range(5):
        builder.step(0, forward=1.0)
    record = RunRecord.open(builder.path)
    assert verdict(trial_of(record), record, 0, "", 5) == (False, "rank 1 of 2 made no step")


def test_steps_that_were_made_before_the_time_was_over_count(tmp_path):
    builder = Builder(tmp_path / "run")
    builder.hello(0)
    for _ in range(4):
        builder.step(0, forward=1.0)
    record = RunRecord.open(builder.path)
    works, said = verdict(trial_of(record), record, 130, "4 of 30 steps in 9 s (--timeout)", 30)
    assert works and said.startswith("4 steps: forward") and "4 of 30" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--",), "no command"),
        (("--steps", "2", "--", "true"), "--steps must be at least 3"),
        (("--layers", "0", "--", "true"), "--layers must be at least 1"),
        (("--gpu", "H1000", "--", "true"), "H100"),
        (("--timeout", "-1", "--", "true"), "positive number of seconds"),
    ],
)
def test_bad_questions_are_one_line(capsys, words, said):
    assert main(["dryrun", *words]) == 2
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err
