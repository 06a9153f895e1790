"""``gputop memory SNAPSHOT|RUN``: who holds the peak, what idles, what other settings reserve."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.named import gpu_named
from gputop.cli.parsing import Parser
from gputop.cli.printing import print_json, report_width
from gputop.cli.terminal import need_terminal
from gputop.cli.working import working

if TYPE_CHECKING:
    from gputop_analysis.snapshots.analyse import Memory

_USAGE = (
    "gputop memory [SNAPSHOT|RUN] [--against SNAPSHOT] "
    "[--device N] [--gpu NAME] [--screen] [--json]"
)


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "memory", "Say who holds a GPU's memory, from an allocator snapshot.", usage=_USAGE
    )
    parser.add_argument(
        "path",
        nargs="?",
        default="last",
        metavar="SNAPSHOT|RUN",
        help="a file of torch.cuda.memory._dump_snapshot, gzipped or not, or a run that took one",
    )
    parser.add_argument("--against", metavar="SNAPSHOT", help="say what changed since this one")
    parser.add_argument("--device", type=int, metavar="N", help="which GPU of the file")
    parser.add_argument(
        "--gpu", metavar="NAME", help="whose memory limits what other settings may reserve"
    )
    parser.add_argument("--screen", action="store_true", help="show it on a screen")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def execute(words: list[str]) -> int:
    """Print what a snapshot shows."""
    options = parser().parse_args(words)
    if options.screen:
        need_terminal("gputop memory")
    capacity = None
    if options.gpu:
        capacity = gpu_named(options.gpu).usable_bytes
    with working("reading the snapshot"):
        memory = judged(snapshot_path(options.path), options.device, capacity)
    if options.json:
        print_json(memory.as_data())
        return 0
    before = None
    if options.against:
        with working("reading the other snapshot"):
            before = judged(snapshot_path(options.against), options.device)
    if options.screen:
        from gputop.app.memory import run_memory

        run_memory(memory, before)
    else:
        _print(memory, before)
    return 0


def judged(path: Path, device: int | None = None, capacity: int | None = None) -> Memory:
    """The judgement on a snapshot.

    Raises:
        CliError: it cannot be read, or has no such GPU.
    """
    from gputop_analysis.snapshots import SnapshotError, load
    from gputop_analysis.snapshots.analyse import analyse

    with cli_errors(SnapshotError, in_one_line=True):
        return analyse(load(path), device, capacity)


def _print(memory: Memory, before: Memory | None) -> None:
    from gputop.cli.printing import wants_colour
    from gputop_analysis.snapshots.text import as_text, difference_text

    width = report_width()
    print(as_text(memory, width, fancy=wants_colour()))
    if before is not None:
        print("\n" + difference_text(before, memory, width))


def snapshot_path(name: str) -> Path:
    """The file that was named, or the newest snapshot of the run of that name.

    Raises:
        CliError: there is neither.
    """
    from gputop.cli.records import find_record

    path = Path(name)
    if name != "last" and path.exists() and not path.is_dir():
        return path
    if path.suffix in (".pickle", ".gz", ".pkl") or ("/" in name and not path.exists()):
        raise CliError(f"there is no file {name}")
    run = find_record(name)
    snapshots = sorted((run / "memory").glob("*.pickle*"), key=lambda file: file.stat().st_mtime)
    if not snapshots:
        raise CliError(
            f"the run {run.name} has no memory snapshot: name a file of "
            "torch.cuda.memory._dump_snapshot"
        )
    return snapshots[-1]
