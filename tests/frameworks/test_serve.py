"""The live screen in a real browser, and who is not let in."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from e2e_support import GPUTOP, environment
from libraries import needs

pytestmark = [pytest.mark.e2e, needs("textual_serve")]
DEMO = Path(__file__).parents[2] / "tui_app" / "gputop" / "recordings" / "demo.zip"
MANY = 1000
"""Different patches: a page with nothing but its background has some dozens."""
BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    """Of a server that shows the bundled run."""
    folder = tmp_path_factory.mktemp("serve")
    shutil.unpack_archive(DEMO, folder / "demo")
    (manifest,) = (folder / "demo").rglob("run.json")
    server = subprocess.Popen(
        [*GPUTOP, "serve", str(manifest.parent), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(folder),
        cwd=folder,
    )
    assert server.stdout is not None
    try:
        line = server.stdout.readline()
        assert line.startswith("gputop: http://127.0.0.1:"), line
        yield line.removeprefix("gputop: ").strip()
    finally:
        server.terminate()
        server.wait(20)


def status(address: str, path: str, **headers: str) -> tuple[int, str]:
    """Status and cookie of one request."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    return response.status, response.getheader("Set-Cookie", "")


def test_an_address_of_everywhere_needs_one_for_browsers(tmp_path, capsys):
    from gputop.cli import main

    shutil.unpack_archive(DEMO, tmp_path)
    (manifest,) = tmp_path.rglob("run.json")
    assert main(["serve", str(manifest.parent), "--host", "0.0.0.0", "--port", "0"]) == 2
    assert capsys.readouterr().err.count("--url") == 1


@pytest.mark.parametrize(
    "path", ["/", "/ws", "/static/js/textual.js", "/?token=wrong", "/?token=%C3%A9"]
)
def test_nobody_gets_in_without_the_token(address, path):
    assert status(address, path)[0] == 403


def test_the_token_becomes_a_cookie_and_other_hosts_and_pages_stay_out(address):
    parts = urlsplit(address)
    code, cookie = status(address, f"/?{parts.query}")
    assert code == 303 and "HttpOnly" in cookie and "SameSite=Strict" in cookie
    cookie = cookie.partition(";")[0]
    assert status(address, "/", Cookie=cookie)[0] == 200
    assert status(address, "/", Cookie=cookie, Host=f"evil.test:{parts.port}")[0] == 403
    assert status(address, "/", Cookie=cookie, Host=f"localhost:{parts.port}")[0] == 403
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
    }
    foreign = {**upgrade, "Cookie": cookie, "Origin": "http://evil.test"}
    assert status(address, "/ws", **foreign)[0] == 403
    assert status(address, "/ws", **upgrade)[0] == 403
    own = {**upgrade, "Cookie": cookie, "Origin": f"http://{parts.netloc}"}
    assert status(address, "/ws", **own)[0] == 101


def test_a_viewer_without_control_is_told_that_nothing_is_written(address):
    shown = asyncio.run(asyncio.wait_for(typed(address, "e"), 60))
    assert "read-only: nothing is written" in shown


async def typed(address: str, key: str) -> str:
    """What the screen shows after a key, by the websocket that a browser would use."""
    import aiohttp

    parts = urlsplit(address)
    origin = f"http://{parts.netloc}"
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(origin, cookie_jar=jar) as session:
        await (await session.get(f"/?{parts.query}")).read()
        socket = session.ws_connect("/ws?width=120&height=40", headers={"Origin": origin})
        async with socket as line:
            shown = ""
            while "read-only" not in shown:
                shown += plain((await line.receive()).data)
                if key and "Findings" in shown:
                    await line.send_json(["stdin", key])
                    key = ""
    return shown


def plain(data: bytes | str) -> str:
    """Drawn text without colours and positions."""
    text = data.decode(errors="replace") if isinstance(data, bytes) else data
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_two_viewers_see_the_screen_in_chromium(address, tmp_path):
    port_file = tmp_path / "profile" / "DevToolsActivePort"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    browser = subprocess.Popen(
        [
            str(BROWSER),
            *options,
            "--remote-debugging-port=0",
            "--window-size=1400,800",
            f"--user-data-dir={tmp_path / 'profile'}",
            "about:blank",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 40
        while not port_file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        port = int(port_file.read_text().splitlines()[0])
        pictures = asyncio.run(look(port, address))
    finally:
        browser.terminate()
        browser.wait(20)
    if folder := os.environ.get("GPUTOP_TEST_PICTURES"):
        Path(folder, "serve.png").write_bytes(pictures[0])
    for picture in pictures:
        assert colours(picture) > MANY, "panels, text and bars are drawn, not a blank page"


async def look(port: int, address: str) -> list[bytes]:
    """Pictures of two pages that show the same run at once."""
    import aiohttp

    async with aiohttp.ClientSession() as session:
        pages = []
        for _ in range(2):
            async with session.put(f"http://127.0.0.1:{port}/json/new?{address}") as made:
                pages.append((await made.json(content_type=None))["webSocketDebuggerUrl"])
        return [await photograph(session, page) for page in pages]


async def photograph(session, page: str) -> bytes:
    async with session.ws_connect(page, max_msg_size=0) as line:
        count = 0

        async def ask(method: str, **fields):
            nonlocal count
            count += 1
            await line.send_json({"id": count, "method": method, "params": fields})
            while (answer := json.loads((await line.receive()).data)).get("id") != count:
                pass
            return answer["result"]

        deadline = time.monotonic() + 60
        while True:
            await ask("Page.bringToFront")  # a page behind another is not drawn
            await asyncio.sleep(0.5)
            picture = base64.b64decode((await ask("Page.captureScreenshot"))["data"])
            if colours(picture) > MANY or time.monotonic() > deadline:
                return picture


def colours(picture: bytes) -> int:
    """Number of different patches among the pixels of a PNG, whose rows are unpacked without a
    library.
    """
    import zlib

    place, data = 8, b""
    while place < len(picture):
        size, kind = (
            int.from_bytes(picture[place : place + 4], "big"),
            picture[place + 4 : place + 8],
        )
        if kind == b"IDAT":
            data += picture[place + 8 : place + 8 + size]
        place += 12 + size
    rows = zlib.decompress(data)
    return len({rows[i : i + 12] for i in range(0, len(rows), 97)})


def test_the_page_asks_for_nothing_that_is_not_there_or_elsewhere(address):
    """It asked for /favicon.ico, and for a font of another site that its own policy forbids."""
    parts = urlsplit(address)
    cookie = status(address, f"/?{parts.query}")[1].partition(";")[0]
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    connection.request("GET", "/", headers={"Cookie": cookie})
    page = connection.getresponse().read().decode()
    assert 'rel="icon" href="data:' in page
    style = re.search(r'href="([^"]*xterm\.css)"', page)
    assert style, "without it the terminal's own input field is drawn above the screen"
    assert status(address, urlsplit(style[1]).path, Cookie=cookie)[0] == 200
    assert set(re.findall(r'(?:href|src)="(?:https?:)?//([^/"]+)', page)) <= {parts.netloc}
