"""Two gloo ranks under torchrun, and the loops of Trainer, Accelerate and Lightning."""

import importlib.util
import json
import socket

import pytest
from agent_support import run_script

from gputop_agent import wire

pytestmark = pytest.mark.e2e

RANKS = """
import time, torch, torch.distributed as dist, torch.utils.data
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
dist.init_process_group("gloo")
torch.manual_seed(0)
def net(): return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
def loop(model, steps):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    source = iter(torch.utils.data.DataLoader(torch.randn(400, 8), 4))
    for i in range(steps):
        model(next(source)).pow(2).mean().backward()
        optimizer.step(); optimizer.zero_grad()
        if i % 5 == 0:
            if dist.get_rank() == 1: time.sleep(0.05)
            dist.all_reduce(torch.ones(1))
loop(nn.parallel.DistributedDataParallel(net()), 10)
loop(FullyShardedDataParallel(net(), device_id=torch.device("cpu")), 10)
sharded = net()
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for part in (sharded[0], sharded[2], sharded): fully_shard(part, mesh=mesh)
loop(sharded, 10)
dist.destroy_process_group()
"""


def test_ddp_fsdp1_and_fsdp2_on_two_ranks(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(port),
        str(script),
    ]
    outcome = run_script(command, timeout=300)
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.agent_errors == ""
    guests = {guest.of_type("hello")[0]["rank"]: guest for guest in outcome.guests}
    assert sorted(guests) == [0, 1], "the launcher itself stays silent"
    for guest in guests.values():
        assert guest.n_steps == 30
        for record in guest.steps:
            assert record["wall_ns"] == sum(record[f"{phase}_ns"] for phase in wire.PHASES)
        assert guest.phase_ms("forward") > 0 and guest.phase_ms("backward") > 0
    assert guests[0].phase_ms("comm") > 200, "rank 0 waited for rank 1 in all_reduce six times"
    assert guests[1].phase_ms("comm") < guests[0].phase_ms("comm")


ENGINE = """
import torch
from torch import nn
class DeepSpeedEngine(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
    def forward(self, x):
        return self.module(x)
engine = DeepSpeedEngine(nn.Linear(8, 8))
flat = nn.Parameter(torch.zeros(72))
optimizer = torch.optim.SGD([flat], 1e-3)
for _ in range(20):
    engine(torch.randn(4, 8)).pow(2).mean().backward()
    flat.grad = torch.cat([p.grad.flatten() for p in engine.parameters()])
    optimizer.step()
    engine.zero_grad()
"""


def test_a_model_whose_optimizer_holds_flat_partitions_is_described(tmp_path):
    """As ZeRO's do; without DeepSpeed's configuration its engine is known by name alone."""
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    outcome = run_script([str(script)])
    assert (outcome.exit_code, outcome.agent_errors) == (0, "")
    hello = outcome.guests[0].of_type("hello")[-1]
    assert hello["model"]["parameters"] == 72 and hello["parallel"]["deepspeed"] is True
    assert outcome.guests[0].phase_ms("forward") > 0


TRAINERS = """
import atexit, json, os, sys, time, torch, torch._dynamo, torch.utils.data
from torch import nn
class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        time.sleep(0.004)
        return self.layer(x)
class Rows(torch.utils.data.Dataset):
    def __init__(self, size, wrap=False): self.size, self.wrap = size, wrap
    def __len__(self): return self.size
    def __getitem__(self, i):
        return {"x": torch.ones(8), "labels": 0} if self.wrap else torch.ones(8)
def transformers():
    from transformers import Trainer, TrainingArguments
    class Model(nn.Module):
        def __init__(self): super().__init__(); self.body = Body()
        def forward(self, x=None, labels=None):
            y = self.body(x)
            return {"loss": y.pow(2).mean(), "logits": y}
    arguments = TrainingArguments(output_dir=sys.argv[1], max_steps=12,
        per_device_train_batch_size=4, gradient_accumulation_steps=2, report_to=[],
        eval_strategy="steps", eval_steps=6, save_strategy="steps",
        save_steps=6, use_cpu=True, disable_tqdm=True)
    train, evaluation = Rows(1000, True), Rows(16, True)
    Trainer(model=Model(), args=arguments, train_dataset=train, eval_dataset=evaluation).train()
def accelerate():
    from accelerate import Accelerator
    accelerator, net = Accelerator(gradient_accumulation_steps=2, cpu=True), Body()
    net, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), 1e-3),
        torch.utils.data.DataLoader(Rows(96), 4))
    for x in loader:
        with accelerator.accumulate(net):
            accelerator.backward(net(x).pow(2).mean())
            optimizer.step(); optimizer.zero_grad()
def lightning():
    import lightning
    class Module(lightning.LightningModule):
        def __init__(self): super().__init__(); self.net = Body()
        def training_step(self, batch, i): return self.net(batch).pow(2).mean()
        def validation_step(self, batch, i): self.log("v", self.net(batch).mean())
        def configure_optimizers(self): return torch.optim.AdamW(self.parameters(), 1e-3)
    lightning.Trainer(max_steps=12, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, val_check_interval=6).fit(
        Module(), torch.utils.data.DataLoader(Rows(400), 4),
        torch.utils.data.DataLoader(Rows(16), 4))
for name in sys.argv[2:]:
    pid = os.fork()
    if pid == 0:
        globals()[name]()
        sys.stdout.flush()
        atexit._run_exitfuncs()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    with open(sys.argv[1] + "/pids", "a") as file:
        file.write(json.dumps([name, pid, status]) + chr(10))
"""
NAMES = ["transformers", "accelerate", "lightning"]


@pytest.fixture(scope="module")
def trainers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainers")
    script = folder / "trainers.py"
    script.write_text(TRAINERS)
    installed = [name for name in NAMES if importlib.util.find_spec(name)]
    outcome = run_script([str(script), str(folder), *installed], timeout=400)
    assert outcome.agent_errors == ""
    guests = {guest.of_type("hello")[0]["pid"]: guest for guest in outcome.guests}
    ends = [json.loads(line) for line in (folder / "pids").read_text().splitlines()]
    assert all(status == 0 for _, _, status in ends), outcome.stderr
    return {name: guests.get(pid) for name, pid, _ in ends}


@pytest.mark.parametrize("name", NAMES)
def test_trainers(trainers, name):
    if name not in trainers:
        pytest.skip(f"{name} is not installed here")
    guest = trainers[name]
    assert guest is not None
    assert guest.n_steps == 12
    micro_batches = 12 if name == "lightning" else 24
    assert sum(record["micro_batches"] for record in guest.steps) == micro_batches
    assert 4 * (micro_batches - 4) <= guest.phase_ms("forward") <= 12 * micro_batches
    assert bool(guest.flags & wire.F_EVAL) == (name != "accelerate")
    if name == "transformers":  # the evaluation after the last step belongs to none
        assert guest.of_type("checkpoint") and guest.phase_ms("eval") >= 8


FABRIC = """
import sys, torch, lightning
net = torch.nn.Linear(1024, 1024)
fabric = lightning.Fabric(accelerator="cpu", devices=1)
model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), 1e-3))
for step in range(12):
    fabric.backward(model(torch.randn(4, 1024)).pow(2).mean())
    optimizer.step(); optimizer.zero_grad()
    fabric.save(sys.argv[1], {"net": model})
"""


def test_a_checkpoint_of_fabrics_is_its_file_and_not_the_buffer_before_it(tmp_path):
    pytest.importorskip("lightning")
    script, state = tmp_path / "train.py", tmp_path / "state.ckpt"
    script.write_text(FABRIC)
    outcome = run_script([str(script), str(state)], timeout=200)
    assert outcome.agent_errors == ""
    events = outcome.guests[0].of_type("checkpoint")
    assert len(events) == 12
    for event in events:
        assert event["via"] == "lightning" and event["path"] == str(state)
        assert event["bytes"] > 4e6 and event["site"].endswith("train.py:9")
