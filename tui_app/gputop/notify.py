"""Says to a person what cannot wait: the first critical finding, a hang, the end of a run.

To a web address as JSON (Slack's and Discord's shapes by host), or to a command on its standard
input. Nothing that the other side answers, or leaves unanswered, matters to the run: this is a
publisher in a process of its own.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple

from gputop import __version__, settings
from gputop.occasions import Occasion, Occasions
from gputop.publish.reading import Reading
from gputop.publish.targets import is_url
from gputop_analysis.report.data import finding_data, finite

_URL_S = 10.0
_COMMAND_S = 30.0
_DISCORD_CHARACTERS = 2000
_FINDINGS = 5


class NotificationText(NamedTuple):
    """One thing to say."""

    event: str
    """``finding``, ``hang`` or ``end``."""
    text: str
    data: dict[str, Any]


class Notifier:
    """Says each thing once."""

    def __init__(self, send: Callable[[NotificationText], None]):
        self._send = send
        self._occasions = Occasions()

    def publish(self, reading: Reading) -> None:
        """Say what is new, if it cannot wait."""
        self._say(self._occasions.new(reading.findings, reading.hang, ""), reading)

    def finish(self, reading: Reading, report: str) -> None:
        """Say how the run ended."""
        self._say(self._occasions.new((), reading.hang, reading.verdict.headline), reading)

    def _say(self, occasions: list[Occasion], reading: Reading) -> None:
        wanted = settings.load().entries("notifications.on")
        for event, text_ in occasions:
            if event in wanted:
                text = f"gputop: {reading.name} on {reading.host}: {text_}"
                self._send(NotificationText(event, text, _data(event, text, reading)))


def _data(event: str, text: str, reading: Reading) -> dict[str, Any]:
    """What a webhook and a command get."""
    return finite(
        {
            "event": event,
            "text": text,
            "run": reading.name,
            "host": reading.host,
            "command": reading.command,
            "state": reading.state,
            "exit_code": reading.exit_code,
            "steps": reading.steps,
            "health": reading.verdict.health,
            "headline": reading.verdict.headline,
            "findings": [finding_data(finding) for finding in reading.findings[:_FINDINGS]],
        }
    )


def payload(url: str, notice: NotificationText) -> dict[str, Any]:
    """The body that the host of a web address understands."""
    host = urllib.parse.urlsplit(url).hostname or ""
    if host == "slack.com" or host.endswith(".slack.com"):
        return {"text": _harmless(notice.text)}
    if host in ("discord.com", "discordapp.com") or host.endswith((".discord.com",)):
        return {"content": notice.text[:_DISCORD_CHARACTERS], "allowed_mentions": {"parse": []}}
    return notice.data


def _harmless(text: str) -> str:
    """Without what would call everybody of a Slack channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def to_url(url: str) -> Callable[[NotificationText], None]:
    """Post each notice to a web address."""

    def send(notice: NotificationText) -> None:
        request = urllib.request.Request(
            url,
            json.dumps(payload(url, notice)).encode(),
            {"Content-Type": "application/json", "User-Agent": f"gputop/{__version__}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_URL_S) as answer:
                answer.read(1024)
        except urllib.error.HTTPError as error:
            raise ConnectionError(f"the server answered {error.code}") from None
        except urllib.error.URLError as error:
            raise ConnectionError(f"no answer: {error.reason}") from None
        except http.client.HTTPException:
            raise ConnectionError("the server's answer is no HTTP") from None

    return send


def to_command(words: list[str]) -> Callable[[NotificationText], None]:
    """Start a command for each notice: JSON on its standard input, the text in ``GPUTOP_TEXT``."""

    def send(notice: NotificationText) -> None:
        environment = {"GPUTOP_EVENT": notice.event, "GPUTOP_TEXT": notice.text}
        try:
            done = subprocess.run(
                words,
                input=json.dumps(notice.data).encode(),
                env={**os.environ, **environment},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_COMMAND_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"no end within {_COMMAND_S:.0f} s: stopped") from None
        if done.returncode:
            raise ChildProcessError(f"exit code {done.returncode}")

    return send


def open(target: str, run: str) -> Notifier:
    """A web address, or a command with its arguments."""
    return Notifier(to_url(target) if is_url(target) else to_command(shlex.split(target)))
