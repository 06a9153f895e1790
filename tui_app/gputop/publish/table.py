"""The table of publishers: options, help, what to install and dispatch are made from it."""

from __future__ import annotations

import importlib
import importlib.util
from typing import NamedTuple, Protocol

from gputop.publish.reading import Reading


class Publisher(Protocol):
    """Takes readings one after another; every method may block, and may raise."""

    def publish(self, reading: Reading) -> None:
        """Hand on what is new."""
        ...

    def finish(self, reading: Reading, report: str) -> None:
        """The run is over: ``report`` is its HTML page, empty where there is none."""
        ...


class PublisherEntry(NamedTuple):
    """One publisher."""

    name: str
    """Its option, ``--prometheus``."""
    target: str
    """What the option takes."""
    summary: str
    needs: str
    """Module of its library; empty: the standard library."""
    extra: str
    """Extra of gputop that brings it."""
    module: str
    """Where ``open(target, run) -> Publisher`` is."""
    every_s: float = 5.0
    """Seconds between two readings of a run that goes on."""

    def missing(self) -> str:
        """What to install, in one line; empty where it is there."""
        try:
            there = not self.needs or importlib.util.find_spec(self.needs) is not None
        except ImportError:  # a package above it is missing
            there = False
        if there:
            return ""
        return f'--{self.name} needs an extra: pip install "gputop-torch[{self.extra}]"'

    def open(self, target: str, run: str) -> Publisher:
        """Import the module and open the publisher for a run of this name."""
        return importlib.import_module(self.module).open(target, run)


PUBLISHERS = (
    PublisherEntry(
        "prometheus",
        "[HOST]:PORT|FILE.prom",
        "serve for scraping, or keep a textfile",
        "prometheus_client",
        "prometheus",
        "gputop.publish.prometheus",
        2.0,
    ),
    PublisherEntry(
        "otlp",
        "URL",
        "send OpenTelemetry metrics over HTTP",
        "opentelemetry.exporter.otlp.proto.http",
        "otlp",
        "gputop.publish.otlp",
    ),
    PublisherEntry(
        "wandb",
        "[ENTITY/]PROJECT",
        "log to Weights & Biases (WANDB_MODE is heeded)",
        "wandb",
        "wandb",
        "gputop.publish.wandb",
    ),
    PublisherEntry(
        "mlflow",
        "URI",
        "log to an MLflow tracking server",
        "mlflow",
        "mlflow",
        "gputop.publish.mlflow",
    ),
    PublisherEntry(
        "tensorboard",
        "DIR",
        "write event files for TensorBoard",
        "tensorboard",
        "tensorboard",
        "gputop.publish.tensorboard",
    ),
    PublisherEntry(
        "trackio", "PROJECT", "log to Trackio", "trackio", "trackio", "gputop.publish.trackio"
    ),
    PublisherEntry(
        "notify",
        "URL|COMMAND",
        "say the first critical finding, a hang, the end",
        "",
        "",
        "gputop.notify",
        1.0,
    ),
)


def entry(name: str) -> PublisherEntry | None:
    """The publisher of that name, None if there is none."""
    return next((publisher for publisher in PUBLISHERS if publisher.name == name), None)
