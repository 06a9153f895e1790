"""The user's own keys."""

import pytest

from gputop.actions import in_footer
from gputop.app import keymap


def test_good_names_are_taken_and_bad_ones_named(tmp_path):
    file = tmp_path / "keys.json"
    file.write_text('{"zoom": "x", "explode": "b", "quit": 3}')
    keys, trouble = keymap.load(file)
    assert keys == {"zoom": "x"} and "explode, quit" in trouble


def test_no_file_is_no_trouble(tmp_path):
    assert keymap.load(tmp_path / "none.json") == ({}, "")


@pytest.mark.parametrize("content", ["{", "[]", "\x00"])
def test_a_broken_file_is_named_and_not_used(tmp_path, content):
    file = tmp_path / "keys.json"
    file.write_text(content)
    keys, trouble = keymap.load(file)
    assert keys == {} and str(file) in trouble and "not used" in trouble


def test_the_file_lies_in_the_configuration_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert keymap.path() == tmp_path / "gputop" / "keys.json"


@pytest.mark.parametrize("screen", ["estimator", "strategy", "catalog", "runs", "comparison"])
def test_help_stands_behind_the_way_back_in_the_footer_of_a_screen(screen):
    assert [action.id for action in in_footer(screen)][:2] == ["back", "help"]
