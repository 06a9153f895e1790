"""Makes the pictures in ``screenshots/``: every screen at each designed size, and on other
terminals.

    python bench/screenshots.py [NAME ...] [--run RUN] [--to FOLDER]

Runs are the bundled recording, or the one given, and made-up ones where it lacks what is to be
seen: a hang, many ranks. What is drawn is ``tests/tui_screens.py``; README.md beside the pictures
lists them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from tui_screens import MODES, SCREENS, SIZES, USUAL, Stage, change, opened, resized  # noqa: E402
from tui_support import of_slow_rank, write_run  # noqa: E402

TARGET = ROOT / "screenshots"
INDEX = """# Screens

Each one at 60x20, 80x24, 120x40, 200x50 and 300x80, and at 120x40 on a light terminal, in a
terminal's own 16 colours, without colour (`NO_COLOR`) and in ASCII. Runs are the bundled recording,
its GPU figures added, or made up for the picture. Made by `python bench/screenshots.py`.
"""


def main() -> None:
    """Draw the screens named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SCREENS))
    parser.add_argument("--run", type=Path, help="a record (default: the bundled recording)")
    parser.add_argument("--to", type=Path, default=TARGET, metavar="FOLDER")
    options = parser.parse_args()
    folder = options.to.resolve()
    _same_everywhere()
    with tempfile.TemporaryDirectory() as scratch:
        stage = _stage(Path(scratch), options.run and options.run.resolve())
        for name in options.names or SCREENS:
            print(name, flush=True)
            asyncio.run(_draw(name, stage, folder / name))
    (folder / "README.md").write_text(index(), encoding="utf-8")


def index() -> str:
    """The page that lists all of them."""
    lines = [INDEX]
    for name, shown in SCREENS.items():
        links = [f"[{kind}]({name}/{kind}.svg)" for kind in (*SIZES, *MODES)]
        lines += [f"## {name}", "", f"{shown.words.capitalize()}: {' · '.join(links)}", ""]
        lines += [f"![{shown.words}]({name}/{USUAL}.svg)", ""]
    return "\n".join(lines)


def _same_everywhere() -> None:
    """Nothing of who draws is on the pictures."""
    os.environ.update(XDG_CONFIG_HOME="/nowhere", GPUTOP_RUNS_DIR="runs", TZ="UTC")
    os.environ.pop("NO_COLOR", None)


def _stage(scratch: Path, recorded: Path | None) -> Stage:
    from gputop.cli.house.demo import unpack
    from gputop.feed.build import build
    from gputop_probes.record.reader import RunRecord

    made = write_run(
        scratch / "straggler",
        ranks=4,
        gpus=4,
        slow_rank=2,
        spike_at=250,
        steps=380,
        total_steps=400,
    )
    from tui_support import START_NS

    at_ns = START_NS + 11 * 10**9
    ended = build(RunRecord.open(made), (), window_steps=500, now_ns=at_ns)
    summary = ended.summary._replace(state="running", exit_code=None, ended_ns=None)
    finding = of_slow_rank()
    verdict = ended.verdict._replace(health="attention", headline=finding.title)
    running = ended._replace(summary=summary, findings=(finding,), verdict=verdict)
    return Stage(scratch, running, recorded or unpack(scratch), many=1024)


async def _draw(name: str, stage: Stage, folder: Path) -> None:
    shown = SCREENS[name]
    folder.mkdir(parents=True, exist_ok=True)
    async with opened(shown, _fresh(stage, name)) as (app, pilot):
        for kind, size in SIZES.items():
            await resized(shown, app, pilot, size)
            _keep(app, folder / f"{kind}.svg", f"{name}, {kind}")
        await resized(shown, app, pilot, SIZES[USUAL])
        for mode in MODES:
            if mode != "no-colour":
                await change(shown, app, pilot, mode)
                _keep(app, folder / f"{mode}.svg", f"{name}, {mode}", mode == "ascii")
    with _without_colour():
        async with opened(shown, _fresh(stage, f"{name}-again")) as (app, _):
            _keep(app, folder / "no-colour.svg", f"{name}, no colour")


def _fresh(stage: Stage, name: str) -> Stage:
    """With a folder of its own to write records in."""
    folder = stage.path(name)
    folder.mkdir()
    return stage._replace(folder=folder)


def _keep(app, path: Path, title: str, in_ascii: bool = False) -> None:
    from gputop.app.cells import shown as picture
    from gputop.app.plain_terminal import plain

    path.write_text(picture(app, title, plain if in_ascii else None), encoding="utf-8")


@contextlib.contextmanager
def _without_colour():
    os.environ["NO_COLOR"] = "1"
    try:
        yield
    finally:
        del os.environ["NO_COLOR"]


if __name__ == "__main__":
    main()
