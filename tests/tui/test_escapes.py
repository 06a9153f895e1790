"""No text that others wrote reaches a terminal, a page or a table as anything but text.

A record is planted with orders to terminals in every text field, by walking its JSON; all commands
and screens show it.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from record_fuzz import outcome
from tui_pilot import press, screen_text, settle
from tui_support import FixedClock, write_run

from gputop import spreadsheet
from gputop.app import Source
from gputop.app.application import GputopApp
from gputop.output.ansi import resolve_text
from gputop_analysis.report.markdown import code, plain
from gputop_probes.record.plain import blanked, plain_line, plain_text

ORDERS = (
    "\x1b]0;pwned\x07", "\x1b[2J", "\x1b[8m", "\x9b31m", "\x9d52;c;AAAA\x9c", "\x07", "\x08\x08",
    "\x7f", "\x00", "\u202e", "\u2066", "\u200b", "\ufeff", "\u2028", "\udc80", "\U000e0041",
)  # fmt: skip
MARKER = "M" + "".join(ORDERS) + "[red]`|<b>&[x](http://y)[@click=app.bell]boo[/]"
OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def planted(value: Any, name: str = "") -> Any:
    """The value with the marker in every text that is not a name that the record needs."""
    if isinstance(value, str):
        return value if name in ("format", "type", "state", "tables", "phase") else value + MARKER
    if isinstance(value, dict):
        return {k: v if k == "tables" else planted(v, k) for k, v in value.items()}
    return [planted(one, name) for one in value] if isinstance(value, list) else value


EVENTS: list[dict[str, Any]] = [
    {"type": "exception", "class": "ValueError", "message": "bad\nthing", "traceback": ["File x"],
     "site": "t.py:3"},
    {"type": "log", "step": 3, "values": {MARKER: 1.0, "text": "x"}},
    {"type": "stacks", "phase": "data", "period_ms": 9.0, "total": 50,
     "samples": [{"site": "t.py:3", "function": "f", "caller": "g", "inside": "h", "code": "x = 1",
                  "count": 50}]},
    {"type": "checkpoint", "duration_ms": 4000.0, "step": 9, "path": "out.pt", "bytes": 9,
     "via": "torch.save"},
    {"type": "stack_dump", "reason": "hang", "phase": "backward", "step": 9,
     "threads": [{"name": "main", "training": True, "frames": ["t.py:3 f", "u.py:4 g"]}],
     "collective": {"seq": 4, "op": "all_reduce", "bytes": 8, "state": "started"}},
    {"type": "compile", "duration_ms": 9.0, "step": 90, "graphs": 3, "graph_breaks": 2,
     "recompiles": 40, "function": "forward", "site": "m.py:3", "reason": "shape"},
    {"type": "profile", "steps": 2, "first_step": 3, "trace_path": "x.json",
     "table": [{"op": "aten::mm", "calls": 3, "cpu_ms": 1.0, "device_ms": 2.0}]},
    {"type": "threads", "period_ms": 2000.0,
     "threads": [{"name": "worker", "cpu_share": 0.9, "site": "t.py:3", "function": "f",
                  "caller": "g", "age_s": 9.0}]},
    {"type": "no_agent", "pid": 7, "reason": "why"},
    {"type": "rank_lost", "reason": "killed", "step": 9},
    {"type": "interrupt", "signal": "SIGINT", "by": "user", "pids": [3]},
    {"type": "hang_suspected", "ranks": [0], "silent_s": 20.0, "limit_s": 15.0,
     "threads": [{"rank": 0, "pid": 3, "state": "S", "wchan": "futex", "path": "/x",
                  "mount": "nfs"}]},
    {"type": "agent_error", "where": "here", "message": "ouch", "disabled": True},
    {"type": "unheard_of", "what": "ever"},
]  # fmt: skip


def plant(run: Path) -> Path:
    """A record whose every text is hostile."""
    lines = [json.loads(line) for line in (run / "hosts/box/events.jsonl").read_text().splitlines()]
    hello = lines[0]
    hello |= {
        "argv": ["t.py", "--x"],
        "device_name": "H100",
        "torch": "2.0",
        "launcher": "torchrun",
        "python": "3.11",
    }
    hello |= {
        "model": {"class": "Net", "parameters": 10, "config": {"name": "x", "model_type": "y"}}
    }
    hello |= {
        "env": {"NCCL_DEBUG": "INFO"},
        "libraries": {"peft": "1"},
        "amp": {"autocast": True, "dtype": "bf16"},
    }
    lines += [
        {"t_ns": hello["t_ns"] + 5 * 10**9, "rank": 0, "pid": 100, "host": "box", **event}
        for event in EVENTS
    ]
    text = "".join(json.dumps(planted(line)) + "\n" for line in lines)
    (run / "hosts/box/events.jsonl").write_text(text)
    context = {
        "git": {"commit": "abc", "branch": "main"},
        "container": "docker",
        "environment": {"RANK": "0"},
    }
    for path, more in (
        (run / "run.json", {"cwd": "/x"}),
        (run / "hosts/box/host.json", {"context": context}),
    ):
        path.write_text(json.dumps(planted(json.loads(path.read_text()) | more)))
    (run / "hosts/box/output.log").write_text(
        "".join(f"line {i} {MARKER}\n" for i in range(30)), errors="replace"
    )
    with contextlib.suppress(OSError):
        (run / "hosts/box").rename(run / "hosts" / "box\x1b[2J\n")
    return run


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    plant(write_run(folder / "one", ranks=2, steps=120, gpus=2, slow_rank=1))
    shutil.copytree(folder / "one", folder / "two\x1b]0;x\x07\n")
    return folder


COMMANDS = [
    ["report", "{one}"], ["report", "{two}"], ["report", "{one}", "--md"],
    ["report", "{two}", "--md"],
    ["report", "{one}", "--json"], ["report", "{one}", "--explain"],
    ["report", "{one}", "--html", "{out}"],
    ["report", "{two}", "--html", "{out}"], ["report", "{one}", "--baseline", "{two}"],
    ["report", "{one}", "--baseline", "{two}", "--md"], ["report", "{one}", "--watch"],
    ["export", "{one}", "--format", "json"], ["export", "{one}", "--format", "csv"],
    ["export", "{one}", "--format", "svg", "-o", "{out}"], ["diff", "{one}", "{two}"],
    ["diff", "{two}", "{one}", "--json"],
    ["runs"], ["runs", "--json"], ["plan", "--run", "{one}"], ["estimate", "--run", "{one}"],
    ["attach", "{one}"], ["profile", "{one}"], ["open", "{one}"],
    # what the user typed comes back in the error
    ["rep\x1b[2Jort"], ["report", "x\x1b]0;a\x07"], ["findings", "\x9b31m"],
    ["report", "{one}", "--explain", "\x1b[2J"],
    ["lint", "no\x1b[2J.py"], ["estimate", "--model", "\x1b[2Jgpt"], ["plan", "--gpu", "H\x1b[2J"],
    ["topo", "\x1b[2J"],
    ["validate", "x\x1b[2J.yaml"], ["catalog", "--models", "\x1b[2J"],
    ["report", "--trace", "x\x1b[2J"], ["scan", "\x1b[2J"],
    ["launch", "--model", "\x1b[2J"], ["run", "--headless", "--", "no-such-\x1b[2J-program"],
    ["export", "--format", "\x1b"],
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_prints_an_order(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words
) -> None:
    monkeypatch.setenv("GPUTOP_RUNS_DIR", str(hostile))
    out = tmp_path / "page"
    places = {"one": hostile / "one", "two": hostile / "two\x1b]0;x\x07\n", "out": out}
    _, stdout, stderr = outcome([word.format(**places) for word in words])
    text = stdout + stderr + (out.read_text() if out.exists() else "")
    assert text and not OBEYED.search(text), ascii(
        text[max(0, OBEYED.search(text).start() - 80) :][:160]
    )
    if words[-1] == "--md":
        assert not re.search(r"(?<!\\)<b>", re.sub(r"(`+).*?\1", "", text)), "HTML in Markdown"
    if "--html" in words:
        assert "<b>&[x]" not in text


def test_what_the_command_wrote_itself_passes_byte_for_byte(tmp_path: Path) -> None:
    import subprocess
    import sys

    words = [
        sys.executable,
        "-m",
        "gputop",
        "run",
        "--headless",
        "--run-dir",
        str(tmp_path / "r"),
        "--",
    ]
    script = "import sys; sys.stdout.buffer.write(b'\\x1b[2J\\x9b\\x00\\xff\\r\\x07')"
    done = subprocess.run(
        [*words, sys.executable, "-c", script], capture_output=True, timeout=60, check=False
    )
    assert done.stdout == b"\x1b[2J\x9b\x00\xff\r\x07"


@pytest.mark.parametrize("mode", ["replay"])
async def test_no_screen_shows_an_order(hostile: Path, mode: str) -> None:
    app = GputopApp(Source(hostile / "one", mode), FixedClock(), ticking=False)
    async with app.run_test(size=(140, 45)) as pilot:
        app.tick()
        await settle(app, pilot)
        seen = [screen_text(app)]
        for key in (
            "6",
            "escape",
            "f",
            "escape",
            "b",
            "escape",
            "n",
            "escape",
            "w",
            "escape",
            "d",
            "escape",
            "v",
            "escape",
        ):
            await press(app, pilot, key)
            seen.append(screen_text(app))
        app.notify(f"told {MARKER}", title=MARKER)
        await settle(app, pilot)
        seen.append(screen_text(app))
    assert any("M\\x1b" in text or "M\ufffd" in text or "M\\" in text for text in seen), (
        "the marker is on the screen"
    )
    assert "[@click=" in seen[-1], "markup is shown"
    for text in seen:
        assert not OBEYED.search(text), ascii(
            text[max(0, OBEYED.search(text).start() - 80) :][:160]
        )


def test_the_output_panel_keeps_colours_and_drops_the_rest() -> None:
    assert resolve_text(f"a{MARKER}b").startswith("aM") and not OBEYED.search(
        resolve_text(f"a{MARKER}b")
    )


@pytest.mark.parametrize("order", ORDERS, ids=ascii)
def test_every_order_is_spelt_out(order: str) -> None:
    for show in (plain_line, plain_text, blanked):
        assert not OBEYED.search(show(f"a{order}b")) and show("plain é 漢") == "plain é 漢"
    assert plain_text("a\n\tb") == "a\n\tb" and plain_line("a\n\tb") == "a\\n\\tb"


def test_markdown_cannot_be_left() -> None:
    assert (
        "\n" not in plain("a\n# b")
        and plain("`x` <b> [a](b) |") == "\\`x\\` \\<b\\> \\[a\\](b) \\|"
    )
    assert code("a ``` b").startswith("````") and "\n" not in code("a\nb")


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "@SUM(A1)", "-x", "\t=1", "\r=1"])
def test_no_cell_is_a_formula(text: str) -> None:
    assert spreadsheet.cell(text).startswith("'") and "\r" not in spreadsheet.cell(text)
    assert [spreadsheet.cell(one) for one in ("-3.5", "a=b", 4, None)] == ["-3.5", "a=b", 4, None]


def test_a_terminal_gets_our_colours_and_nobody_elses_orders() -> None:
    from gputop.cli.streams import PlainStream

    class Terminal:
        text = ""

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            self.text += text
            return len(text)

    terminal = Terminal()
    PlainStream(terminal).write(f"\x1b[1;31mred\x1b[0m {MARKER}")  # type: ignore[arg-type]
    assert terminal.text.startswith("\x1b[1;31mred\x1b[0m ")
    assert not OBEYED.search(re.sub(r"\x1b\[[0-9;]*m", "", terminal.text))
