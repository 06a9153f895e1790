"""Prometheus: an endpoint that is scraped, or a textfile for node_exporter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from gputop.publish.metrics import METRICS, Metric
from gputop.publish.reading import Reading, Sample
from gputop.publish.targets import ADDRESS


class Latest(Collector):
    """Gives the newest reading to whoever scrapes."""

    def __init__(self) -> None:
        self.reading: Reading | None = None

    def collect(self) -> Iterator[Family]:
        """One family a metric."""
        if self.reading is None:
            return
        by_metric: dict[str, list[Sample]] = {}
        for sample in self.reading.samples:
            by_metric.setdefault(sample.metric, []).append(sample)
        for name, samples in by_metric.items():
            yield _family(METRICS[name], samples)


def _family(metric: Metric, samples: list[Sample]) -> Family:
    labels = list(dict.fromkeys(label for sample in samples for label in sample.labels))
    names = [label.replace(".", "_") for label in labels]
    if metric.kind == "counter":
        family_type = CounterMetricFamily
    else:
        family_type = GaugeMetricFamily
    family = family_type(metric.prometheus, metric.meaning, labels=names)
    for sample in samples:
        family.add_metric([sample.labels.get(label, "") for label in labels], sample.value)
    return family


class Prometheus:
    """A port, or a file."""

    def __init__(self, target: str):
        self._latest = Latest()
        self._registry = CollectorRegistry()
        self._registry.register(self._latest)
        address = ADDRESS.fullmatch(target)
        self._file = None if address else Path(target)
        if address:
            host = address["host"].strip("[]") or "127.0.0.1"
            start_http_server(int(address["port"]), addr=host, registry=self._registry)

    def publish(self, reading: Reading) -> None:
        """Serve this reading from now on."""
        self._latest.reading = reading
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_to_textfile(str(self._file), self._registry)

    def finish(self, reading: Reading, report: str) -> None:
        """The last reading; the port closes with the process."""
        self.publish(reading)


def open(target: str, run: str) -> Prometheus:
    """Listen on ``HOST:PORT`` (``:PORT`` is this machine only), or write to a file."""
    return Prometheus(target)
