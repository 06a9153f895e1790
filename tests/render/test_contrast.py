"""Words can be read on the grounds that they stand on."""

from types import SimpleNamespace

import pytest
from rich.color import Color

from gputop.app import theme
from gputop.app.plain_terminal import plain
from gputop.widgets import canvas, roles, step_chart

THEMES = {"dark": (True, False), "light": (False, False), "16 colours": (True, True)}


@pytest.mark.parametrize("kind", THEMES)
def test_words_on_phases_and_bands_stand_out(kind):
    app = SimpleNamespace(theme_variables=theme.variables(*THEMES[kind]))
    grounds = [("on-phase", look.style) for look in step_chart.PARTS.values()]
    grounds += [("on-band", f"band-{name}") for name in ("critical", "high", "good", "info")]
    for role, name in grounds:
        ground = roles.colour(app, name)
        assert roles.contrast(roles.on_ground(app, role, ground), ground) >= 3.9, name


@pytest.mark.parametrize("kind", THEMES)
def test_words_of_the_chosen_row_have_one_colour(kind):
    app = SimpleNamespace(theme_variables=theme.variables(*THEMES[kind]))
    assert canvas._readable("+468 %", "bold heat4/cursor") == "bold text/cursor"
    assert canvas._readable("▲123.19", "high/cursor") == "text/cursor"
    assert canvas._readable("━━━", "heat4/cursor") == "heat4/cursor"
    if kind != "16 colours":  # there they are reversed
        pair = roles.colour(app, "text"), roles.colour(app, "cursor")
        assert roles.contrast(*pair) >= 7


def test_contrast_is_that_of_wcag():
    black, white = Color.parse("#000000"), Color.parse("#ffffff")
    assert roles.contrast(white, black) == pytest.approx(21) == roles.contrast(black, white)


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("21.0 → 16.0 ms", "21.0 ->16.0 ms"),
        (" ‖  1x", " || 1x"),
        ("66 °C", "66 C "),
        ("✓ done", "+ done"),
        ("a shard…    next", "a shard...  next"),
        ("a shard… next", "a shard~ next"),
        ("↑ ▼", "^ v"),
    ],
)
def test_ascii_has_as_many_cells_and_says_the_same(text, spoken):
    assert plain(text) == spoken and len(text) == len(spoken)
