"""Places in texts as links: where the file is here, and nothing else."""

import pytest

from gputop.links import Links, links_of, url


@pytest.fixture
def links(tmp_path):
    (tmp_path / "src").mkdir()
    for name in ("train.py", "src/a b.py", "src/loop.py"):
        (tmp_path / name).write_text("")
    return Links(str(tmp_path), "vscode")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("DataLoader at train.py:9", ["train.py:9"]),
        ("train.py:9 and src/loop.py:12, not gone.py:3", ["train.py:9", "src/loop.py:12"]),
        ("(src/loop.py:12)", ["src/loop.py:12"]),
        ("other/train.py:9 train.py train.pyc:4 train.py:x", []),
        ("torch/nn/modules/module.py:1500", []),
    ],
)
def test_places_of_files_that_are_here_are_links(links, text, found):
    assert [text[one.begin : one.end] for one in links.of(text)] == found


def test_an_address_holds_the_path_whole(links, tmp_path, monkeypatch):
    (link,) = links.of(f"at {tmp_path}/train.py:9")
    assert link.url == f"vscode://file{tmp_path}/train.py:9"
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("socket.gethostname", lambda: "box")
    assert url("/a b/x/../t.py", "9", "file") == "file://box/a%20b/t.py"
    monkeypatch.setenv("TERM", "xterm-kitty")
    assert url("/a/t.py", "9", "file") == "file://box/a/t.py#9"


def test_a_text_is_the_same_but_for_its_links(links, tmp_path):
    text = "fix: num_workers=4 at train.py:9, line 9"
    begin = f"\x1b]8;;vscode://file{tmp_path}/train.py:9\x1b\\"
    assert links.marked(text) == text.replace("train.py:9", f"{begin}train.py:9\x1b]8;;\x1b\\")
    assert Links(links.folder, "off").marked(text) == text
    assert Links("", "file").marked(text) == text, "no folder is known"


def test_terminals_that_take_no_links_get_none(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert links_of("/", "file") is None
    monkeypatch.setenv("TERM", "xterm")
    assert links_of("/", "off") is None and links_of("/", "file") == Links("/", "file")
