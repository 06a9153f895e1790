"""A screen as SVG: every cell is drawn, once, in its colour and at its place."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from gputop.render.picture import CELL_HEIGHT, CELL_WIDTH, Drawing, Piece, joined, picture

GROUND, FRONT = "#000000", "#ffffff"


def drawn(text: str, column: int = 0, y: int = 0, background: str = GROUND) -> list[ET.Element]:
    drawing = Drawing(GROUND)
    drawing.add((Piece(column, text, FRONT, background),), y)
    return list(ET.fromstring(f"<svg>{drawing.svg()}</svg>").iter())[1:]


def test_words_stand_at_their_cells_and_say_their_width():
    texts = [e for e in drawn("ab      c<&", column=2, y=3) if e.tag == "text"]
    assert [(e.text, int(e.attrib["x"]) // CELL_WIDTH) for e in texts] == [("ab", 2), ("c<&", 10)]
    assert texts[1].attrib["textLength"] == str(3 * CELL_WIDTH)
    assert all(3 * CELL_HEIGHT < int(e.attrib["y"]) < 4 * CELL_HEIGHT for e in texts)


def test_short_gaps_are_kept_and_wide_letters_stand_alone():
    (kept,) = [e for e in drawn("a   b") if e.tag == "text"]
    assert kept.text is not None and "  " not in kept.text and len(kept.text) == 5
    places = [int(e.attrib["x"]) // CELL_WIDTH for e in drawn("a世b") if e.tag == "text"]
    assert places == [0, 1, 3]


@pytest.mark.parametrize("glyph", "▁▄█▀▌▐▔▏░▒▓─━╌╍╸╺│┃┊╭╮╰╯├┼⣿⠁")
def test_what_is_a_shape_is_no_letter_and_lies_in_its_cell(glyph):
    elements = drawn(glyph, column=4, y=2)
    assert [e.tag for e in elements] == ["path"]
    for x, y in re.findall(r"M(-?[\d.]+) (-?[\d.]+)", elements[0].attrib["d"]):
        assert 4 * CELL_WIDTH <= float(x) <= 5 * CELL_WIDTH
        assert 2 * CELL_HEIGHT <= float(y) <= 3 * CELL_HEIGHT


def test_grounds_below_each_other_are_one_box():
    drawing = Drawing(GROUND)
    for y in (1, 2, 4):
        drawing.add((Piece(0, "  ", FRONT, "#ff0000"),), y)
    (path,) = ET.fromstring(f"<svg>{drawing.svg()}</svg>")
    heights = [int(h) // CELL_HEIGHT for h in re.findall(r"v(\d+)h", path.attrib["d"])]
    assert heights == [2, 1]


def test_a_picture_is_xml_of_the_size_of_its_cells_and_loads_nothing():
    row = joined([Piece(0, "a", FRONT, GROUND), Piece(1, "b", FRONT, GROUND)])
    assert row == (Piece(0, "ab", FRONT, GROUND),)
    text = picture([row], 2, GROUND, "a < b")
    root = ET.fromstring(text)
    assert root[0].text == "a < b" and "http" not in text.replace("http://www.w3.org/2000/svg", "")
