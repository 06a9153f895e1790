"""The app in a browser: one process a viewer behind a small web server that lets in who has the
token.

The host that a request names is checked, so that no other site's name can be pointed here (DNS
rebinding), and the origin of a websocket, so that no other page can open one with the viewer's
cookie.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import shlex
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web
from textual_serve.server import Server

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MOST_VIEWERS = 8
"""Each is a process beside the training."""
_STYLE_SHEET = re.compile(r'<link\s+rel="stylesheet"\s+href="(?P<address>[^"]*)"\s*/>')
_ICON = (
    '<link rel="icon" href="data:image/svg+xml,'
    "%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'%3E"
    "%3Cpath fill='%2356b4e9' d='M0 4h2v4H0zM3 0h2v8H3zM6 2h2v6H6z'/%3E%3C/svg%3E\">"
)
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self' {websocket}; "
    "frame-ancestors 'none'",
}


class WebServer(Server):
    """Serves one run to those who have the token."""

    def __init__(self, run_dir: Path, token: str, bound: socket.socket, *, url: str, control: bool):
        host, port = bound.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        words = [sys.executable, "-m", "gputop.web_view", str(run_dir)]
        if control:
            words.append("--control")
        super().__init__(
            shlex.join(words), host=host, port=port, title="gputop", public_url=url or None
        )
        self._bound = bound
        self._token = token
        self._cookie = f"gputop-{port}"
        self._host = urlsplit(self.public_url).netloc
        self._viewers = 0

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"{self.public_url}/?token={self._token}"

    def initialize_logging(self) -> None:
        """Say nothing of each request."""

    async def on_startup(self, app: web.Application) -> None:
        """Say nothing yet: nobody is listened to."""

    def serve(self, debug: bool = False) -> None:
        """Serve until SIGINT or SIGTERM; the address is printed once it answers."""
        loop = asyncio.new_event_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.request_exit)
        web.run_app(
            self._make_app(),
            sock=self._bound,
            handle_signals=False,
            loop=loop,
            print=lambda *_: print(f"gputop: {self.address}", flush=True),
        )

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._checked)
        return app

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        if self._viewers >= MOST_VIEWERS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_VIEWERS} viewers look on already")
        self._viewers += 1
        try:
            return await super().handle_websocket(request)
        finally:
            self._viewers -= 1

    @web.middleware
    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn away who names another host, comes from another page or has no token."""
        if request.host != self._host:
            raise web.HTTPForbidden(text=f"this is {self._host}: another host was named")
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != self._host:
            raise web.HTTPForbidden(text="asked for by a page of another site")
        token = request.query.get("token")
        if not self._is_token(token or request.cookies.get(self._cookie, "")):
            raise web.HTTPForbidden(text="no token: open the address that gputop serve printed")
        if token is not None:  # out of the address, into a cookie that scripts do not see
            response: web.StreamResponse = web.HTTPSeeOther(request.path)
            response.set_cookie(
                self._cookie, self._token, httponly=True, samesite="Strict", path="/"
            )
            return self._with_headers(response)
        response = await handler(request)
        if isinstance(response, web.Response) and response.content_type == "text/html":
            response.text = _page(response.text or "", self._host)
        return self._with_headers(response)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _with_headers(self, response: web.StreamResponse) -> web.StreamResponse:
        if not response.prepared:
            scheme = "wss" if self.public_url.startswith("https") else "ws"
            for name, value in _HEADERS.items():
                response.headers[name] = value.replace("{websocket}", f"{scheme}://{self._host}")
        return response


def _page(html: str, host: str) -> str:
    """The page with an icon of its own, which no browser has to ask for, and without the font that
    it would fetch from another site, which the policy forbids.
    """

    def own(link: re.Match[str]) -> str:
        return link[0] if urlsplit(link["address"]).netloc in ("", host) else ""

    return _STYLE_SHEET.sub(own, html).replace("<head>", f"<head>\n    {_ICON}", 1)
