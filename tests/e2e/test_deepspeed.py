"""DeepSpeed on two gloo ranks, where it is installed: it is no test dependency, as it compiles C++
at its start.

DS_ACCELERATOR=cpu pytest tests/e2e/test_deepspeed.py
"""

import importlib.util
import json
import sys

import pytest
from e2e_support import gputop

from gputop.cli.records import open_record
from gputop_analysis.view import RunView

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        not importlib.util.find_spec("deepspeed"), reason="deepspeed is not installed"
    ),
]

MICRO_BATCHES, ACCUMULATED, SLOW_MS = 240, 2, 40.0
SCRIPT = f"""
import os, time, torch, deepspeed
stage = int(os.environ["STAGE"])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 128))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={{
    "train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": {ACCUMULATED},
    "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-3, "torch_adam": True}}}},
    "zero_optimization": {{"stage": stage}}, "bf16": {{"enabled": True}}}})
rows = [torch.randn(128) for _ in range(16 * {MICRO_BATCHES})]
for x in torch.utils.data.DataLoader(rows, batch_size=16):
    if os.environ["RANK"] == "1":
        time.sleep({SLOW_MS / ACCUMULATED / 1e3})
    loss = engine(x.bfloat16()).float().pow(2).mean()
    engine.backward(loss)
    engine.step()
"""


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_step_is_an_update_and_the_slow_rank_is_named(stage, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    ranks = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "train.py",
    ]
    env = {"STAGE": str(stage), "DS_ACCELERATOR": "cpu"}
    done = gputop("run", "--headless", "--run-dir", "run", *ranks, tmp_path=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    report = json.loads(gputop("report", "run", "--json", tmp_path=tmp_path).stdout)
    assert (report["steps"], report["world_size"]) == (MICRO_BATCHES // ACCUMULATED, 2)
    hello = RunView(open_record(str(tmp_path / "run"))).hello(0)
    assert hello["parallel"]["deepspeed"]["zero_stage"] == stage
    assert hello["model"]["parameters"] == 128 * 512 + 512 + 512 * 128 + 128
    slow = next(one for one in report["findings"] if one["id"] == "CR04")
    assert slow["rank"] == 1 and slow["recoverable_ms_per_step"] == pytest.approx(SLOW_MS, rel=0.5)
