"""The terminal's background, asked with OSC 11 on a real pseudo-terminal."""

import os
import pty
import select
import sys

import pytest

ASK = """
import os, sys
for name in ("COLORFGBG", "NO_COLOR", "SSH_CONNECTION"):
    os.environ.pop(name, None)
os.environ["TERM"] = "xterm-256color"
from gputop.app import background
asked = background.ask()
print("light:", asked.answer(), "typed:", asked.typed, end=";", flush=True)
"""
LIGHT = b"\x1b]11;rgb:fafa/fafa/fafa\x1b\\"
DARK = b"\x1b]11;rgb:1414/1818/1f1f\x07"
KIND = b"\x1b[?62;22c"


def told(reply: bytes, config: str) -> bytes:
    """What the program says after a terminal gave ``reply`` to its question."""
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {**os.environ, "XDG_CONFIG_HOME": config}
        os.execve(sys.executable, [sys.executable, "-c", ASK], environment)
    seen, answered = b"", False
    try:
        while b";" not in seen.rpartition(b"light:")[2] or b"light:" not in seen:
            assert select.select([terminal], [], [], 60)[0], seen
            seen += os.read(terminal, 4096)
            if b"\x1b]11;?" in seen and not answered:
                os.write(terminal, reply)
                answered = True
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    assert b"\x1b]11;?" in seen
    return seen[seen.index(b"light:") :]


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (LIGHT + KIND, b"light: True typed: b''"),
        (b"qw" + DARK + KIND, b"light: False typed: b'qw'"),
        (KIND, b"light: None typed: b''"),
        (b"", b"light: None typed: b''"),
    ],
    ids=["light", "dark, with keys typed ahead", "no colour known", "no answer at all"],
)
def test_the_answer_is_read_and_a_silent_terminal_is_not_waited_for(tmp_path, reply, words):
    assert told(reply, str(tmp_path)).startswith(words)
