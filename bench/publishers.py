"""The same training bare and beside publishers whose servers are dead, slow or answer nonsense.

    python bench/publishers.py

Output, exit code and losses must be the same with every publisher on. Prints a line of JSON for
each kind of server: whether all was the same, how long the run took, what was said of it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TRAINING = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(32, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
data = torch.utils.data.DataLoader(torch.randn(800, 32), batch_size=8)
for epoch in range(3):
    for x in data:
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())
print("narrated", file=sys.stderr)
sys.exit(3)
"""
KINDS = ("working", "dead", "slow", "nonsense")
WAIT_S = 15


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAINING)
        command = [sys.executable, "train.py"]
        bare = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        for kind in KINDS:
            print(json.dumps(beside(kind, folder, command, bare)), flush=True)


def beside(kind: str, folder: Path, command: list[str], bare: subprocess.CompletedProcess) -> dict:
    """One run with every publisher."""
    place = folder / kind
    place.mkdir()
    listening, url = server(kind)
    taken = socket.create_server(("127.0.0.1", 0))
    words, environment = targets(kind, place, url, taken.getsockname()[1])
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "gputop", "run", "--headless", *words, "--", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, **environment, "GPUTOP_PUBLISH_WAIT_S": str(WAIT_S)},
        check=False,
    )
    listening.close()
    taken.close()
    ours = [line for line in done.stderr.splitlines() if line.startswith("gputop: publish")]
    theirs = [line for line in done.stderr.splitlines() if not line.startswith("gputop: ")]
    return {
        "server": kind,
        "same_output": done.stdout == bare.stdout and len(done.stdout) > 1000,
        "same_errors": "\n".join(theirs).strip() == bare.stderr.strip(),
        "exit_codes": [bare.returncode, done.returncode],
        "seconds": round(time.monotonic() - began, 1),
        "said": [line.replace(str(folder), "")[:160] for line in ours],
    }


def targets(kind: str, place: Path, url: str, taken: int) -> tuple[list[str], dict[str, str]]:
    """Options and environment: every publisher, at something of this kind."""
    file = place / "a file"
    file.write_text("no folder")
    blocked = kind == "dead"
    trackio = place / "trackio"
    if kind == "nonsense":
        trackio.mkdir()
        (trackio / "toys.db").write_bytes(b"\x00\xff" * 5000)
    words = {
        "prometheus": f":{taken}" if blocked else str(place / "run.prom"),
        "otlp": url,
        "wandb": "toys",
        "mlflow": (place / "mlruns").as_uri() if kind == "working" else url,
        "tensorboard": str(file / "below") if blocked else str(place / "tb"),
        "trackio": "toys",
        "notify": url,
    }
    environment = {
        "TRACKIO_DIR": str(file if blocked else trackio),
        "WANDB_DIR": str(place),
        "WANDB_MODE": "offline" if kind == "working" else "online",
        "WANDB_BASE_URL": url,
        "WANDB_API_KEY": "0" * 40,
        "NO_PROXY": "127.0.0.1",
        "GPUTOP_RUNS_DIR": str(place / "runs"),
    }
    options = [f"--publish={name}={target}" for name, target in words.items() if name != "notify"]
    return [*options, f"--notify={words['notify']}"], environment


def server(kind: str) -> tuple[socket.socket, str]:
    """A socket that takes what comes, or that does not speak HTTP as it should."""
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    if kind == "dead":
        listening.close()
    else:
        threading.Thread(target=_serve, args=(listening, kind), daemon=True).start()
    return listening, url


def _serve(listening: socket.socket, kind: str) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(connection, kind), daemon=True).start()


def _answer(connection: socket.socket, kind: str) -> None:
    with connection:
        connection.settimeout(2)
        try:
            connection.recv(65536)
            if kind == "nonsense":
                connection.sendall(b"\x00\xff" * 1000)
            elif kind == "slow":
                time.sleep(600)
            else:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        except OSError:
            return


if __name__ == "__main__":
    main()
