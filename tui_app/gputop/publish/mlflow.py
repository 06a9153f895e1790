"""MLflow: a run of the experiment ``gputop`` on a tracking server."""

from __future__ import annotations

import os
import time

from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from gputop.publish.reading import Reading
from gputop.publish.words import findings_text, page_file

EXPERIMENT = "gputop"
_BATCH = 1000
"""Metrics in one request: the server takes no more."""


class MLflow:
    """One run; its metrics are named as on other trackers, with ``/`` between parts."""

    def __init__(self, uri: str, run: str):
        if "://" not in uri or uri.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a folder was asked for
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        # else every client says where it looks for models
        self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        self._name, self._run = run, ""

    def _begin(self, reading: Reading) -> None:
        """The run lasts as long as the training, whenever it is published."""
        self._run = self._client.create_run(
            self._experiment(),
            start_time=reading.started_ns // 10**6,
            run_name=self._name,
            tags={"gputop.run": self._name},
        ).info.run_id

    def _experiment(self) -> str:
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        if experiment is not None:
            return experiment.experiment_id
        try:
            return self._client.create_experiment(EXPERIMENT)
        except MlflowException:  # another run came between
            experiment = self._client.get_experiment_by_name(EXPERIMENT)
            if experiment is None:
                raise
            return experiment.experiment_id

    def publish(self, reading: Reading) -> None:
        """The points, and a tag a finding."""
        if not self._run:
            self._begin(reading)
        metrics = [
            Metric(name, value, point.t_ns // 10**6, point.step)
            for point in reading.points
            for name, value in point.values.items()
        ]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._run, metrics=metrics[start : start + _BATCH])
        for finding in reading.findings:
            self._client.set_tag(self._run, f"gputop.{finding.id}", finding.title)

    def finish(self, reading: Reading, report: str) -> None:
        """The verdict as tags, the report as an artifact, the run's end."""
        self.publish(reading)
        self._client.set_tag(self._run, "gputop.verdict", reading.verdict.headline)
        self._client.set_tag(self._run, "mlflow.note.content", findings_text(reading))
        with page_file(report) as page:
            self._client.log_artifact(self._run, str(page))
        status = "FAILED" if reading.failed else "FINISHED"
        ended_ns = reading.ended_ns or time.time_ns()
        self._client.set_terminated(self._run, status, end_time=ended_ns // 10**6)


def open(target: str, run: str) -> MLflow:
    """A run at the tracking server ``target``: ``http://...``, or a folder."""
    return MLflow(target, run)
