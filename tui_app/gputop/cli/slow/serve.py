"""``gputop serve [RUN]``: the live screen in a browser."""

from __future__ import annotations

import argparse
import socket
from urllib.parse import urlsplit

from gputop.cli.errors import ENVIRONMENT, CliError
from gputop.cli.parsing import Parser
from gputop.cli.records import find_readable

_EVERYWHERE = ("", "0.0.0.0", "::")
_USAGE = "gputop serve [RUN] [--port N] [--control]"


def execute(words: list[str]) -> int:
    """Serve one run until Ctrl-C."""
    options = parser().parse_args(words)
    path = find_readable(options.run)
    try:
        from gputop.serving import WebServer
    except ImportError:
        raise CliError(
            "serve needs textual-serve: pip install 'gputop-torch[serve]'", ENVIRONMENT
        ) from None
    import secrets

    if options.host in _EVERYWHERE and not options.url:
        raise CliError(
            f"--host {options.host} is no address that a browser can name: give --url http://NAME:PORT"
        )
    server = WebServer(
        path,
        secrets.token_urlsafe(24),
        _bound(options.host, options.port),
        url=(options.url or "").rstrip("/"),
        control=options.control,
    )
    server.serve()
    return 0


def parser() -> Parser:
    """Options of the command."""
    parser = Parser("serve", "Show the live screen of a run in a browser.", usage=_USAGE)
    parser.add_run()
    parser.add_argument(
        "--port", type=_number, default=8765, metavar="N", help="0: any (default 8765)"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1: this machine)"
    )
    parser.add_argument(
        "--url",
        type=_url,
        help="address by which browsers reach it, through a tunnel or a proxy",
    )
    parser.add_argument(
        "--control",
        action="store_true",
        help="viewers may stop and profile the training and write files; else they look on",
    )
    return parser


def _number(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 0 to 65535")
    return int(text)


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path not in ("", "/"):
        raise argparse.ArgumentTypeError(f"{text!r} is no address such as http://localhost:9000")
    return text


def _bound(host: str, port: int) -> socket.socket:
    """A socket at the port, where that is free; at any free one for 0.

    Raises:
        CliError: it is taken, or the address is not of this machine.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise CliError(
            f"cannot listen at {host}:{port} ({error.strerror}): give --port another, or 0"
        ) from None
    return listener
