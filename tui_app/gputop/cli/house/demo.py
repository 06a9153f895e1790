"""``gputop demo``: a bundled recording of a real run. Needs no torch."""

from __future__ import annotations

import tempfile
import zipfile
from importlib import resources
from pathlib import Path

from gputop.cli.parsing import Parser
from gputop.cli.terminal import need_terminal, show

_ARCHIVE = "demo.zip"


def execute(words: list[str]) -> int:
    """Unpack the recording into a scratch directory and replay it."""
    options = parser().parse_args(words)
    with tempfile.TemporaryDirectory(prefix="gputop-demo-") as folder:
        run_dir = unpack(Path(folder))
        if options.report:
            from gputop.cli.happened.report import execute as report

            return report([str(run_dir)])
        need_terminal("gputop demo --report")
        from gputop.app import Source

        show(Source(run_dir, "demo", None))
    return 0


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "demo", "Open a bundled recording of a real run.", usage="gputop demo [--report]"
    )
    parser.add_argument(
        "--report", action="store_true", help="print its report in place of opening the screen"
    )
    return parser


def unpack(folder: Path) -> Path:
    """Unpack the bundled record below ``folder`` and return its directory."""
    archive = resources.files("gputop") / "recordings" / _ARCHIVE
    with archive.open("rb") as file, zipfile.ZipFile(file) as packed:
        packed.extractall(folder)
    return next(folder.iterdir())
