"""One file of settings: what is wrong in it is one line, the environment wins, writing keeps all
else.
"""

from pathlib import Path

import pytest

from gputop import settings
from gputop.settings import SETTINGS, keep, load, replaced


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)
    path = settings.path()
    path.parent.mkdir()
    return path


def test_without_a_file_the_defaults_hold(file):
    assert load() == settings.Settings({one.key: one.default for one in SETTINGS}, ())


def test_the_environment_wins_over_the_file(file, monkeypatch):
    file.write_text(
        'theme = "light"\n[notifications]\nbell = false\non = ["end"]\nto = ["mail me"]\n'
    )
    held = load()
    assert held.trouble == () and held.text("theme") == "light"
    assert not held.on("notifications.bell") and held.entries("notifications.on") == ("end",)
    assert held.entries("notifications.to") == ("mail me",)
    monkeypatch.setenv("GPUTOP_THEME", "dark")
    monkeypatch.setenv("GPUTOP_NOTIFICATIONS_BELL", "1")
    monkeypatch.setenv("GPUTOP_NOTIFICATIONS_ON", "none")
    held = load()
    assert (held.text("theme"), held.on("notifications.bell")) == ("dark", True)
    assert held.entries("notifications.on") == ()
    monkeypatch.setenv("GPUTOP_NO_CONFIG", "1")
    assert load().entries("notifications.to") == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[notifications]\nbel = true\n", "no setting is called notifications.bel: did you mean "),
        ('[terminal]\ntitle = "yes"\n', "terminal.title is true or false, not 'yes'"),
        ('[terminal]\nlinks = "emacs"\n', "terminal.links is file or vscode or cursor or off, not"),
        ('[notifications]\non = ["start"]\n', "notifications.on is a list of finding, hang, end, "),
        ("theme = [\n", "is not used: it is no TOML"),
    ],
)
def test_what_is_wrong_is_one_line_and_the_rest_holds(file, text, said):
    file.write_text('panels.hidden = ["loss"]\n' + text)
    held = load()
    (line,) = held.trouble
    assert str(file) in line and said in line and "\n" not in line
    assert held.text("theme") == "auto" and held.on("terminal.title")
    assert held.entries("panels.hidden") == (("loss",) if "TOML" not in said else ())


def test_a_variable_that_says_nothing_is_named(file, monkeypatch):
    monkeypatch.setenv("GPUTOP_TERMINAL_TITLE", "maybe")
    assert load().trouble == ("$GPUTOP_TERMINAL_TITLE: true or false, not 'maybe'",)


FILE = """\
# mine
theme = "dark"  # at night

[notifications]
on = [
  "end",  # only that
]
bell = true

[panels]
"""


@pytest.mark.parametrize(
    ("key", "value", "before", "after"),
    [
        ("theme", "light", 'theme = "dark"  # at night', 'theme = "light"'),
        ("notifications.on", (), 'on = [\n  "end",  # only that\n]', "on = []"),
        ("notifications.desktop", False, "bell = true\n", "bell = true\ndesktop = false\n"),
        ("panels.hidden", ("loss",), "[panels]\n", '[panels]\nhidden = ["loss"]\n'),
    ],
)
def test_writing_changes_one_line(key, value, before, after):
    assert replaced(FILE, key, value) == FILE.replace(before, after)


def test_what_was_kept_is_read_again(file):
    changed = {
        "theme": "nord",
        "terminal.title": False,
        "notifications.to": ('say "it"', "https://example.org/x"),
        "panels.hidden": ("loss",),
    }
    for key, value in changed.items():
        keep(key, value)
    held = load()
    assert held.trouble == ()
    assert {key: held.values[key] for key in changed} == changed
    file.write_text("broken = [")
    with pytest.raises(settings.SettingsError):
        keep("theme", "dark")
    assert file.read_text() == "broken = ["


def test_the_page_has_every_setting():
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    assert settings.table() in page
