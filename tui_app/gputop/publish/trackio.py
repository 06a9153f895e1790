"""Trackio: a run in a local project."""

from __future__ import annotations

import contextlib
import io

import trackio

from gputop.publish.reading import Reading
from gputop.publish.words import FINDINGS, Alerts, finding_line, findings_text, page_file


class Trackio:
    """One run. Trackio prints to stdout, which is nobody's here."""

    def __init__(self, project: str, run: str):
        with contextlib.redirect_stdout(io.StringIO()):
            self._run = trackio.init(
                project=project,
                name=run,
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        self._alerts = Alerts()

    def publish(self, reading: Reading) -> None:
        """One row a point, and an alert a finding that is new and serious."""
        for point in reading.points:
            self._run.log(point.values, step=point.step)
        for finding in self._alerts.due(reading):
            with contextlib.redirect_stdout(io.StringIO()):
                self._run.alert(finding.name, finding_line(finding))

    def finish(self, reading: Reading, report: str) -> None:
        """The findings as text, the report as an artifact."""
        self.publish(reading)
        self._run.log({FINDINGS: trackio.Markdown(findings_text(reading))})
        with contextlib.redirect_stdout(io.StringIO()), page_file(report) as page:
            self._run.log_artifact(str(page), name="gputop-report", type="report")
            self._run.finish()


def open(target: str, run: str) -> Trackio:
    """Begin a run in the project ``target``."""
    return Trackio(target, run)
