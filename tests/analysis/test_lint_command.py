"""``gputop lint`` as a user calls it."""

import json

import pytest

from gputop.cli import main

BAD = """import torch
from torch.utils.data import DataLoader
loader = DataLoader(rows, 8)
torch.autograd.set_detect_anomaly(True)
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(BAD)
    return path


def test_remarks_and_exit_code(script, capsys):
    assert main(["lint", "train.py"]) == 1
    shown = capsys.readouterr()
    assert "train.py:3:10: medium: " in shown.out and "[loader-workers] (IN02)" in shown.out
    assert "2 remarks; --fix mends 1 of them" in shown.err


def test_json_of_a_directory(script, capsys):
    (script.parent / ".venv").mkdir()
    (script.parent / ".venv" / "other.py").write_text(BAD)
    assert main(["lint", ".", "--json", "--rule", "anomaly-mode"]) == 1
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["path"], one["line"], one["finding"], one["fixable"]) == (
        "train.py",
        4,
        "HO16",
        True,
    )


def test_a_file_of_a_directory_that_is_no_python_is_left_out(script, capsys):
    (script.parent / "template.py").write_text("import {{ name }}:\n")
    assert main(["lint", "."]) == 1
    shown = capsys.readouterr()
    assert "train.py:3:10" in shown.out and "left out template.py:1: not valid Python" in shown.err
    assert main(["lint", "template.py"]) == 2


def test_diff_leaves_the_file_alone_and_fix_writes_it(script, capfdbinary):
    assert main(["lint", "--diff", "train.py"]) == 1
    patch = capfdbinary.readouterr().out
    assert (
        b"-torch.autograd.set_detect_anomaly(True)\n+torch.autograd.set_detect_anomaly(False)\n"
        in patch
    )
    assert script.read_text() == BAD
    assert (
        main(["lint", "--fix", "train.py"]) == 1
    )  # the loader's dataset is not known: no edit is safe
    assert script.read_text() == BAD.replace("True", "False")
    assert main(["lint", "--fix", "--rule", "anomaly-mode", "train.py"]) == 0


def test_a_clean_file_and_the_list_of_rules(script, capsys):
    script.write_text("import torch\n")
    assert main(["lint", "train.py"]) == 0 and "nothing to remark" in capsys.readouterr().err
    assert main(["lint", "--rules"]) == 0 and "loader-workers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no file"),
        (["gone.py"], "gone.py"),
        (["broken.py"], "broken.py:1: not valid Python"),
        (["--rule", "nonsense", "train.py"], "no rule 'nonsense'"),
        (["empty"], "no Python file in empty"),
        (["--fix", "--diff", "train.py"], "not allowed with"),
    ],
)
def test_wrong_input_is_one_line(script, capsys, words, said):
    (script.parent / "empty").mkdir()
    (script.parent / "broken.py").write_text("def f(:\n")
    assert main(["lint", *words]) == 2
    shown = capsys.readouterr()
    assert said in shown.err and shown.err.count("\n") == 1 and shown.out == ""


def test_what_has_no_end_is_not_read_to_it(capsys):
    assert main(["lint", "/dev/zero"]) == 2
    assert "more than 2 MiB" in capsys.readouterr().err
