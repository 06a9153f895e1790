"""OpenTelemetry metrics over HTTP: gputop's own, and ``hw.*`` by the semantic conventions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource

from gputop import __version__
from gputop.publish.metrics import METRICS, Metric
from gputop.publish.reading import Reading

_TIMEOUT_S = 5
_METRICS_PATH = "/v1/metrics"


class _WatchedExporter(MetricExporter):
    """Passes on to the exporter and remembers how it went."""

    def __init__(self, inner: OTLPMetricExporter):
        super().__init__()
        self._inner = inner
        self.failed = False

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        result = self._inner.export(metrics_data, timeout_millis, **kwargs)
        self.failed = result is not MetricExportResult.SUCCESS
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._inner.shutdown(timeout_millis, **kwargs)


class Otlp:
    """A meter whose instruments read the newest reading."""

    def __init__(self, url: str, run: str):
        self._reading: Reading | None = None
        inner = OTLPMetricExporter(endpoint=endpoint(url), timeout=_TIMEOUT_S)
        self._exporter = _WatchedExporter(inner)
        reader = PeriodicExportingMetricReader(self._exporter, export_interval_millis=float("inf"))
        about = {
            "service.name": "gputop",
            "service.version": __version__,
            "service.instance.id": run,
        }
        self._provider = MeterProvider([reader], Resource.create(about))
        meter = self._provider.get_meter("gputop", __version__)
        create = {
            "gauge": meter.create_observable_gauge,
            "counter": meter.create_observable_counter,
            "updowncounter": meter.create_observable_up_down_counter,
        }
        for metric in METRICS.values():
            create[metric.kind](metric.name, [self._observe(metric)], metric.unit, metric.meaning)

    def publish(self, reading: Reading) -> None:
        """Send this reading.

        Raises:
            ConnectionError: the collector did not take it.
        """
        self._reading = reading
        self._provider.force_flush(2_000 * _TIMEOUT_S)
        if self._exporter.failed:
            raise ConnectionError("the collector did not take the metrics")

    def finish(self, reading: Reading, report: str) -> None:
        """The last reading."""
        self.publish(reading)

    def _observe(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            samples = self._reading.samples if self._reading else ()
            return [
                Observation(sample.value, sample.labels)
                for sample in samples
                if sample.metric == metric.name
            ]

        return observe


def endpoint(url: str) -> str:
    """The address of metrics at a collector: ``http://host:4318`` becomes ``.../v1/metrics``."""
    plain = url.rstrip("/")
    return plain if plain.endswith(_METRICS_PATH) else plain + _METRICS_PATH


def open(target: str, run: str) -> Otlp:
    """Send to the collector at ``target``."""
    return Otlp(target, run)
