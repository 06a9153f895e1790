"""Notices: what is said, when, in which shape; and servers that are dead, slow or talk nonsense."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from dataclasses import replace

import pytest
from analysis_support import Builder
from e2e_support import ROOT, gputop, training

from gputop.notify import NotificationText, Notifier, open, payload
from gputop.publish.follow import RecordReadings
from gputop_analysis.model import Finding


@pytest.fixture
def reading(tmp_path):
    builder = Builder(tmp_path / "run")
    builder.hello()
    builder.steps(60, forward=3.0, backward=5.0)
    return RecordReadings(builder.open()).next()


def finding(severity: str) -> Finding:
    return Finding("HC06", "exception", severity, "it broke", "proof", "mend it", rank=1)  # type: ignore[arg-type]


def test_each_thing_is_said_once(reading) -> None:
    notices: list[NotificationText] = []
    notifier = Notifier(notices.append)
    notifier.publish(replace(reading, findings=(finding("high"),)))
    assert notices == []
    bad = replace(reading, findings=(finding("critical"),))
    notifier.publish(bad)
    notifier.publish(bad)
    stuck = replace(bad, hang="hang: no step for 40 s, silent ranks 1")
    notifier.publish(stuck)
    notifier.publish(stuck)
    notifier.publish(bad)
    notifier.publish(stuck)
    notifier.finish(replace(bad, state="ended", exit_code=1), "")
    assert [notice.event for notice in notices] == ["finding", "hang", "hang", "end"]
    assert notices[0].data["findings"][0]["id"] == "HC06" and notices[-1].data["exit_code"] == 1
    json.dumps(notices[0].data, allow_nan=False)


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://hooks.slack.com/services/x", "text"),
        ("https://discord.com/api/webhooks/1/x", "content"),
        ("https://discordapp.com/api/webhooks/1/x", "content"),
    ],
)
def test_slack_and_discord_get_their_shapes(url: str, key: str) -> None:
    body = payload(url, NotificationText("end", "<!channel> a & b " + "x" * 3000, {"event": "end"}))
    assert "event" not in body
    if key == "content":
        assert len(body[key]) <= 2000 and body["allowed_mentions"] == {"parse": []}
        assert body[key].startswith("<!channel> a & b"), "shown as it is there"
    else:
        assert body[key].startswith("&lt;!channel&gt; a &amp; b")


def test_any_other_address_gets_json() -> None:
    data = {"event": "end"}
    assert (
        payload("https://notslack.com.example/hook", NotificationText("end", "text", data)) == data
    )


def test_a_command_gets_json_and_text(reading, tmp_path) -> None:
    program = (
        "import json, os, sys; data = json.load(sys.stdin); "
        f"open({str(tmp_path / 'got')!r}, 'w').write(data['event'] + os.environ['GPUTOP_TEXT'])"
    )
    open(f"{sys.executable} -c {json.dumps(program)}", "run").finish(reading, "")
    assert (tmp_path / "got").read_text().startswith("endgputop: run on box")


def server(behaviour: str) -> tuple[socket.socket, str]:
    """A socket that does not speak HTTP as it should."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                if behaviour == "nonsense":
                    connection.sendall(b"\x00\xff" * 1000)
                elif behaviour == "slow":
                    time.sleep(60)

    if behaviour != "dead":
        threading.Thread(target=answer, daemon=True).start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/hook"
    if behaviour == "dead":
        listening.close()
    return listening, url


@pytest.mark.e2e
def test_the_training_is_the_same_whatever_the_server_does(tmp_path) -> None:
    """Output, exit code and losses of a bare run, beside servers that are dead, slow and mad."""
    script = tmp_path / "train.py"
    body = "print(i, loss.item())"
    script.write_text("import torch; torch.manual_seed(0)\n" + training(40, body) + "sys.exit(3)\n")
    path = {"PYTHONPATH": str(ROOT / "tests" / "site"), "GPUTOP_PUBLISH_WAIT_S": "3"}
    bare = gputop("run", "--", sys.executable, str(script), tmp_path=tmp_path, env=path)
    servers = [server(behaviour) for behaviour in ("dead", "slow", "nonsense")]
    words = [f"--notify={url}" for _, url in servers]
    words += [
        f"--publish=prometheus={tmp_path}/run.prom",
        f"--publish=otlp={servers[1][1]}",
        f"--publish=tensorboard={tmp_path}/tb",
    ]
    beside = gputop(
        *("run", *words, "--", sys.executable, str(script)), tmp_path=tmp_path, env=path
    )
    for listening, _ in servers:
        listening.close()
    assert beside.returncode == bare.returncode == 3
    assert beside.stdout == bare.stdout and beside.stdout.count("\n") == 41
    assert "Traceback" not in beside.stderr
    assert "publish: " in beside.stderr


def test_nonsense_is_said_in_words(reading) -> None:
    listening, url = server("nonsense")
    with listening, pytest.raises(ConnectionError, match="no HTTP"):
        open(url, "run").finish(reading, "")


def test_an_unknown_publisher_is_refused_before_anything_starts(tmp_path) -> None:
    done = gputop("run", "--publish", "nobody=x", "--", "touch", "started", tmp_path=tmp_path)
    assert done.returncode == 2 and "NAME=TARGET" in done.stderr
    assert not (tmp_path / "started").exists()
