"""A training that goes on, watched in headless Chromium by several viewers at once.

    python bench/serve.py FOLDER

Pictures go to FOLDER. Prints a line of JSON: how many viewers saw the screen, whether it changed
while the training went on, what the key that profiles did without and with ``--control``, and
whether the training's output was that of a bare run.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "frameworks")]

import aiohttp  # noqa: E402
from test_serve import BROWSER, MANY, colours  # noqa: E402

TRAINING = """
import sys, time, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    x = torch.randn(64, 64)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
print("trained")
"""
VIEWERS = 3
LOOKS_S = 150.0


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        run = Path(name, "run")
        Path(name, "train.py").write_text(TRAINING)
        words = ["run", "--headless", "--run-dir", str(run), "--", sys.executable, "train.py"]
        training = subprocess.Popen(
            [sys.executable, "-m", "gputop", *words, str(LOOKS_S)],
            cwd=name,
            stdout=subprocess.PIPE,
            text=True,
        )
        while not list(run.glob("steps/*.bin")):
            time.sleep(0.2)
        figures = {}
        for option in ("", "--control"):
            with served(run, option) as address, browser(Path(name)) as port:
                figures[option or "looking"] = asyncio.run(watched(port, address, run, folder))
        output, _ = training.communicate()
        print(
            json.dumps({"bench": "serve", **figures, "output": output, "exit": training.returncode})
        )


@contextlib.contextmanager
def served(run: Path, option: str) -> Iterator[str]:
    """Address of ``gputop serve``."""
    words = ["serve", str(run), "--port", "0", *filter(None, [option])]
    server = subprocess.Popen(
        [sys.executable, "-m", "gputop", *words], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        yield server.stdout.readline().removeprefix("gputop: ").strip()
    finally:
        server.terminate()
        server.wait(30)


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[int]:
    """Port of a headless Chromium."""
    profile = folder / f"profile-{os.urandom(3).hex()}"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    options += ["--remote-debugging-port=0", "--window-size=1400,800"]
    process = subprocess.Popen(
        [str(BROWSER), *options, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    file = profile / "DevToolsActivePort"
    try:
        while not file.exists() or not file.read_text().strip():
            time.sleep(0.1)
        yield int(file.read_text().splitlines()[0])
    finally:
        process.terminate()
        process.wait(30)


async def watched(port: int, address: str, run: Path, folder: Path) -> dict:
    """What some pages show, twice, and what the key ``p`` does."""
    async with aiohttp.ClientSession() as session:
        lines = []
        for _ in range(VIEWERS):
            async with session.put(f"http://127.0.0.1:{port}/json/new?{address}") as made:
                page = (await made.json(content_type=None))["webSocketDebuggerUrl"]
            lines.append(await session.ws_connect(page, max_msg_size=0))
        first = [await picture(line) for line in lines]
        before = requests(run)
        await ask(lines[0], "Page.bringToFront")
        for kind in ("keyDown", "keyUp"):
            words = {"key": "p", "code": "KeyP", "windowsVirtualKeyCode": 80}
            text = {"text": "p"} if kind == "keyDown" else {}
            await ask(lines[0], "Input.dispatchKeyEvent", type=kind, **words, **text)
        await asyncio.sleep(8)
        second = [await picture(line) for line in lines]
        for number, data in enumerate(second):
            (folder / f"viewer-{number}.png").write_bytes(data)
        for line in lines:
            await line.close()
    return {
        "viewers": sum(colours(data) > MANY for data in first),
        "changed": sum(a != b for a, b in zip(first, second, strict=True)),
        "profiles_asked": requests(run) - before,
    }


def requests(run: Path) -> int:
    """How many profiles the run was asked for."""
    texts = [file.read_text(errors="replace") for file in run.rglob("events.jsonl")]
    return sum('"profile' in line for text in texts for line in text.splitlines())


async def ask(line: aiohttp.ClientWebSocketResponse, method: str, **fields: object) -> dict:
    """One command of the DevTools protocol."""
    await line.send_json({"id": 1, "method": method, "params": fields})
    while (answer := json.loads((await line.receive()).data)).get("id") != 1:
        pass
    return answer.get("result", {})


async def picture(line: aiohttp.ClientWebSocketResponse) -> bytes:
    """A picture of a page, once it is drawn."""
    deadline = time.monotonic() + 60
    while True:
        await ask(line, "Page.bringToFront")
        await asyncio.sleep(0.7)
        data = base64.b64decode((await ask(line, "Page.captureScreenshot"))["data"])
        if colours(data) > MANY or time.monotonic() > deadline:
            return data


if __name__ == "__main__":
    main()
