"""Help of every command, numbers as people write them, the line that says what a long
command does.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from gputop.cli import main
from gputop.cli.commands import COMMANDS
from gputop.cli.quantities import amount, dollars, long_time, short
from gputop.cli.working import working
from gputop.short_words import LEGEND, legend


@pytest.mark.parametrize("columns", ["40", "200"])
@pytest.mark.parametrize("name", [one.name for one in COMMANDS])
def test_every_command_helps(name: str, columns: str, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    said = []
    for words in ([name, "--help"], ["help", name], [name, "-h"]):
        with pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code == 0
        shown = capsys.readouterr()
        assert shown.err == "" and shown.out.startswith(f"usage: gputop {name}")
        said.append(shown.out)
    assert said[0] == said[1] == said[2]
    assert "%%" not in said[0] and "%(" not in said[0]


@pytest.mark.parametrize("name", [one.name for one in COMMANDS])
def test_no_help_is_wider_than_the_terminal(name: str, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 80


@pytest.mark.parametrize(
    "words",
    [["catalog", "list"], ["catalog", "show"], ["catalog", "prices"], ["catalog", "import"]],
)
def test_the_parts_of_a_command_help_too(words: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as left:
        main([*words, "--help"])
    assert left.value.code == 0 and "usage: gputop" in capsys.readouterr().out


def test_help_of_nothing_is_the_list_and_of_a_typo_a_hint(capsys) -> None:
    assert main(["help"]) == 0 and "gputop COMMAND" in capsys.readouterr().out
    assert main(["help", "rum"]) == 2 and "gputop run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("100B", 1e11),
        ("15T", 15e12),
        ("1e12", 1e12),
        ("1.5b", 1.5e9),
        ("1,000,000", 1e6),
        ("300 M", 3e8),
        (".5T", 5e11),
    ],
)
def test_amounts_are_read_as_people_write_them(text: str, value: float) -> None:
    assert amount(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "T", "-1B", "0", "1e999", "ten", "10Q", "nan", "1B2"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="100B"):
        amount(text)


def test_amounts_are_written_as_people_read_them() -> None:
    assert [short(v) for v in (15e12, 1e11, 1.5e9, 820)] == ["15T", "100B", "1.5B", "820"]
    assert [long_time(h) for h in (1595, 72, 5.3, 0.5)] == [
        "66 days",
        "3.0 days",
        "5.3 h",
        "30 min",
    ]
    assert [dollars(v) for v in (0.07, 4.76, 121473)] == ["$0.07", "$4.76", "$121,473"]


def test_a_legend_names_what_occurs_and_nothing_else() -> None:
    said = legend("DP16 ZeRO-1 mb1 rc:selective\nPP2x4 tight")
    assert re.findall(r"(\S+):", said) == ["DPn", "PPnxm", "ZeRO-n", "mbn", "rc", "tight"]
    assert set(said.split("; ")) < set(LEGEND.split("; "))


def test_a_short_block_says_nothing_and_leaves_no_timer(capfd) -> None:
    before = signal.getsignal(signal.SIGALRM)
    with working("reading"):
        pass
    assert capfd.readouterr().err == ""
    assert signal.getsignal(signal.SIGALRM) is before and signal.getitimer(signal.ITIMER_REAL) == (
        0.0,
        0.0,
    )


def test_a_long_block_says_once_what_it_does(capfd) -> None:
    with working("reading the record"), working("something inside"):
        deadline = time.monotonic() + 2.2
        while time.monotonic() < deadline:
            time.sleep(0.05)
    assert capfd.readouterr().err == "gputop: reading the record ..." + os.linesep


def test_an_error_in_a_long_block_passes(capfd) -> None:
    with pytest.raises(ValueError), working("reading"):
        time.sleep(1.1)
        raise ValueError
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_on_a_terminal_the_line_counts_and_goes_away() -> None:
    script = (
        "from gputop.cli.working import working\nimport time\nwith working('reading'): "
        "time.sleep(2.3)\nprint('done')"
    )
    leader, follower = os.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=follower, stderr=follower, env=environment
    )
    os.close(follower)
    assert child.wait(60) == 0
    said = os.read(leader, 10_000).decode()
    os.close(leader)
    assert re.search(r"gputop: reading \.\.\. 1 s.*gputop: reading \.\.\. 2 s", said, re.DOTALL)
    assert said.endswith("\r\x1b[Kdone\r\n")


@pytest.mark.parametrize("name", [one.name for one in COMMANDS])
def test_an_option_that_no_command_has_is_one_line_and_nothing_is_done(name: str, capsys) -> None:
    assert main([name, "--jsno"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("gputop: ") and shown.err.count("\n") == 1


def test_output_that_cannot_be_written_is_one_line_and_no_success() -> None:
    with open("/dev/full", "w") as full:
        child = subprocess.run(
            [sys.executable, "-m", "gputop", "findings", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert child.returncode == 3
    assert child.stderr == "gputop: cannot write the output: No space left on device\n"


def test_a_locale_of_ascii_gets_ascii(monkeypatch) -> None:
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", ascii_only)
    assert main(["catalog", "TPU"]) == 0
    shown = ascii_only.buffer.getvalue().decode("ascii")
    assert re.search(r"TPU v4 .* -  2021", shown)


@pytest.mark.parametrize("words", [["diff"], ["check"], ["skill"], ["completion"]])
def test_what_is_missing_is_shown_in_a_whole_command(words: list[str], capsys) -> None:
    assert main(words) == 2
    assert f", as in `gputop {words[0]} " in capsys.readouterr().err


@pytest.mark.parametrize("words", [["estimate"], ["probe"], ["validate"], ["why"], ["report"]])
def test_an_empty_file_is_called_empty(words: list[str], tmp_path, capsys) -> None:
    empty = tmp_path / "empty.json"
    empty.touch()
    assert main([*words, str(empty)]) == 2
    assert f"{empty} is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["estimate", "--model", "gpt2", "--micro-batch", "0"], "--micro-batch takes a whole"),
        (["plan", "--model", "gpt2", "--seq", "abc"], "--seq: 'abc' is no whole number"),
        (["runs", "-n", "-3"], "'-3' is no number of runs: 0 for all"),
        (["scan", "--gpus", "8xH100"], "which kinds, with --over H100 A100"),
        (["fit", "gpt2", "--gpus", "0xA100"], "it says no one count above 0"),
        (["fit", "gpt2", "--gpus", "8xH100,4xA100"], "it names A100 and H100: say one"),
        (["train.py"], "say `gputop run python train.py`"),
    ],
)
def test_what_is_wrong_is_said_as_it_was_typed(words: list[str], hint: str, capsys) -> None:
    assert main(words) == 2
    assert hint in capsys.readouterr().err


def test_a_command_without_rules_is_not_said_to_keep_them(capsys) -> None:
    assert main(["validate", "--", "horse", "train.py"]) == 0
    assert "no rules are known for it; torchrun, accelerate" in capsys.readouterr().out
