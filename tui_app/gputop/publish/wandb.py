"""Weights & Biases: a run of its own in the project; ``WANDB_MODE=offline`` is heeded."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import wandb

from gputop.publish.reading import Reading
from gputop.publish.words import FINDINGS, Alerts, finding_line, findings_text, page_file, tags

_LEVELS = {"critical": "ERROR", "high": "WARN"}


class WandB:
    """One run at Weights & Biases, with steps on an axis of their own."""

    def __init__(self, target: str, run: str):
        entity, _, project = target.rpartition("/")
        settings = wandb.Settings(silent=True, console="off", init_timeout=30, x_disable_stats=True)
        self._run: Any = wandb.init(
            entity=entity or None,
            project=project,
            name=run,
            job_type="gputop",
            mode=_mode(),
            settings=settings,
            dir=os.environ.get("WANDB_DIR") or tempfile.gettempdir(),
        )
        self._run.define_metric("gputop/step")
        self._run.define_metric("gputop/*", step_metric="gputop/step")
        self._alerts = Alerts()

    def publish(self, reading: Reading) -> None:
        """One row a point, and an alert a finding that is new and serious."""
        for point in reading.points:
            self._run.log({"gputop/step": point.step, **point.values})
        for finding in self._alerts.due(reading):
            level = _LEVELS[finding.severity]
            self._run.alert(finding.name, finding_line(finding), level=level)

    def finish(self, reading: Reading, report: str) -> None:
        """Tags, the verdict and the report as an artifact."""
        self.publish(reading)
        self._run.tags = (*self._run.tags, *tags(reading))
        self._run.summary["gputop/verdict"] = reading.verdict.headline
        self._run.summary[FINDINGS] = findings_text(reading)
        with page_file(report) as page:
            artifact = wandb.Artifact(f"gputop-report-{self._run.id}", type="report")
            artifact.add_file(str(page))
            self._run.log_artifact(artifact)
            self._run.finish(exit_code=reading.exit_code or int(reading.failed))


def _mode() -> Any:
    """What the user's environment says; offline where nobody is logged in to be asked."""
    if mode := os.environ.get("WANDB_MODE"):
        return mode
    return "online" if wandb.api.api_key else "offline"


def open(target: str, run: str) -> WandB:
    """Begin a run in ``target``: ``PROJECT``, or ``ENTITY/PROJECT``."""
    return WandB(target, run)
