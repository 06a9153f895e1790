"""``gputop skill install``: a SKILL.md that teaches a coding agent the loop with gputop."""

from __future__ import annotations

from pathlib import Path

from gputop.cli.errors import CliError
from gputop.cli.parsing import Parser
from gputop.cli.printing import write_file

_DEFAULT = Path(".claude") / "skills"


def execute(words: list[str]) -> int:
    """Write the file, or print it."""
    options = parser().parse_args(words)
    from gputop.agents.skill import NAME, skill

    if options.action == "show":
        print(skill(), end="")
        return 0
    folder = options.dir / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(f"cannot make {folder}: {error.strerror}") from None
    write_file(folder / "SKILL.md", skill())
    return 0


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "skill",
        "Teach a coding agent the loop: run headless, read the verdict, apply, prove by diff.",
        usage="gputop skill install|show [--dir DIR]",
    )
    parser.example = "gputop skill install"
    parser.add_argument("action", choices=("install", "show"), help="write the file, or print it")
    parser.add_argument(
        "--dir",
        type=Path,
        default=_DEFAULT,
        metavar="DIR",
        help=f"where the agent looks for skills (default {_DEFAULT})",
    )
    return parser
