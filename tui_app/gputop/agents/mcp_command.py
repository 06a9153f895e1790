"""``gputop mcp``: answers coding agents over the Model Context Protocol, on stdin and stdout."""

from __future__ import annotations

import importlib.util

from gputop.cli.errors import CliError
from gputop.cli.parsing import Parser


def execute(words: list[str]) -> int:
    """Serve until stdin closes."""
    options = parser().parse_args(words)
    if importlib.util.find_spec("mcp") is None:
        raise CliError('gputop mcp needs an extra: pip install "gputop-torch[mcp]"')
    from gputop.agents.server import serve

    serve(options.allow_actions)
    return 0


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "mcp",
        "Answer coding agents over the Model Context Protocol, on stdin and stdout.",
        usage="gputop mcp [--allow-actions]",
    )
    parser.add_argument(
        "--allow-actions",
        action="store_true",
        help="also what changes a run: profile (without: read-only)",
    )
    return parser
