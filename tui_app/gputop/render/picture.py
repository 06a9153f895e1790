"""A screen as a picture: SVG of its cells, small, and drawn alike by every browser.

Bars, rules, frames and braille dots are shapes, so that they meet in any font; words say their
width, so that columns stay columns. One path a colour and kind holds all shapes of it. Nothing is
loaded from anywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from gputop.render.rows import char_width, text_width

CELL_WIDTH, CELL_HEIGHT, FONT_SIZE = 8, 17, 13.2
BASELINE = 13
"""Pixels from the top of a row to the foot of its letters."""
MARGIN = 12
OVERLAP = 0.4
"""By which a block reaches into the row below: no seam between the two."""
GAP = 4
"""Blanks that part two texts of a row."""
FONTS = "DejaVu Sans Mono, Menlo, Consolas, monospace"

_EIGHTHS = "▁▂▃▄▅▆▇█"
_BLOCKS = {
    **{block: (0.0, 1 - (i + 1) / 8, 1.0, (i + 1) / 8) for i, block in enumerate(_EIGHTHS)},
    "▀": (0.0, 0.0, 1.0, 0.5),
    "▔": (0.0, 0.0, 1.0, 0.125),
    "▌": (0.0, 0.0, 0.5, 1.0),
    "▐": (0.5, 0.0, 0.5, 1.0),
    "▏": (0.0, 0.0, 0.125, 1.0),
    "▊": (0.0, 0.0, 0.75, 1.0),
}
"""Left, top, width and height in cells."""
_SHADES = {"░": 0.25, "▒": 0.5, "▓": 0.75}
"""Blocks that cover their cell in part, by how much."""
_ACROSS = {
    "─": (0.0, 1.0, 1.0, ""),
    "━": (0.0, 1.0, 2.4, ""),
    "╸": (0.0, 0.5, 2.4, ""),
    "╺": (0.5, 0.5, 2.4, ""),
    "╼": (0.0, 1.0, 2.4, ""),
    "╌": (0.0, 1.0, 1.0, "2.4 1.6"),
    "╍": (0.0, 1.0, 2.4, "2.4 1.6"),
}
"""Begin and length in cells, thickness in pixels, dashes."""
_DOWN = {"│": (1.0, ""), "┃": (2.4, ""), "┊": (1.0, "2 2.25")}
"""Thickness in pixels, dashes."""
_CORNERS = {
    "╭": "M{x} {bottom}V{low}Q{x} {y} {right} {y}",
    "╮": "M{left} {y}Q{x} {y} {x} {low}V{bottom}",
    "╰": "M{x} {top}V{high}Q{x} {y} {right} {y}",
    "╯": "M{left} {y}Q{x} {y} {x} {high}V{top}",
    "┌": "M{x} {bottom}V{y}H{right}",
    "┐": "M{left} {y}H{x}V{bottom}",
    "└": "M{x} {top}V{y}H{right}",
    "┘": "M{left} {y}H{x}V{top}",
    "├": "M{x} {top}V{bottom}M{x} {y}H{right}",
    "┤": "M{x} {top}V{bottom}M{left} {y}H{x}",
    "┬": "M{left} {y}H{right}M{x} {y}V{bottom}",
    "┴": "M{left} {y}H{right}M{x} {y}V{top}",
    "┼": "M{left} {y}H{right}M{x} {top}V{bottom}",
}
_DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
"""Column and row of each bit of a braille character."""
_DOT, _DOT_WIDE = 2.2, 2
"""Height and width of a dot; dots lie half a cell apart."""
_KEPT = " \N{NO-BREAK SPACE}"
"""Two blanks that no browser makes one of."""
_SHAPES = frozenset([*_BLOCKS, *_SHADES, *_ACROSS, *_DOWN, *_CORNERS])


class Piece(NamedTuple):
    """Cells of one look, side by side."""

    column: int
    text: str
    colour: str
    background: str
    bold: bool = False


Row = tuple[Piece, ...]


class _Stroke(NamedTuple):
    """Lines that are drawn by one path."""

    colour: str
    thickness: float
    dashes: str = ""


class Drawing:
    """Collects the shapes and words of rows."""

    def __init__(self, background: str):
        self.background = background
        self._grounds: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
        self._open: dict[tuple[str, int, int], int] = {}
        self._fills: dict[tuple[str, float], list[str]] = defaultdict(list)
        self._strokes: dict[_Stroke, list[str]] = defaultdict(list)
        self._words: dict[tuple[str, bool], list[str]] = defaultdict(list)

    def add(self, row: Row, y: int) -> None:
        """Draw a row at its place from the top."""
        for piece in row:
            if piece.background != self.background:
                self._ground(piece, y)
            self._cells(piece, y)

    def svg(self) -> str:
        """All that was added: grounds first, words last."""
        parts = [_filled(colour, "".join(map(_box, b))) for colour, b in self._grounds.items()]
        parts += [_filled(colour, "".join(p), a) for (colour, a), p in self._fills.items()]
        parts += [_stroked(stroke, "".join(paths)) for stroke, paths in self._strokes.items()]
        for (colour, bold), words in self._words.items():
            weight = ' font-weight="bold"' if bold else ""
            parts.append(f'<g fill="{colour}"{weight}>{"".join(words)}</g>')
        return "".join(parts)

    def _ground(self, piece: Piece, y: int) -> None:
        """Grounds of one width below each other are one box."""
        width, boxes = text_width(piece.text), self._grounds[piece.background]
        above = self._open.get((piece.background, piece.column, width))
        if above is not None and sum(boxes[above][1::2]) == y:
            column, top, _, height = boxes[above]
            boxes[above] = (column, top, width, height + 1)
            return
        self._open[piece.background, piece.column, width] = len(boxes)
        boxes.append((piece.column, y, width, 1))

    def _cells(self, piece: Piece, y: int) -> None:
        column, start, text = piece.column, 0, piece.text
        words: list[str] = []
        while start < len(text):
            end = start + 1
            while end < len(text) and text[end] == text[start]:
                end += 1
            count = end - start
            drawn = self._shape(piece.colour, text[start], column, y, count)
            words.append(" " * count if drawn else text[start:end])
            column += count * char_width(text[start])
            start = end
        if not "".join(words).isspace():
            self._write(piece, "".join(words), y)

    def _shape(self, colour: str, character: str, column: int, y: int, count: int) -> bool:
        """Draw a run of one character as a shape; whether it is one."""
        x, top = column * CELL_WIDTH, y * CELL_HEIGHT
        if character == " ":
            return True
        if "\u2800" <= character <= "\u28ff":
            self._dots(colour, ord(character) - 0x2800, (x, top), count)
        elif character in _BLOCKS:
            self._block(colour, character, (x, top), count)
        elif character in _SHADES:
            path = f"M{x} {top}h{count * CELL_WIDTH}v{CELL_HEIGHT}h-{count * CELL_WIDTH}z"
            self._fills[colour, _SHADES[character]].append(path)
        elif character in _ACROSS:
            begin, length, thickness, dashes = _ACROSS[character]
            wide = (count - 1 + length) * CELL_WIDTH
            path = f"M{x + begin * CELL_WIDTH:g} {top + CELL_HEIGHT / 2:g}h{wide:g}"
            self._strokes[_Stroke(colour, thickness, dashes)].append(path)
        elif character in _SHAPES:
            for index in range(count):
                self._upright(colour, character, x + index * CELL_WIDTH, top)
        return character in _SHAPES or "\u2800" <= character <= "\u28ff"

    def _block(self, colour: str, block: str, place: tuple[int, int], count: int) -> None:
        left, high, wide, tall = _BLOCKS[block]
        begin = place[0] + left * CELL_WIDTH
        as_one = wide == 1.0 or count == 1
        height = tall * CELL_HEIGHT + (OVERLAP if high + tall == 1 else 0)
        top = place[1] + high * CELL_HEIGHT
        for index in range(1 if as_one else count):
            width = (count - 1 + wide if as_one else wide) * CELL_WIDTH
            at = begin + index * CELL_WIDTH
            self._fills[colour, 1.0].append(f"M{at:g} {top:.5g}h{width:g}v{height:.4g}h-{width:g}z")

    def _upright(self, colour: str, character: str, x: int, top: int) -> None:
        thickness, dashes = _DOWN.get(character, (1.0, ""))
        middle, across = x + CELL_WIDTH / 2, top + CELL_HEIGHT / 2
        path = _CORNERS.get(character, "M{x} {top}V{bottom}").format(
            x=f"{middle:g}",
            y=f"{across:g}",
            left=x,
            right=x + CELL_WIDTH,
            top=top,
            bottom=top + CELL_HEIGHT,
            high=f"{across - 4:g}",
            low=f"{across + 4:g}",
        )
        self._strokes[_Stroke(colour, thickness, dashes)].append(path)

    def _dots(self, colour: str, bits: int, place: tuple[int, int], count: int) -> None:
        """Dots of one height that lie side by side are one line of dashes."""
        dashes = f"{_DOT_WIDE} {CELL_WIDTH // 2 - _DOT_WIDE}"
        lit = {_DOTS[bit] for bit in range(8) if bits >> bit & 1}
        paths = self._strokes[_Stroke(colour, _DOT, dashes)]
        for y in range(4):
            level = place[1] + CELL_HEIGHT * (0.06 + 0.25 * y) + _DOT / 2
            if {(0, y), (1, y)} <= lit:
                paths.append(f"M{place[0] + 1} {level:.5g}h{count * CELL_WIDTH - 2}")
                continue
            for x in (0, 1):
                if (x, y) in lit:
                    for index in range(count):
                        left = place[0] + index * CELL_WIDTH + 1 + x * CELL_WIDTH // 2
                        paths.append(f"M{left} {level:.5g}h{_DOT_WIDE}")

    def _write(self, piece: Piece, text: str, y: int) -> None:
        """Words without long gaps; each says its width. Wide letters stand alone."""
        column = piece.column
        for run in _runs(text):
            words = run.strip(" ")
            if words:
                at = column + len(run) - len(run.lstrip(" "))
                wide = text_width(words)
                length = f' textLength="{wide * CELL_WIDTH}"' if wide > 1 else ""
                place = f'x="{at * CELL_WIDTH}" y="{y * CELL_HEIGHT + BASELINE}"'
                self._words[piece.colour, piece.bold].append(
                    f"<text {place}{length}>{escape(words.replace('  ', _KEPT))}</text>"
                )
            column += text_width(run)


def picture(rows: Sequence[Row], columns: int, background: str, title: str) -> str:
    """The SVG of a screen of so many ``columns``."""
    drawing = Drawing(background)
    for y, row in enumerate(rows):
        drawing.add(row, y)
    return page(drawing.svg(), (columns, len(rows)), background, title)


def page(body: str, size: tuple[int, int], background: str, title: str) -> str:
    """A frame of ``size`` cells around what was drawn."""
    width = size[0] * CELL_WIDTH + 2 * MARGIN
    height = size[1] * CELL_HEIGHT + 2 * MARGIN
    box = f'x="-{MARGIN}" y="-{MARGIN}" width="{width}" height="{height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-{MARGIN} -{MARGIN} {width} {height}" '
        f'font-family="{FONTS}" font-size="{FONT_SIZE}">'
        f"<title>{escape(title)}</title>"
        f'<rect {box} rx="8" fill="{background}"/>{body}</svg>\n'
    )


def joined(pieces: Iterable[Piece]) -> Row:
    """Neighbours that look alike as one piece."""
    parts: list[Piece] = []
    for piece in pieces:
        last = parts[-1] if parts else None
        if last and last[2:] == piece[2:] and last.column + text_width(last.text) == piece.column:
            parts[-1] = last._replace(text=last.text + piece.text)
        else:
            parts.append(piece)
    return tuple(parts)


def _runs(text: str) -> list[str]:
    """The text parted at long gaps, and around letters that are not one cell wide."""
    parts, start = [], 0
    gap = " " * GAP
    while start < len(text):
        if char_width(text[start]) != 1:
            parts.append(text[start])
            start += 1
            continue
        end = start
        while end < len(text) and char_width(text[end]) == 1 and not text.startswith(gap, end):
            end += 1
        while end < len(text) and text[end] == " ":
            end += 1
        parts.append(text[start:end])
        start = end
    return parts


def _box(box: tuple[int, int, int, int]) -> str:
    column, top, width, height = box
    across = width * CELL_WIDTH
    return f"M{column * CELL_WIDTH} {top * CELL_HEIGHT}h{across}v{height * CELL_HEIGHT}h-{across}z"


def _filled(colour: str, path: str, opacity: float = 1.0) -> str:
    shade = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
    return f'<path fill="{colour}"{shade} shape-rendering="crispEdges" d="{path}"/>'


def _stroked(stroke: _Stroke, path: str) -> str:
    dashes = f' stroke-dasharray="{stroke.dashes}"' if stroke.dashes else ""
    return (
        f'<path fill="none" stroke="{stroke.colour}" stroke-width="{stroke.thickness:g}"{dashes} '
        f'd="{path}"/>'
    )
