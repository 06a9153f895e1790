"""Errors that no edit of the line that raised them mends."""

import pytest
from analysis_support import Builder

from gputop_analysis.findings import evaluate
from gputop_analysis.findings.crash.surroundings import advice


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("ModuleNotFoundError: No module named 'einops.layers'", "python -m pip install einops`"),
        (
            "ImportError: cannot import name 'A' from 'torchrl.collectors' (/v/site-packages/t.py)",
            "the installed `torchrl` has no `A`",
        ),
        (
            "FileNotFoundError: Couldn't find a module script at /w/accuracy/accuracy.py. Module "
            "'accuracy' doesn't exist on the Hugging Face Hub either.",
            "where there is a network",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'd/x.pt'", "started in /srv"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/d/x'", "put /d/x there, or"),
        ("FileNotFoundError: ../data/cora.content not found.", "data/cora.content is a relative"),
        (
            "FileNotFoundError: Couldn't find any class folder in ./data/train.",
            "started in /srv",
        ),
        ("AssertionError: Torch not compiled with CUDA enabled", "built for the CPU"),
        ("RuntimeError: Found no NVIDIA driver on your system. Please", "`nvidia-smi`"),
        ("RuntimeError: No CUDA GPUs are available", "another device at a.py:3 main"),
        ("OSError: [Errno 28] No space left on device: '/out'", "write elsewhere at a.py:3 main"),
        ("PermissionError: [Errno 13] Permission denied: '/out'", "/out may not be opened so"),
        ("AttributeError: module 'numpy' has no attribute 'bool8'. Did", "'numpy<2'"),
        ("AttributeError: module 'numpy' has no attribute 'float'", "'numpy<1.24'"),
        ("RuntimeError: Error downloading train-images.gz:", "where there is a network"),
        ("OSError: We couldn't connect to 'https://hub' to load", "HF_TOKEN"),
        (
            'ModuleNotFoundError: `jsonargparse` is required: pip install "jsonargparse[sig]>=4".',
            '`pip install "jsonargparse[sig]>=4"`',
        ),
        (
            "ModuleNotFoundError: Requirement 'x>=4' not met. HINT: `pip install -U 'x[sig]>=4'`",
            "`pip install -U 'x[sig]>=4'`",
        ),
        ("ImportError: Using bar requires foo: please run pip install foo.", "`pip install foo`"),
        ("RuntimeError: server [::]:29500 failed: EADDRINUSE", "the port is taken"),
    ],
)
def test_what_lies_around_the_script_is_not_mended_in_its_line(what, told) -> None:
    text = advice(what, "a.py:3 main", "/srv")
    assert told in text and "{" not in text


@pytest.mark.parametrize(
    "what",
    [
        "KeyError: 'loss'",
        "ImportError: cannot import name 'Net' from 'models' (/srv/models.py)",
        "RuntimeError: getaddrinfo: Temporary failure in name resolution",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x4 and 5x2)",
        "FileNotFoundError: no checkpoint of this run",
        "AttributeError: module 'numpy' has no attribute 'zeroes'",
        "ValueError: the file says: No module named 'x'",
    ],
)
def test_an_error_of_the_script_s_own_is(what) -> None:
    assert advice(what, "a.py:3 main", "/srv") == ""


@pytest.mark.parametrize("steps", [0, 30])
def test_both_findings_of_a_crash_say_the_same(tmp_path, steps) -> None:
    builder = Builder(tmp_path / "run")
    builder.hello()
    if steps:
        builder.steps(steps, forward=3.0, backward=5.0)
    builder.event(
        "exception",
        rank=0,
        step=steps,
        site="train.py:12 main",
        message="No module named 'einops'",
        **{"class": "ModuleNotFoundError"},
    )
    builder.end(1)
    findings = evaluate(builder.open())
    crashes = [finding for finding in findings if finding.id in ("HC06", "HC09")]
    assert crashes
    for finding in crashes:
        assert finding.fix.startswith("install what `einops` is part of")
        assert finding.site == "train.py:12 main"


CHILD = """\
Process Process-1:
Traceback (most recent call last):
  File "/usr/lib/python3.11/multiprocessing/process.py", line 314, in _bootstrap
    self.run()
  File "/home/u/a2c.py", line 39, in worker
    env.seed(7)
AttributeError: 'CartPoleEnv' object has no attribute 'seed'
Traceback (most recent call last):
  File "/home/u/a2c.py", line 96, in reset
    master_end.send(("reset", None))
BrokenPipeError: [Errno 32] Broken pipe
"""


def test_a_broken_pipe_is_mended_where_the_process_at_its_other_end_died(tmp_path) -> None:
    build = Builder(tmp_path / "r")
    build.hello()
    build.end(exit_code=1)
    (build.path / "hosts" / "box" / "output.log").write_text(CHILD)
    (failure,) = (one for one in evaluate(build.open()) if one.id == "HC09")
    assert "mend a2c.py:39 worker, where a process that it talks to ended" in str(failure.fix)
