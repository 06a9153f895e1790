"""How the guest gets into a Python, and how it stays out of the way there."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from agent_support import AGENT_DIR, INJECT_DIR, guest_env, run_plain, run_script

SITE = INJECT_DIR / "sitecustomize.py"
PYENV = Path.home() / ".pyenv" / "versions"


def test_the_guest_is_python_38():
    for path in AGENT_DIR.rglob("*.py"):
        ast.parse(path.read_text(), str(path), feature_version=(3, 8))


def test_the_way_in_parses_on_old_pythons():
    found = [python for python in PYENV.glob("*/bin/python") if python.parts[-3] < "3.11"]
    if not found:
        pytest.skip("no older Python here")
    for python in found:
        command = [str(python), "-c", "import sys; sys.stdout.write(str(len(sys.meta_path)))"]
        counts = []
        for extra in (
            {},
            {"PYTHONPATH": str(INJECT_DIR), "GPUTOP_AGENT_DIR": "x", "GPUTOP_SOCKET": "x"},
        ):
            env = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **extra}
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), python
            counts.append(int(done.stdout))
        modern = not python.parts[-3].startswith(("2.", "3.6", "3.7"))
        assert counts[1] == counts[0] + modern, python


def python(socket: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=guest_env(socket, **env),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_surroundings_are_left_as_they_were(tmp_path):
    code = f"""
import os, sys
assert not any("inject" in entry for entry in sys.path), sys.path
assert os.environ["PYTHONPATH"] == {guest_env(tmp_path / "s")["PYTHONPATH"]!r}
assert "socket" not in sys.modules and "gputop_agent" not in sys.modules
import json
loader = json.__spec__.loader
assert type(loader).__name__ == "SourceFileLoader" and "exec_module" not in vars(loader)
"""
    done = python(tmp_path / "s", "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    count = ["-c", "import sys; print(len(sys.meta_path))"]
    plain = int(run_plain(count).stdout)
    assert int(python(tmp_path / "s", *count).stdout) == plain + 1
    assert int(python(tmp_path / "s", *count, GPUTOP_DISABLE="1").stdout) == plain


@pytest.mark.parametrize(
    "body", ["print('mine')", "1 / 0", "import no_such_module", "raise SystemExit(3)"]
)
def test_the_users_own_sitecustomize_runs_as_without_us(tmp_path, body):
    (tmp_path / "sitecustomize.py").write_text(body)
    command = ["-c", "import sys; print(sys.modules['sitecustomize'].__file__)"]
    plain = run_plain(command, PYTHONPATH=str(tmp_path))
    both = python(tmp_path / "s", *command, PYTHONPATH=f"{INJECT_DIR}{os.pathsep}{tmp_path}")
    assert (both.returncode, both.stdout) == (plain.returncode, plain.stdout) or "mine" not in body
    assert both.returncode == plain.returncode
    assert both.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]


LOOP = """
import sys, torch
def main(steps):
    net = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    for _ in range(steps):
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.e2e
def test_modules_spawned_and_forked_children_are_seen(tmp_path):
    (tmp_path / "training.py").write_text(
        LOOP
        + """
if __name__ == "__main__":
    import multiprocessing
    main(5)
    children = [multiprocessing.get_context(method).Process(target=main, args=(number,))
                for method, number in (("fork", 7), ("spawn", 9))]
    for child in children: child.start()
    for child in children: child.join()
    main(5)
"""
    )
    command = (
        ["-s", "-P", "-m", "training"] if sys.version_info >= (3, 11) else ["-s", "-m", "training"]
    )
    outcome = run_script(command, timeout=200, PYTHONPATH=f"{INJECT_DIR}{os.pathsep}{tmp_path}")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert outcome.agent_errors == ""
    assert sorted(guest.n_steps for guest in outcome.guests) == [7, 9, 10]


@pytest.mark.e2e
def test_what_does_not_train_stays_silent(tmp_path):
    script = tmp_path / "inference.py"
    script.write_text(
        """
import io, torch, torch.utils.data
net = torch.nn.Linear(4, 4)
x = torch.ones(2, 4, requires_grad=True)
for batch in torch.utils.data.DataLoader(torch.ones(8, 4), 2, num_workers=1): net(batch)
torch.autograd.grad(net(x).sum(), x)
torch.save(net, io.BytesIO())
import os, stat, threading
open_sockets = [n for n in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + n)
                and stat.S_ISSOCK(os.stat("/proc/self/fd/" + n).st_mode)]
print(len(threading.enumerate()), type(torch.__spec__.loader).__name__, open_sockets)
"""
    )
    outcome = run_script([str(script)])
    expected = "1 SourceFileLoader []\n"
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, expected, "")
    assert outcome.guests == [], "milestones at most, each over a connection that is closed again"
    assert len({one["t_ns"] for one in outcome.milestones}) < 12


@pytest.mark.e2e
def test_what_only_imports_torch_says_nothing_at_all(tmp_path):
    script = tmp_path / "launcher.py"
    script.write_text("import torch, torch.utils.data, io\nprint(torch.ones(2).sum().item())\n")
    outcome = run_script([str(script)])
    assert (outcome.stdout, outcome.guests, outcome.milestones) == ("2.0\n", [], [])
