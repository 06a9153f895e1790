"""``gputop check`` given what it cannot measure: one line that says why, exit code 2, at once."""

from __future__ import annotations

import json
import sys

import pytest

from gputop.cli import main

CMD = ["--", sys.executable, "-c", "pass"]
HERE = ["--baseline", "."]
FILES = {
    "far.json": json.dumps({"command": ["python", "t.py"], "cwd": "/home/of/another/machine"}),
    "torn.json": '{"command": [',
    "list.json": "[1]",
    "text.json": json.dumps({"command": "python t.py", "cwd": "."}),
}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (HERE, "no command"),
        (["--baseline", ".", "--threshold", "3", *CMD], "300 % slower"),
        (["--baseline", ".", "--threshold", "fast", *CMD], "is no share"),
        (["--baseline", ".", "--time", "0", *CMD], "no positive number"),
        (CMD, "--baseline"),
        (["--baseline", "nowhere", *CMD], "no run 'nowhere'"),
        (["--baseline", "far.json", *CMD], "/home/of/another/machine, which is not here"),
        (["--baseline", "torn.json", *CMD], "cannot read torn.json"),
        (["--baseline", "list.json", *CMD], "names no command"),
        (["--baseline", "text.json", *CMD], "names no command"),
        ([*HERE, "--", "no-such-program"], "no program 'no-such-program'"),
        ([*HERE, "--", "./train.sh"], "no program './train.sh'"),
        ([*HERE, "--", "python train.py"], "one by one, without quotes"),
        ([*HERE, "--md", "gone/result.md", *CMD], "cannot write gone/result.md"),
        ([*HERE, "--json", ".", *CMD], "cannot write ."),
    ],
)
def test_what_cannot_be_measured_is_one_line(tmp_path, monkeypatch, capsys, words, reason):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    assert main(["check", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gputop: ") and reason in line


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("print('a shard is missing'); raise SystemExit(3)", "exit code 3: a shard is missing"),
        ("pass", "ended before its steps were steady"),
    ],
)
def test_a_command_that_fails_or_never_trains_is_no_verdict(tmp_path, capsys, code, reason):
    command = [sys.executable, "-c", code]
    assert main(["check", "--baseline", str(tmp_path), "--time", "30", "--", *command]) == 2
    assert reason in capsys.readouterr().err
