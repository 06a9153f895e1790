"""Checks of the interpreter that trains: is torch there, and does the guest see its steps."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from gputop.doctor.check import OTHER_PYTHON, Check

_TORCH_FACTS = """
import json, sys
facts = {"python": sys.version.split()[0]}
try:
    import torch
    devices = torch.cuda.device_count()
    facts.update(torch=torch.__version__, cuda=torch.version.cuda, devices=devices)
except Exception as error:
    facts["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(facts))
"""

_STEPS = 30
_TRAINING = f"""
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in range({_STEPS}):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def find_python(wanted: str | None) -> str | None:
    """Path of the interpreter that trains, None where there is none."""
    return shutil.which(wanted or "python") or (shutil.which("python3") if wanted is None else None)


def check_torch(python: str | None) -> Check:
    """Import torch in the user's interpreter."""
    if python is None:
        return Check(
            "torch",
            "fail",
            "no such Python interpreter",
            "name the one that trains: gputop doctor --python PATH",
        )
    done = subprocess.run(
        [python, "-c", _TORCH_FACTS], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Check(
            "torch", "fail", f"{python} does not run: {last}", "gputop doctor --python PATH"
        )
    facts = json.loads(done.stdout.splitlines()[-1])
    where = f"{python} (Python {facts['python']})"
    if "error" in facts:
        return Check(
            "torch", "warn", f"{where} cannot import torch: {facts['error']}", OTHER_PYTHON
        )
    if facts["cuda"]:
        cuda = f"CUDA {facts['cuda']}, {facts['devices']} device(s)"
    else:
        cuda = "CPU build"
    return Check("torch", "ok", f"torch {facts['torch']}, {cuda}, in {where}")


def check_injection(python: str | None, has_torch: bool) -> Check:
    """Start a real training of 30 steps under the recorder and count what it saw."""
    if python is None or not has_torch:
        return Check("injection", "note", "not tried: it needs torch")
    from gputop_probes.launch import RunSpec, start
    from gputop_probes.record.reader import RunRecord

    with tempfile.TemporaryDirectory(prefix="gputop-doctor-") as folder:
        handle = start(
            RunSpec([python, "-c", _TRAINING], Path(folder) / "run", headless=True, quiet=True)
        )
        exit_code = handle.wait(120)
        handle.release_signals()
        record = RunRecord.open(handle.run_dir)
        recorded_steps = 0
        if record.ranks():
            recorded_steps = int(record.steps(0)["n_steps"].sum())
    if exit_code != 0:
        return Check(
            "injection",
            "fail",
            f"a training of {_STEPS} steps ended with exit code {exit_code} under gputop",
        )
    if recorded_steps != _STEPS:
        fix = "is PYTHONPATH overwritten, or python called with -E, -I or -S, by a wrapper?"
        return Check(
            "injection",
            "fail",
            f"{recorded_steps} of {_STEPS} steps of a test training were seen",
            fix,
        )
    return Check(
        "injection", "ok", f"all {_STEPS} steps of a test training were seen, without a code change"
    )
