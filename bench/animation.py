"""Makes README's moving picture from a recorded run: ``python bench/animation.py [RUN] [--png
FOLDER]``.

The run is replayed through the live screens, each frame is drawn cell by cell, and what does not
change from frame to frame is written once. The result, ``screenshots/run.svg``, moves in any
browser without a script. Without a run it is the bundled recording. ``--png`` also writes the
frames as pictures, to look at (needs cairosvg).
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from gputop.app import Source
from gputop.app.application import GputopApp
from gputop.app.theme import DARK

TARGET = Path(__file__).parents[1] / "screenshots" / "run.svg"
COLUMNS, ROWS = 120, 36
CELL_WIDTH, CELL_HEIGHT, FONT_SIZE = 8.0, 17.0, 13.2
FRAME_S = 0.7
BLOCKS = "▁▂▃▄▅▆▇█"
LINES = {"─": 1.0, "━": 2.4}
"""Rules and bars by their thickness."""
DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
"""Column and row of each bit of a braille character."""
DOT_WIDTH, DOT_HEIGHT = 0.24, 2.2
"""In cells and in pixels."""
OVERLAP = 0.4
"""By which a block reaches into the row below, which is drawn over it: no seam between the two."""
BACKGROUND, FOREGROUND = "#14181f", "#d8dee6"


class Scene(NamedTuple):
    """A moment of the run, the keys pressed at it, and for how many frames it stays."""

    at: float
    """Share of the recording."""
    keys: tuple[str, ...] = ()
    frames: int = 1


SCENES = (
    Scene(0.12, ("r",)),
    *(Scene(0.2 + 0.06 * i) for i in range(7)),
    Scene(0.62, frames=2),
    Scene(0.64, ("f",)),
    Scene(0.64, ("enter",), frames=5),
    Scene(0.66, ("escape",)),
    Scene(0.66, ("b",), frames=4),
    Scene(0.68, ("escape",), frames=2),
)


class Piece(NamedTuple):
    """Cells of one look, side by side."""

    column: int
    text: str
    colour: str
    background: str
    bold: bool


Row = tuple[Piece, ...]


async def frames_of(run_dir: Path) -> list[list[Row]]:
    """The rows of every frame."""
    app = GputopApp(Source(run_dir, "replay"), ticking=False)
    app.theme = DARK
    frames: list[list[Row]] = []
    async with app.run_test(size=(COLUMNS, ROWS)) as pilot:
        await _settle(app, pilot)
        for scene in SCENES:
            app.action_seek_to(scene.at)
            await _settle(app, pilot)
            for key in scene.keys:
                await pilot.press(key)
                await _settle(app, pilot)
            frames += [_rows(app)] * scene.frames
    return frames


async def _settle(app: GputopApp, pilot) -> None:
    for _ in range(2):
        app.tick()
        await app.workers.wait_for_complete()
        await pilot.pause()


def _rows(app: GputopApp) -> list[Row]:
    rows = []
    for strip in app.screen._compositor.render_strips():
        column, pieces = 0, []
        for segment in strip:
            style = segment.style
            colour, background = FOREGROUND, BACKGROUND
            if style is not None:
                colour = style.color.get_truecolor().hex if style.color else FOREGROUND
                background = style.bgcolor.get_truecolor().hex if style.bgcolor else BACKGROUND
                if style.reverse:
                    colour, background = background, colour
            pieces.append(
                Piece(column, segment.text, colour, background, bool(style and style.bold))
            )
            column += segment.cell_length
        rows.append(tuple(_joined(pieces)))
    return rows


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Neighbours that look alike as one piece."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last and last[2:] == piece[2:] and last.column + len(last.text) == piece.column:
            joined[-1] = last._replace(text=last.text + piece.text)
        else:
            joined.append(piece)
    return joined


class Box(NamedTuple):
    """A rectangle of one colour; cells from the left, pixels from the top."""

    column: float
    width: float
    top: float
    height: float
    colour: str


def drawn(row: Row, y: int) -> str:
    """One row as SVG: backgrounds, then text; block characters are rectangles, so that they meet
    without a seam.
    """
    top = y * CELL_HEIGHT
    behind = [
        Box(piece.column, len(piece.text), top, CELL_HEIGHT, piece.background)
        for piece in row
        if piece.background != BACKGROUND
    ]
    blocks = [box for piece in row for box in _blocks(piece, top)]
    words = [text for piece in row for text in _words(piece, top)]
    return "".join([*_paths(behind), *_paths(blocks), *words])


def _paths(boxes: list[Box]) -> list[str]:
    """One path a colour."""
    by_colour: dict[str, list[str]] = {}
    for box in boxes:
        width = box.width * CELL_WIDTH
        outline = (
            f"M{box.column * CELL_WIDTH:g} {box.top:.4g}h{width:g}v{box.height:.4g}h-{width:g}z"
        )
        by_colour.setdefault(box.colour, []).append(outline)
    return [
        f'<path fill="{colour}" d="{"".join(outlines)}"/>' for colour, outlines in by_colour.items()
    ]


def _blocks(piece: Piece, top: float) -> list[Box]:
    boxes, start = [], 0
    while start < len(piece.text):
        end = start
        while end < len(piece.text) and piece.text[end] == piece.text[start]:
            end += 1
        character = piece.text[start]
        if "\u2800" < character <= "\u28ff":
            for column in range(start, end):
                boxes += _dots(piece, column, top)
        elif character in BLOCKS:
            height = CELL_HEIGHT * (BLOCKS.index(character) + 1) / len(BLOCKS)
            begin = top + CELL_HEIGHT - height
            boxes.append(
                Box(piece.column + start, end - start, begin, height + OVERLAP, piece.colour)
            )
        elif character in LINES:
            begin = top + (CELL_HEIGHT - LINES[character]) / 2
            boxes.append(
                Box(piece.column + start, end - start, begin, LINES[character], piece.colour)
            )
        start = end
    return boxes


def _dots(piece: Piece, index: int, top: float) -> list[Box]:
    """The dots of one braille character, two by four."""
    bits = ord(piece.text[index]) - 0x2800
    boxes = []
    for bit, (x, y) in enumerate(DOTS):
        if bits >> bit & 1:
            column = piece.column + index + 0.14 + 0.5 * x
            place = top + CELL_HEIGHT * (0.06 + 0.25 * y)
            boxes.append(Box(column, DOT_WIDTH, place, DOT_HEIGHT, piece.colour))
    return boxes


def _drawn_as_shape(character: str) -> bool:
    return character in BLOCKS or character in LINES or "\u2800" <= character <= "\u28ff"


def _words(piece: Piece, top: float) -> list[str]:
    """The text in runs without long gaps; each says its width, so that columns stay columns in any
    font.
    """
    text = "".join(" " if _drawn_as_shape(character) else character for character in piece.text)
    parts, start = [], 0
    for run in text.split("   "):
        words = run.strip()
        if words:
            column = piece.column + start + len(run) - len(run.lstrip())
            bold = ' font-weight="bold"' if piece.bold else ""
            parts.append(
                f'<text x="{column * CELL_WIDTH:g}" y="{top + 0.76 * CELL_HEIGHT:g}" fill="{piece.colour}"{bold} '
                f'textLength="{len(words) * CELL_WIDTH:g}" lengthAdjust="spacingAndGlyphs">{escape(words)}</text>'
            )
        start += len(run) + 3
    return parts


def _apart(row: Row) -> list[Row]:
    """What of a row may be drawn apart: its pieces, but for neighbours on one ground, whose letters
    a ground that is drawn later would cut.
    """
    parts: list[Row] = []
    for piece in row:
        joins = piece.background != BACKGROUND and parts
        if joins and parts[-1][-1].background == piece.background:
            parts[-1] = (*parts[-1], piece)
        else:
            parts.append((piece,))
    return parts


def animated(frames: list[list[Row]]) -> str:
    """All frames as one picture that repeats for ever."""
    shown: dict[tuple[int, Row], set[int]] = {}
    for number, rows in enumerate(frames):
        for y, row in enumerate(rows):
            for part in _apart(row):
                shown.setdefault((y, part), set()).add(number)
    together: dict[frozenset[int], list[str]] = {}
    for (y, part), numbers in shown.items():
        together.setdefault(frozenset(numbers), []).append(drawn(part, y))
    parts = []
    for numbers, pictures in together.items():
        picture = "".join(pictures)
        if not picture:
            continue
        if len(numbers) == len(frames):
            parts.append(picture)
            continue
        values = ";".join(
            "visible" if number in numbers else "hidden" for number in range(len(frames))
        )
        parts.append(
            f'<g visibility="hidden">{picture}<animate attributeName="visibility" calcMode="discrete" '
            f'values="{values}" dur="{FRAME_S * len(frames):g}s" repeatCount="indefinite"/></g>'
        )
    return _page("".join(parts))


def still(rows: list[Row]) -> str:
    """One frame."""
    return _page("".join(drawn(row, y) for y, row in enumerate(rows)))


def _page(body: str) -> str:
    width, height = COLUMNS * CELL_WIDTH, ROWS * CELL_HEIGHT
    frame = f'<rect x="-12" y="-12" width="{width + 24:g}" height="{height + 24:g}" rx="8" fill="{BACKGROUND}"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 -12 {width + 24:g} {height + 24:g}" '
        f'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="{FONT_SIZE}" '
        f'xml:space="preserve"><title>gputop on a real run</title>'
        f"{frame}{body}</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "run", nargs="?", type=Path, help="a record's folder (default: the bundled recording)"
    )
    parser.add_argument(
        "--png", type=Path, metavar="FOLDER", help="also write the frames there as pictures"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = options.run
        if run_dir is None:
            from gputop.cli.house.demo import unpack

            run_dir = unpack(Path(folder))
        frames = asyncio.run(frames_of(run_dir))
    TARGET.write_text(animated(frames), encoding="utf-8")
    print(f"{TARGET}: {len(frames)} frames, {TARGET.stat().st_size / 1000:.0f} kB")
    if options.png:
        import cairosvg  # type: ignore[import-not-found]

        options.png.mkdir(parents=True, exist_ok=True)
        for number, rows in enumerate(frames):
            target = str(options.png / f"{number:02}.png")
            cairosvg.svg2png(still(rows).encode(), write_to=target, output_width=1200)


if __name__ == "__main__":
    main()
