"""Each lint rule on source that has the fault, and on source that only looks like it."""

import textwrap

import pytest

from gputop_analysis.lint import all_rules, fixed, in_source, lint, rules_at

LOADER = "from torch.utils.data import DataLoader\nfrom sets import Rows\n"
TRAIN = """
import gc, torch
from torch import nn
device = torch.device("cuda")
model = nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
losses, total = [], 0.0
for epoch in range(3):
    for step, (x, y) in enumerate(batches):
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        BODY
    scheduler.step()
"""


def found(source):
    return {one.rule for one in lint("train.py", textwrap.dedent(source).encode())}


def in_loop(*lines, head="", before=TRAIN):
    return head + before.replace("BODY", "\n        ".join(lines))


def ddp(source, head=""):
    wrap = "from torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(net)\n"
    return LOADER + "import torch, torch.distributed as dist\n" + head + wrap + source


HAS = {
    "loader-workers": [
        LOADER + "loader = DataLoader(Rows(), batch_size=8)",
        LOADER + "loader = DataLoader(Rows(), 8, num_workers=0)",
        "from torch.utils.data import DataLoader as DL\nloader = DL(rows)",
        "import torch.utils.data as data\nloader = data.DataLoader(rows)",
        "import torch\nloader = torch.utils.data.dataloader.DataLoader(rows)",
        LOADER + "class Read(Set):\n    def __getitem__(self, i): return open(self.x[i])\nloader = "
        "DataLoader(Read(4), 8)",
    ],
    "loader-worker-options": [
        LOADER + "loader = DataLoader(Rows(), persistent_workers=True)",
        LOADER + "loader = DataLoader(Rows(), num_workers=0, prefetch_factor=4)",
    ],
    "loader-pin-memory": [LOADER + "d = 'cuda'\nloader = DataLoader(Rows(), num_workers=2)"],
    "loader-persistent-workers": [
        LOADER + "loader = DataLoader(Rows(), num_workers=2)\nfor e in range(3):\n    for "
        "x in loader: pass",
        LOADER
        + """
class Trainer:
    def __init__(self):
        self.loader = DataLoader(Rows(), num_workers=2, persistent_workers=False)
    def fit(self):
        while True:
            for i, x in enumerate(self.loader): pass
""",
    ],
    "loader-prefetch": [LOADER + "loader = DataLoader(Rows(), num_workers=2, prefetch_factor=1)"],
    "loader-in-loop": [
        LOADER
        + "data = Rows()\nfor e in range(3):\n    for x in DataLoader(data, num_workers=2): pass"
    ],
    "sync-each-step": [
        in_loop("total += loss.item()"),
        in_loop("print(f'{step}: {loss}')"),
        in_loop("bar.set_postfix(loss=loss.detach().cpu())"),
        in_loop("torch.cuda.synchronize()"),
        in_loop("history(loss)", head="def history(loss):\n    seen.append(float(loss.item()))\n"),
    ],
    "loss-keeps-graph": [
        in_loop("losses.append(loss)"),
        in_loop("total += loss"),
        in_loop("if step % 9 == 0: total += loss"),
        in_loop("kept.append(out)").replace(
            "loss = (model(x) - y)", "out = model(x)\n        loss = (out - y)"
        ),
    ],
    "empty-cache": [in_loop("torch.cuda.empty_cache()")],
    "gc-collect": [in_loop("gc.collect()")],
    "save-each-step": [in_loop("torch.save(model.state_dict(), 'last.pt')")],
    "copy-blocks": [
        LOADER
        + "loader = DataLoader(Rows(), num_workers=2, pin_memory=True)\n"
        + in_loop("x = x.to(device)"),
        LOADER
        + "loader = DataLoader(Rows(), num_workers=2, pin_memory=True)\n"
        + in_loop("y = y.cuda()"),
    ],
    "retain-graph": [
        TRAIN.replace("backward()", "backward(retain_graph=True)").replace("BODY", "pass")
    ],
    "no-zero-grad": [
        TRAIN.replace("optimizer.zero_grad()", "pass").replace("BODY", "pass"),
        "from transformers import AutoModel\n"
        + TRAIN.replace("optimizer.zero_grad()", "pass").replace("BODY", "pass"),
    ],
    "zero-grad-keeps-memory": [
        TRAIN.replace("zero_grad()", "zero_grad(set_to_none=False)").replace("BODY", "pass")
    ],
    "scheduler-first": [
        TRAIN.replace(
            "        optimizer.step()", "        scheduler.step()\n        optimizer.step()"
        ).replace("BODY", "pass")
    ],
    "optimizer-foreach": ["import torch\nopt = torch.optim.AdamW(p, 1e-3, foreach=False)"],
    "clip-before-unscale": [
        "import torch\nscaler = torch.amp.GradScaler('cuda')\nscaler.scale(loss).backward()\n"
        "torch.nn.utils.clip_grad_norm_(p, 1.0)\nscaler.step(opt)\n"
    ],
    "eval-builds-graph": [
        "import torch\ndef evaluate(model, loader):\n    model.eval()\n    n = 0\n    for x in "
        "loader:\n        n += model(x).sum()\n    model.train()\n    return n\nevaluate(m, l)\n",
        "import torch\nmodel = torch.nn.Linear(1, 1)\nmodel.eval()\nfor x in data:\n    "
        "print(model(x))\n",
        "import torch\nmodel = torch.nn.Linear(1, 1)\nmodel.eval()\nscore = sum(model(x) "
        "for x in data)\n",
    ],
    "amp-deprecated": [
        "import torch\nwith torch.cuda.amp.autocast(): pass",
        "from torch.cuda.amp import GradScaler as GS\nscaler = GS()",
    ],
    "scaler-with-bf16": [
        "import torch\nscaler = torch.amp.GradScaler('cuda')\nwith torch.autocast('cuda', "
        "dtype=torch.bfloat16): pass"
    ],
    "fp16-autocast": ["import torch\nwith torch.autocast('cuda', dtype=torch.float16): pass"],
    "no-autocast": [in_loop("pass")],
    "tf32-unset": [in_loop("pass")],
    "no-compile": [in_loop("pass")],
    "cudnn-benchmark": [in_loop("pass").replace("nn.Linear(4, 1)", "nn.Conv2d(3, 3, 3)")],
    "anomaly-mode": [
        "import torch\ntorch.autograd.set_detect_anomaly(True)",
        "import torch\nwith torch.autograd.detect_anomaly():\n    train()",
        "import lightning as L\nL.Trainer(max_epochs=1, detect_anomaly=True)",
    ],
    "profiler-all-run": [
        TRAIN.replace("for epoch", "with torch.profiler.profile() as p:\n  for epoch")
        .replace("\n    ", "\n        ")
        .replace("BODY", "pass"),
        "from torch.autograd import profiler\nwith profiler.profile():\n    fit()\n"
        "def fit():\n    for x in y:\n        loss.backward()\n        optimizer.step()\n",
    ],
    "data-parallel": [
        "import torch.nn as nn\nmodel = nn.DataParallel(net)",
        "from torch.nn import DataParallel\nDataParallel(n)",
    ],
    "gloo-on-gpu": [ddp("net.cuda()", head="dist.init_process_group('gloo')\n")],
    "no-distributed-sampler": [ddp("loader = DataLoader(Rows(), 8, shuffle=True, num_workers=2)")],
    "no-set-epoch": [
        ddp(
            "from torch.utils.data.distributed import DistributedSampler\n"
            "loader = DataLoader(Rows(), sampler=DistributedSampler(rows), num_workers=1)\n"
            "for e in range(9):\n    for x in loader: pass"
        )
    ],
    "no-no-sync": [
        ddp(
            "opt = torch.optim.SGD(p, 1)\nfor i, x in enumerate(loader):\n    loss = model(x) / "
            "4\n    loss.backward()\n    if (i + 1) % 4 == 0:\n        opt.step()\n        "
            "opt.zero_grad()\n"
        )
    ],
    "find-unused-parameters": [ddp("DDP(other, find_unused_parameters=True)")],
    "same-seed": [ddp("torch.manual_seed(42)")],
}

HAS_NOT = {
    "loader-workers": [
        LOADER + "loader = DataLoader(Rows(), num_workers=4)",
        LOADER + "loader = DataLoader(Rows(), **options)",
        LOADER + "loader = DataLoader(Rows(), num_workers=args.workers)",
        "from paddle.io import DataLoader\nloader = DataLoader(rows)",
        "from .data import DataLoader\nloader = DataLoader(rows)",
        "from torch.utils.data import DataLoader\nclass DataLoader: pass\nloader = "
        "DataLoader(rows)",
        LOADER + "from torch.utils.data import TensorDataset\nd = TensorDataset(x)\nloader = "
        "DataLoader(d, 8)",
        LOADER + "import torch\nrows = torch.randn(9, 9).view(-1)\nloader = DataLoader(rows, 8)",
        LOADER + "# loader = DataLoader(Rows())\ntext = 'DataLoader(Rows())'",
        LOADER
        + "class Held(Set):\n    def __getitem__(self, i): return self.x[i], self.y[i]\nloader "
        "= DataLoader(Held(4), 8)",
    ],
    "loader-worker-options": [
        LOADER + "loader = DataLoader(Rows(), persistent_workers=False, prefetch_factor=None)"
    ],
    "loader-pin-memory": [LOADER + "loader = DataLoader(Rows())"],
    "loader-persistent-workers": [
        LOADER + "loader = DataLoader(Rows(), num_workers=2)\nfor x in loader: pass",
        LOADER + "loader = DataLoader(Rows(), num_workers=0)\nfor e in range(3):\n    for "
        "x in loader: pass",
    ],
    "loader-in-loop": [
        LOADER + "for x in DataLoader(Rows(), num_workers=2): pass",
        LOADER + "for fold in folds:\n    loader = DataLoader(Rows(fold), num_workers=2)",
        LOADER
        + "for e in range(3):\n    data.shuffle(e)\n    loader = DataLoader(data, num_workers=2)",
        LOADER + "for e in range(3):\n    def later(): return DataLoader(data, num_workers=2)",
        LOADER + "for e in range(3):\n    if e == 0: loader = DataLoader(data, num_workers=2)",
    ],
    "sync-each-step": [
        in_loop("if step % 50 == 0: print(loss.item())"),
        in_loop("if step % 50: continue", "print(loss.item())"),
        in_loop("last = loss.item() if step % 50 == 0 else 0"),
        in_loop("step % 50 == 0 and print(loss.item())"),
        in_loop("log.append(lambda: loss.item())"),
        in_loop("pass") + "\nprint(loss.item())",
        in_loop("total += loss.item()").replace('"cuda"', '"cpu"'),
        in_loop("print(step)"),
    ],
    "loss-keeps-graph": [
        in_loop(
            "if step % 9 == 0: evaluate()",
            head="import torch\n@torch.no_grad()\ndef evaluate():\n    for x in held:\n       "
            " loss = f(x)\n        losses.append(loss)\n",
        ),
        in_loop("losses.append(loss.item())", "total += loss.detach()"),
        in_loop("loss = loss.detach()", "losses.append(loss)"),
        in_loop("losses.append(loss)", "losses.clear()"),
        in_loop("seen.append(y)").replace(
            "loss.backward()", "nn.functional.mse_loss(model(x), y).backward()"
        ),
        in_loop("kept.append(out)").replace(
            "loss = (", "with torch.no_grad(): out = model(x)\n        loss = (out + "
        ),
        in_loop("kept.append(out)").replace(
            "loss = (model(x) - y)", "out = embed(x)\n        loss = (model(out) - y)"
        ),
        TRAIN.replace(
            "loss.backward()", "losses.append(loss)\n        torch.stack(losses).sum().backward()"
        ).replace("BODY", "pass"),
        "import torch\nopt = torch.optim.SGD(p, 1)\nfor x in data:\n    total = 0\n    for m in "
        "models:\n        loss = m(x)\n        total += loss\n    total.backward()\n    "
        "opt.step()\n    opt.zero_grad()\n",
    ],
    "empty-cache": [
        in_loop("if step % 100 == 0: torch.cuda.empty_cache()"),
        in_loop("pass") + "    torch.cuda.empty_cache()\n",
    ],
    "gc-collect": [in_loop("pass") + "gc.collect()\n"],
    "save-each-step": [
        in_loop("if step % 1000 == 0: torch.save(model, 'x')"),
        in_loop("pass") + "    torch.save(model, 'x')\n",
    ],
    "copy-blocks": [
        LOADER
        + "loader = DataLoader(Rows(), num_workers=2, pin_memory=True)\n"
        + in_loop("x = x.to(torch.bfloat16)"),
        LOADER
        + "loader = DataLoader(Rows(), num_workers=2, pin_memory=True)\n"
        + in_loop("x = x.to(device, non_blocking=True)"),
        in_loop("x = x.to(device)"),
    ],
    "retain-graph": [in_loop("penalty.backward(retain_graph=True)")],
    "no-zero-grad": [
        in_loop("pass"),
        "from transformers import Trainer\n"
        + TRAIN.replace("optimizer.zero_grad()", "pass").replace("BODY", "pass"),
        TRAIN.replace(
            "optimizer.zero_grad()", "for p in model.parameters(): p.grad = None"
        ).replace("BODY", "pass"),
        TRAIN.replace("optimizer.zero_grad()", "model.zero_grad()").replace("BODY", "pass"),
    ],
    "scheduler-first": [
        in_loop("scheduler.step()"),
        "import torch\nopt = torch.optim.SGD(p, 1)\nclock.step()\nopt.step()",
        in_loop("if warm: scheduler.step()"),
    ],
    "optimizer-foreach": [
        "import torch\nopt = torch.optim.AdamW(p, foreach=False, fused=True)",
        "import mine\nopt = mine.AdamW(p, foreach=False)",
    ],
    "clip-before-unscale": [
        "import torch\nscaler = "
        "torch.amp.GradScaler('cuda')\nscaler.scale(loss).backward()\nscaler.unscale_(opt)\n"
        "torch.nn.utils.clip_grad_norm_(p, 1.0)\n",
        "import torch\nfrom sklearn.preprocessing import StandardScaler\nscaler = "
        "StandardScaler()\nscaler.scale(x)\ntorch.nn.utils.clip_grad_norm_(p, 1.0)\n",
    ],
    "eval-builds-graph": [
        "import torch\n@torch.no_grad()\ndef f(model):\n    model.eval()\n    for x in l: "
        "model(x)\nf(m)\n",
        "import torch\ndef f(model):\n    model.eval()\n    with torch.inference_mode():\n        "
        "for x in l: model(x)\nf(m)\n",
        "import torch\ndef f(model):\n    model.eval()\n    for x in l: model(x)\nwith "
        "torch.no_grad(): f(m)\n",
        "import torch\ndef f(model):\n    model.eval()\n    for x in l:\n        with "
        "torch.no_grad(): model(x)\nf(m)\n",
        "import torch\ndef f(model):\n    model.eval()\n    for x in l: model(x)\ndef g(): "
        "f(m)\nwith torch.no_grad(): g()\n",
        "import torch\ndef f(model):\n    model.eval()\n    for x in l: "
        "model(x).backward()\nf(m)\n",
        "import torch\ndef f(model):\n    model.eval()\n    for x in l: model(x)\n",
        "frame.eval('a + b')\nfor x in frame: x()\n",
    ],
    "amp-deprecated": ["import torch\nwith torch.amp.autocast('cuda'): pass"],
    "scaler-with-bf16": [
        "import torch\nd = torch.float16\nscaler = torch.amp.GradScaler()\nwith "
        "torch.autocast('cuda', dtype=torch.bfloat16): pass",
        "import torch\ns = torch.amp.GradScaler(enabled=fp)\nwith torch.autocast('cuda', "
        "dtype=torch.bfloat16): pass",
    ],
    "no-autocast": [
        in_loop("pass").replace('"cuda"', '"cpu"'),
        in_loop("with torch.autocast('cuda'): pass"),
    ],
    "tf32-unset": [
        in_loop("pass", head="import torch\ntorch.set_float32_matmul_precision('high')\n")
    ],
    "no-compile": [in_loop("pass", head="import torch\nstep = torch.compile(step)\n")],
    "anomaly-mode": [
        "import torch\nif args.debug: torch.autograd.set_detect_anomaly(True)",
        "import torch\ntorch.autograd.set_detect_anomaly(args.debug)",
        "import torch\ntorch.autograd.set_detect_anomaly(False)",
    ],
    "profiler-all-run": [
        "import torch\nwith torch.profiler.profile(schedule=s) as p:\n    for x in y:\n"
        "        loss.backward()\n        optimizer.step()\n",
        "import torch\nwith torch.profiler.profile() as p:\n    model(x)\n",
        TRAIN.replace(
            "for epoch",
            "with torch.autograd.profiler.profile(args.profile, use_cuda=True) as p:\n  for epoch",
        )
        .replace("\n    ", "\n        ")
        .replace("BODY", "pass"),
    ],
    "data-parallel": [
        "from torch.nn.parallel import DistributedDataParallel as DataParallel\nDataParallel(net)"
    ],
    "gloo-on-gpu": [
        ddp("net.cuda()", head="dist.init_process_group('nccl')\n"),
        ddp("net.to('cpu')", head="dist.init_process_group('gloo')\n"),
    ],
    "no-distributed-sampler": [
        ddp("loader = DataLoader(Rows(rank), 8, shuffle=True)"),
        ddp("loader = DataLoader(Rows(), 8, sampler=s)"),
        LOADER + "loader = DataLoader(Rows(), 8, shuffle=True)",
        ddp("loader = DataLoader(Rows(), 8)"),
    ],
    "no-set-epoch": [
        ddp(
            "from torch.utils.data import DistributedSampler\ns = "
            "DistributedSampler(rows)\nloader = DataLoader(rows, sampler=s)\nfor e in range(9):\n "
            "   s.set_epoch(e)\n    for x in loader: pass"
        )
    ],
    "no-no-sync": [
        ddp(
            "opt = torch.optim.SGD(p, 1)\nfor x in loader:\n    loss = model(x)\n    "
            "loss.backward()\n    opt.step()\n    opt.zero_grad()"
        )
    ],
    "same-seed": [ddp("torch.manual_seed(42 + rank)"), "import torch\ntorch.manual_seed(42)"],
}


DEVICES = {
    "torch.accelerator.current_accelerator()": ("autocast(device.type", True),
    'torch.device("cuda" if torch.cuda.is_available() else "cpu")': ('autocast("cuda"', True),
    'torch.device("xpu:0")': ('autocast("xpu"', False),
    'torch.device("mps" if torch.backends.mps.is_available() else "cpu")': (
        'autocast("mps"',
        False,
    ),
}


@pytest.mark.parametrize(
    ("device", "fix", "has_cuda"), [(one, *says) for one, says in DEVICES.items()]
)
def test_any_accelerator_is_a_gpu_and_only_cuda_has_what_cuda_has(device, fix, has_cuda):
    source = in_loop("x = x.to(device)").replace('"cuda"', "device")
    remarks = lint("train.py", f"import torch\ndevice = {device}\n{source}".encode())
    by_rule = {one.rule: one for one in remarks}
    assert fix in by_rule["no-autocast"].fix
    assert ("tf32-unset" in by_rule) == has_cuda and "no-compile" in by_rule


def test_accelerator_as_an_imported_name_counts_too():
    head = (
        "import torch\nfrom torch import accelerator\ndevice = accelerator.current_accelerator()\n"
    )
    assert "no-compile" in found(head + in_loop("pass").replace('"cuda"', "device"))
    assert "no-compile" not in found(in_loop("steps = accelerate(x)").replace('"cuda"', "device"))


def test_every_rule_has_a_case():
    assert set(HAS) == set(all_rules()) and set(HAS_NOT) <= set(HAS)


@pytest.mark.parametrize("rule", HAS)
def test_the_fault_is_seen(rule):
    for source in HAS[rule]:
        assert rule in found(source), source


@pytest.mark.parametrize("rule", HAS_NOT)
def test_what_only_looks_like_it_is_passed_over(rule):
    for source in HAS_NOT[rule]:
        assert rule not in found(source), source


@pytest.mark.parametrize("rule", HAS)
def test_mending_ends_the_remark_and_changes_nothing_twice(rule):
    for source in HAS[rule]:
        data = textwrap.dedent(source).encode()
        once = fixed("train.py", data)
        assert fixed("train.py", once) == once
        before = [one for one in lint("train.py", data) if one.rule == rule]
        after = [one for one in lint("train.py", once) if one.rule == rule]
        if before and all(one.fixable for one in before):
            assert not after, once.decode()


def test_a_clean_script_gets_no_remark_above_info():
    source = """
    import torch
    from torch.utils.data import DataLoader, Dataset
    class Rows(Dataset):
        def __len__(self): return 9
        def __getitem__(self, i): return torch.randn(4)
    def main():
        torch.set_float32_matmul_precision("high")
        model = torch.compile(torch.nn.Linear(4, 1).cuda())
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        loader = DataLoader(Rows(), 8, num_workers=4, pin_memory=True, persistent_workers=True)
        for epoch in range(3):
            running = torch.zeros((), device="cuda")
            for x in loader:
                x = x.cuda(non_blocking=True)
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = model(x).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                running += loss.detach()
            print(running.item())
    if __name__ == "__main__":
        main()
    """
    assert found(source) == set()


def test_a_remark_says_where_and_what(tmp_path):
    (tmp_path / "train.py").write_text(
        "# ä\nimport torch\nä = (1, torch.nn.DataParallel(\n    net,\n))\n"
    )
    (one,) = lint("train.py", (tmp_path / "train.py").read_bytes())
    assert (one.rule, one.finding, one.line, one.column, one.end_line) == (
        "data-parallel",
        "CR10",
        3,
        9,
        5,
    )
    assert (
        rules_at("train.py:4 main", tmp_path) == [rules_at("train.py:3", tmp_path)[0]]
        and rules_at("train.py:2 main", tmp_path) == []
    )
    assert (
        rules_at(None, tmp_path)
        == rules_at("gone.py:3 x", tmp_path)
        == rules_at("<string>:1", tmp_path)
        == []
    )


def test_a_finding_points_at_what_the_source_says_there(tmp_path):
    rows = "from torch.utils.data import DataLoader, Dataset\nclass Rows(Dataset):\n    pass\n"
    text = rows + "for batch in DataLoader(Rows(), batch_size=8):\n    pass\n"
    (tmp_path / "train.py").write_text(text)
    said = in_source("train.py:4", str(tmp_path))
    assert said.startswith("loader-workers, ") and "gputop lint --diff train.py" in said
    assert in_source("train.py:1", str(tmp_path)) == in_source(None, str(tmp_path)) == ""
