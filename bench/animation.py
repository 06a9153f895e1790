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
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gputop.app import Source
from gputop.app.application import GputopApp
from gputop.app.cells import rows_of
from gputop.app.theme import DARK
from gputop.render.picture import Drawing, Row, page, picture

TARGET = Path(__file__).parents[1] / "screenshots" / "run.svg"
COLUMNS, ROWS = 120, 36
FRAME_S = 0.7
BACKGROUND = "#14181f"
TITLE = "gputop on a real run"


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
            frames += [rows_of(app)] * scene.frames
    return frames


async def _settle(app: GputopApp, pilot) -> None:
    for _ in range(2):
        app.tick()
        await app.workers.wait_for_complete()
        await pilot.pause()


def drawn(rows: Iterable[tuple[int, Row]]) -> str:
    """Rows, or parts of them, by their place from the top."""
    drawing = Drawing(BACKGROUND)
    for y, row in rows:
        drawing.add(row, y)
    return drawing.svg()


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
    together: dict[frozenset[int], list[tuple[int, Row]]] = {}
    for place, numbers in shown.items():
        together.setdefault(frozenset(numbers), []).append(place)
    parts = []
    for numbers, rows in together.items():
        body = drawn(rows)
        if not body:
            continue
        if len(numbers) == len(frames):
            parts.append(body)
            continue
        values = ";".join(
            "visible" if number in numbers else "hidden" for number in range(len(frames))
        )
        parts.append(
            f'<g visibility="hidden">{body}<animate attributeName="visibility" calcMode="discrete" '
            f'values="{values}" dur="{FRAME_S * len(frames):g}s" repeatCount="indefinite"/></g>'
        )
    return page("".join(parts), (COLUMNS, ROWS), BACKGROUND, TITLE)


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
            cairosvg.svg2png(
                picture(rows, COLUMNS, BACKGROUND, TITLE).encode(),
                write_to=target,
                output_width=1200,
            )


if __name__ == "__main__":
    main()
