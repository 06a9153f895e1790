"""Edits that a finding asks for: only where the text is certain, only there, in every form of file,
and git takes the patch.
"""

import ast
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gputop_analysis.findings
from gputop_analysis.findings.option import Option
from gputop_analysis.lint import all_rules
from gputop_analysis.lint.mends import NoMend, mended, patch_of
from gputop_analysis.mend import DATA_LOADER, ByArguments, ByRule
from gputop_analysis.model import Finding
from gputop_probes.record.manifest import Manifest

HEAD = """import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.nn.parallel import DistributedDataParallel as DDP
"""
TRAIN = """
for x in loader:
    loss = nn.functional.mse_loss(model(x), x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
MADE = "model = nn.Linear(4, 4)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
WORKERS = ByArguments(DATA_LOADER, {"num_workers": 2, "prefetch_factor": 4}, had={"num_workers": 0})
MORE = ByArguments(DATA_LOADER, {"num_workers": 3}, had={"num_workers": 1})
STAYS = ByArguments(DATA_LOADER, {"persistent_workers": True}, had={"persistent_workers": False})
FUSED = ByArguments("torch.optim.AdamW", {"fused": True}, ("foreach",), had={"foreach": False})
PLAIN = ByArguments("torch.optim.AdamW", {"fused": True}, ("foreach",), had={"foreach": None})
THREADS = ByArguments("torch.set_num_threads", {0: 2}, had={0: 12})
DYNAMIC = ByArguments("torch.compile", {"dynamic": True}, had={"dynamic": False})
SEARCH = ByArguments(
    "torch.nn.parallel.DistributedDataParallel",
    {"find_unused_parameters": False},
    had={"find_unused_parameters": True},
)

MENDED = {
    "workers": (WORKERS, "loader = DataLoader(@Rows(), 8)", "DataLoader(Rows(), 8, num_workers=2, "
                "prefetch_factor=4)"),
    "one more worker at the line that was seen": (
        MORE,
        "a = DataLoader(rows, 8, num_workers=1)\nb = @DataLoader(rows, 8, num_workers=1)",
        "a = DataLoader(rows, 8, num_workers=1)\nb = DataLoader(rows, 8, num_workers=3)",
    ),
    "workers that stay, under a condition that held": (
        STAYS,
        "def make(slow):\n    if slow:\n        return @DataLoader(\n       "
        "     rows,\n            num_workers=1,\n        )\n    return None",
        "rows,\n            num_workers=1,\n            persistent_workers=True,\n        )",
    ),
    "fused for foreach=False": (
        FUSED,
        "a = torch.optim.AdamW(p, foreach=False)\nb = torch.optim.AdamW(q)",
        "a = torch.optim.AdamW(p, fused=True)\nb = torch.optim.AdamW(q)",
    ),
    "fused for nothing": (
        PLAIN,
        "optimizer = torch.optim.AdamW([{'params': p}], 1e-3)",
        "AdamW([{'params': p}], 1e-3, fused=True)",
    ),
    "threads": (
        THREADS,
        "if few:\n    torch.set_num_threads(1)\nelse:\n    torch.set_num_threads(12)",
        "torch.set_num_threads(1)\nelse:\n    torch.set_num_threads(2)",
    ),
    "sizes that change": (
        DYNAMIC, "fast = torch.compile(model, dynamic=False)", "torch.compile(model, dynamic=True)"
    ),
    "a search for unused parameters": (
        SEARCH, "model = DDP(net, find_unused_parameters=True)", "DDP(net, find_unused_parameters="
        "False)"
    ),
    "a loss on a list": (
        ByRule("loss-keeps-graph"), MADE + TRAIN + "    losses.append(loss)",
        "losses.append(loss.detach())",
    ),
    "a second loss on a list": (
        ByRule("loss-keeps-graph"),
        MADE + TRAIN + "    losses.append(nn.functional.l1_loss(model(x), x))",
        "losses.append(nn.functional.l1_loss(model(x), x).detach())",
    ),
    "anomaly mode that was seen": (
        ByRule("anomaly-mode"),
        "if debug:\n    torch.autograd.@set_detect_anomaly(True)",
        "    torch.autograd.set_detect_anomaly(False)",
    ),
    "anomaly mode around a block": (
        ByRule("anomaly-mode"),
        "def fit():\n    with torch.autograd.detect_anomaly():\n "
        "       one()\n\n        two(  # 2\n"
        "            3\n        )\n    return 4",
        "def fit():\n    one()\n\n    two(  # 2\n        3\n    )\n    return 4",
    ),
    "a profiler that was seen": (
        ByRule("profiler-all-run"),
        "with @torch.profiler.profile(activities=[1]) as prof:\n    fit()\nend()",
        "\nfit()\nend()",
    ),
    "a loader built anew": (
        ByRule("loader-in-loop"),
        "data = Rows()\nwhile True:\n    loader = @DataLoader(\n   "
        "     data, 8, num_workers=1\n    )\n    yield_from(loader)",
        "data = Rows()\nloader = DataLoader(\n    data, 8, num_workers=1, persistent_workers=True\n"
        ")\nwhile True:\n    yield_from(loader)",
    ),
    "a scheduler before the optimizer": (
        ByRule("scheduler-first"),
        MADE + "schedule = torch.optim.lr_scheduler.StepLR(optimizer, 9)\nfor x in loader:\n"
        "    model(x).sum().backward()\n    schedule.step()\n    optimizer.step()  # now\n"
        "    optimizer.zero_grad()",
        "backward()\n    optimizer.step()  # now\n    schedule.step()\n    optimizer.zero_grad()",
    ),
    "no zero_grad": (
        ByRule("no-zero-grad"),
        MADE + "for x in loader:\n    model(x).sum().backward()\n    optimizer.step()",
        "    optimizer.step()\n    optimizer.zero_grad()",
    ),
    "gradients that stay": (
        ByRule("zero-grad-keeps-memory"),
        "optimizer.zero_grad(set_to_none=False)",
        "optimizer.zero_grad()",
    ),
    "an evaluation with gradients, called without too": (
        ByRule("eval-builds-graph"),
        "def score(model):\n    model.eval()\n    @return_ = sum(model(x) for x in held)\n    "
        "return return_\nwith torch.no_grad():\n    score(m)\nscore(m)",
        "@torch.no_grad()\ndef score(model):",
    ),
    "one epoch without a sampler": (
        ByRule("no-distributed-sampler"),
        "from torch.utils.data import DistributedSampler\ndef main():\n    model = DDP(net)\n    "
        "loader = @DataLoader(rows, 8, shuffle=True, num_workers=1)\n    for x in loader:\n        "
        "fit(x)",
        "DataLoader(rows, 8, sampler=DistributedSampler(rows), num_workers=1)",
    ),
}  # fmt: skip
"""A mend, a script whose seen line has an ``@`` that is no decorator, and what it then contains."""

REFUSED = {
    "computed": (WORKERS, "DataLoader(Rows(), num_workers=args.workers)", "computed elsewhere"),
    "options": (WORKERS, "DataLoader(Rows(), **options)", "computed elsewhere"),
    "by position": (STAYS, "DataLoader(Rows(), 8, True, None, None, 2)", "computed elsewhere"),
    "other than it ran": (MORE, "DataLoader(Rows(), num_workers=2)", "computed elsewhere"),
    "two that may be meant": (PLAIN, "torch.optim.AdamW(p)\ntorch.optim.AdamW(q)", "2 calls of "),
    "another optimizer": (PLAIN, "torch.optim.SGD(p, 1)", "no call of AdamW"),
    "not torch's": (PLAIN, "import mine\nmine.AdamW(p)", "no call of AdamW"),
    "sparse": (PLAIN, "nn.Embedding(9, 9, sparse=True)\ntorch.optim.AdamW(p)", "sparse"),
    "threads by the environment": (THREADS, "print('no call')", "no call of set_num_threads"),
    "other threads": (THREADS, "torch.set_num_threads(4)", "computed elsewhere"),
    "a dataset with a memory": (
        WORKERS,
        "class Rows(Dataset):\n    def __getitem__(self, i):\n        self.seen[i] = 1\n"
        "        return i\nloader = DataLoader(Rows(), 8)",
        "Rows keeps something",
    ),
    "a profile that is wanted": (
        ByRule("profiler-all-run"),
        "with @torch.profiler.profile() as prof:\n    fit()\nprof.export_chrome_trace('a')",
        "cannot be mended by an edit",
    ),
    "a text over lines": (
        ByRule("profiler-all-run"),
        'with @torch.profiler.profile():\n    print("""a\n    b""")',
        "cannot be mended by an edit",
    ),
    "a loader of what changes": (
        ByRule("loader-in-loop"),
        "for e in range(3):\n    loader = @DataLoader(Rows(e), 8, num_workers=1)",
        "does not show the cause",
    ),
    "a new dataset for each loader": (
        ByRule("loader-in-loop"),
        "for e in range(3):\n    loader = @DataLoader(Rows(), 8, num_workers=1)\n    go(loader)",
        "cannot be mended by an edit",
    ),
    "epochs want set_epoch": (
        ByRule("no-distributed-sampler"),
        "model = DDP(net)\nloader = @DataLoader(rows, 8, shuffle=True)\nfor e in range(9):\n    "
        "for x in loader: fit(x)",
        "cannot be mended by an edit",
    ),
    "a sampler before the process group": (
        ByRule("no-distributed-sampler"),
        "loader = @DataLoader(rows, 8, shuffle=True)\nmodel = DDP(net)",
        "cannot be mended by an edit",
    ),
    "an output may be no tensor": (
        ByRule("loss-keeps-graph"),
        MADE + TRAIN.replace("loss = nn.functional.mse_loss(model(x), x)", "out = model(x)\n    "
        "loss = out.loss") + "    kept.append(out)",
        "cannot be mended by an edit",
    ),
}  # fmt: skip


def taken_apart(text):
    """The script without its mark, and the line that was seen; 0 without a mark."""
    before, mark, after = text.partition("@")
    if not mark:
        return text, 0
    return before + after, before.count("\n") + 1


def script(text):
    """With its head, and the seen line in it."""
    plain, line = taken_apart(text)
    return HEAD + plain + "\n", line and line + HEAD.count("\n")


@pytest.mark.parametrize("name", MENDED)
def test_a_certain_edit_is_made(name):
    mend, text, expected = MENDED[name]
    source, line = script(text)
    after = mended(mend, "train.py", source.encode(), line).decode()
    assert expected in after
    with pytest.raises(NoMend):  # done once, it is not offered again
        mended(mend, "train.py", after.encode(), line)


@pytest.mark.parametrize("name", REFUSED)
def test_where_the_text_leaves_a_doubt_it_says_why_not(name):
    mend, text, reason = REFUSED[name]
    source, line = script(text)
    with pytest.raises(NoMend) as caught:
        mended(mend, "train.py", source.encode(), line)
    assert reason in str(caught.value) and "\n" not in str(caught.value)


FORMS = st.tuples(
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),  # tabs
    st.booleans(),  # a newline at the end
    st.sampled_from(["", '"""Größe\u2028 und 大きさ."""\n', "# -*- coding: utf-8 -*-\n# é\n"]),
    st.sampled_from(["x = 1\n", "s = '''\n  @a\n'''\n", "def f():\n    return 'ü'  # ß\n"]),
    st.sampled_from(["train.py", "my training/trän.py"]),
)


@given(st.sampled_from(sorted(MENDED)), FORMS)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_in_every_form_of_file_git_takes_the_patch_and_only_that_place_changes(
    tmp_path_factory, name, form
):
    newline, tabs, ends, before, after, file_name = form
    mend, text, _ = MENDED[name]
    source, line = script(text)
    if tabs:
        source = source.replace("    ", "\t")
    whole = (before + source + after).replace("\n", newline)
    data = (whole if ends else whole.rstrip("\r\n")).encode()
    folder = tmp_path_factory.mktemp("patch")
    path = folder / file_name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o444)
    # U+2028 is a line to str.splitlines, and none to Python
    shift = before.count("\n")
    site = f"{file_name}:{line + shift}" if line else None
    finding = replace(FINDING, options=(Option("x", mend=mend),), site=site)
    patch = patch_of(finding, run_of(folder, file_name, path.stat().st_mtime_ns))
    assert patch.text and not patch.reason, patch.reason
    assert path.read_bytes() == data
    path.chmod(0o644)
    arguments = ["git", "apply", "--whitespace=nowarn", "-"]
    subprocess.run(arguments, input=patch.text.encode(), cwd=folder, check=True)
    changed = path.read_bytes()
    ast.parse(changed)
    assert changed.endswith(b"\n") == data.endswith(b"\n")
    assert (b"\r\n" in changed) == (b"\r\n" in data)
    assert newline == "\n" or b"\n" not in changed.replace(b"\r\n", b"")
    stays = [part for part in (before, HEAD, after) if part]
    assert all(part.replace("\n", newline).strip().encode() in changed for part in stays)


def run_of(cwd, script, began_ns):
    """What a run says of itself."""
    command = ["python", str(script)]
    return Manifest(run_id="r", command=command, cwd=str(cwd), created_ns=began_ns)


FINDING = Finding("IN02", "n", "high", "t", "e", "f")


def test_what_the_run_did_not_run_is_not_patched(tmp_path):
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "train.py"
    path.write_text(HEAD + "loader = DataLoader(Rows(), 8)\n")
    finding = replace(FINDING, options=(Option("x", mend=WORKERS),), site="train.py:5 f")
    now = path.stat().st_mtime_ns

    def reason(cwd, finding=finding, script="-m", began=now):
        patch = patch_of(finding, run_of(cwd, script, began))
        assert not patch.text
        return patch.reason

    assert patch_of(finding, run_of(path.parent, "-m", now)).text
    assert "changed after the run began" in reason(path.parent, began=now - 1)
    assert "lies outside" in reason(path.parent, replace(finding, site="../train.py:5"), "train.py")
    assert "No such file" in reason(tmp_path)
    assert "is a choice" in reason(path.parent, replace(finding, options=(Option("sleep"),)))
    assert "cannot be read here" in reason(path.parent, replace(finding, site=None))
    os.mkfifo(tmp_path / "run" / "pipe.py")
    later = int(1e20)
    assert "is no file" in reason(path.parent, replace(finding, site="pipe.py:1"), began=later)
    text = "# -*- coding: latin-1 -*-\n" + path.read_text() + "# \xe9\n"
    path.write_bytes(text.encode("latin-1"))
    os.utime(path, ns=(now, now))
    assert "not in UTF-8" in reason(path.parent, replace(finding, site=None), "train.py")


def test_every_rule_that_a_finding_names_has_an_edit_somewhere():
    folder = Path(gputop_analysis.findings.__file__).parent
    text = "".join(file.read_text() for file in folder.rglob("*.py"))
    named = set(re.findall(r'ByRule\(\s*"([a-z-]+)"', text))
    tried = {mend.rule for mend, *_ in MENDED.values() if isinstance(mend, ByRule)}
    assert named and named <= set(all_rules()) and named - tried <= {"empty-cache"}
