"""The command's output: what a terminal would show."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop.output.ansi import column_of, resolve, resolve_text
from gputop.output.lines import MAX_LINES, LineBuffer, OutputWriter
from gputop.output.progress_bar import newest_bar
from gputop.output.tail import FIRST_READ, Tail


def shown(*chunks: bytes) -> list[str]:
    buffer = LineBuffer()
    stream = OutputWriter(buffer)
    for chunk in chunks:
        stream.feed(chunk)
    return [resolve_text(raw) for raw in buffer.lines]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("plain", "plain"),
        ("10%\r20%", "20%"),
        ("long text\rab", "abng text"),
        ("long text\rab\x1b[K", "ab"),
        ("abc\b\bX", "aXc"),
        ("a\tb", "a       b"),
        ("\x1b[31mred\x1b[0m end", "red end"),
        ("\x1b[5Gx", "    x"),
        ("abcdef\x1b[3D\x1b[1K!", "   !ef"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b[2K\rnew", "new"),
        ("bell\x07", "bell"),
    ],
)
def test_a_line_resolves_as_a_terminal_would_draw_it(raw, text):
    assert resolve_text(raw) == text


def test_colours_become_looks():
    runs = resolve("\x1b[1;32mok\x1b[0m \x1b[38;5;208mo\x1b[48;2;1;2;3mb")
    assert [text for text, _ in runs] == ["ok", " ", "o", "b"]
    assert runs[0][1].front == "green" and runs[0][1].bold
    assert runs[2][1].front == "color(208)" and runs[3][1].back == "#010203"


def test_lines_and_a_progress_bar():
    assert shown(b"a\nb\n", b"10%\r", b"\r20%", b"\r30%") == ["a", "b", "30%"]


def test_crlf_is_a_newline_even_when_it_is_torn():
    assert shown(b"a\r", b"\nb\r\n") == ["a", "b", ""]


def test_utf8_and_escapes_torn_between_reads():
    assert shown("é".encode()[:1], "é".encode()[1:] + b"\x1b[3", b"1mred") == ["éred"]


def test_several_progress_bars_by_cursor_up():
    first = b"\n\router  10%\x1b[A\rinner   5%"
    again = b"\n\router  20%\x1b[A\rinner  55%"
    assert shown(b"start\n", first, again) == ["start", "inner  55%", "outer  20%"]


def test_cursor_up_keeps_the_column():
    assert shown(b"abc\ndef\x1b[AX") == ["abcX", "def"]


def test_two_streams_keep_their_own_lines():
    buffer = LineBuffer()
    out, err = OutputWriter(buffer), OutputWriter(buffer)
    out.feed(b"log 1\n")
    err.feed(b"bar 10%")
    out.feed(b"log 2\n")
    err.feed(b"\rbar 20%")
    texts = [resolve_text(raw) for raw in buffer.lines]
    assert [text for text in texts if text] == ["log 1", "log 2", "bar 20%"]


def test_the_buffer_is_bounded_and_names_stay():
    buffer = LineBuffer()
    stream = OutputWriter(buffer)
    for block in range(4):
        stream.feed("".join(f"{block * 10_000 + i}\n" for i in range(10_000)).encode())
    assert len(buffer.lines) <= MAX_LINES * 5 // 4
    assert buffer.lines[39_999 - buffer.dropped] == "39999"


def test_a_bar_redrawn_for_hours_stays_small():
    buffer = LineBuffer()
    stream = OutputWriter(buffer)
    for percent in range(20_000):
        stream.feed(f"\rstep {percent:>6} {'#' * 40}".encode())
    assert len(buffer.lines) == 1 and len(buffer.lines[0]) < 20_000
    assert resolve_text(buffer.lines[0]).startswith("step  19999")


@given(st.lists(st.binary(max_size=40), max_size=12))
def test_any_bytes_are_survived(chunks):
    for line in shown(*chunks):
        assert "\x1b" not in line and "\r" not in line


@given(st.lists(st.text("ab\n\r", max_size=12), max_size=8))
def test_how_the_bytes_were_cut_does_not_matter(parts):
    whole = "".join(parts) + "\n"
    assert shown(whole.encode()) == shown(*(p.encode() for p in [*parts, "\n"]))


def test_column_of_counts_cells():
    assert column_of("abc\rde") == 2


def test_the_tail_follows_both_files_and_starts_near_the_end(tmp_path):
    folder = tmp_path / "hosts" / "box"
    folder.mkdir(parents=True)
    log = folder / "output.log"
    log.write_bytes(b"x" * 99 + b"\n" + b"line\n" * (FIRST_READ // 5 + 10))
    tail = Tail(tmp_path)
    assert tail.poll() and not tail.poll()
    assert "earlier output left out" in tail.view().lines[0]
    with log.open("ab") as file:
        file.write(b"more\n")
    (folder / "stderr.log").write_bytes(b"trouble\n")
    assert tail.poll()
    assert {"more", "trouble"} <= set(tail.view().lines)


def test_the_tail_leaves_out_what_the_log_gave_up(tmp_path):
    folder = tmp_path / "hosts" / "box"
    folder.mkdir(parents=True)
    log = folder / "output.log"
    with log.open("wb") as file:  # as after a hole was punched, in the middle of a line
        file.seek(1 << 16)
        file.write(b"d\nnew\n")
    with log.open("rb") as file:
        if os.lseek(file.fileno(), 0, os.SEEK_DATA) == 0:
            pytest.skip("this file system knows no holes")
    tail = Tail(tmp_path)
    assert tail.poll()
    assert list(tail.view().lines[:2]) == ["[65,538 bytes of earlier output left out here]", "new"]


def test_the_tail_follows_a_log_that_was_moved_down(tmp_path):
    folder = tmp_path / "hosts" / "box"
    folder.mkdir(parents=True)
    log = folder / "output.log"
    log.write_bytes(b"old line\n" * 50)
    tail = Tail(tmp_path)
    assert tail.poll()
    log.write_bytes(b"newest\n")
    assert tail.poll()
    assert "newest" in tail.view().lines


def test_a_tail_without_a_run_is_empty(tmp_path):
    tail = Tail(tmp_path / "gone")
    assert not tail.poll() and tail.view().lines == ()


def test_a_replay_shows_what_had_been_written_by_then(tmp_path):
    folder = tmp_path / "hosts" / "box"
    folder.mkdir(parents=True)
    (folder / "output.log").write_bytes(b"first\nsecond\nthird\n")
    (folder / "stderr.log").write_bytes(b"late\n")
    lengths = {"hosts/box/output.log": 13, "hosts/box/stderr.log": -1}
    tail = Tail(tmp_path)
    assert tail.poll(lengths) and not tail.poll(lengths)
    assert tail.view().lines == ("first", "second", "")
    assert tail.poll(lengths | {"hosts/box/output.log": 6})  # back in time
    assert tail.view().lines == ("first", "")
    assert tail.poll()  # the end: all of it
    assert set(tail.view().lines) == {"first", "second", "third", "late", ""}


BAR = " 24%|\u2588\u2588\u258d       | 599/2500 [00:12<00:42, 44.62it/s]"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([BAR], (599, 2500, "0:42")),
        (["epoch 1", "Epoch 1: " + BAR + "   ", ""], (599, 2500, "0:42")),
        (["\x1b[32m" + BAR + "\x1b[0m"], (599, 2500, "0:42")),
        ([BAR.replace("00:42", "01:20:42").replace("]", ", loss=0.3]")], (599, 2500, "1:20:42")),
        ([BAR, "validation"], None),
        ([BAR.replace("599", "2500")], None),
        ([BAR.replace("00:42", "?")], None),
        (["downloaded 3/4 [mirror]"], None),
        ([], None),
    ],
)
def test_the_commands_own_bar_is_read_while_it_moves(lines, expected):
    assert newest_bar(lines) == expected


def test_a_bar_written_over_itself_is_the_newest_that_is_whole():
    buffer = LineBuffer()
    stream = OutputWriter(buffer)
    for done in range(100, 400):
        stream.feed(("\r" + BAR.replace("599/", f"{done}/")).encode())
        bar = newest_bar(buffer.lines)
        assert bar is not None and bar.done == done
    stream.feed(("\r" + BAR)[:30].encode())
    bar = newest_bar(buffer.lines)
    assert bar is not None and bar.done == 399
