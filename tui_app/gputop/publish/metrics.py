"""The table of metrics: one name for OpenTelemetry, one for Prometheus, with unit and meaning."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """One figure that has a value now, for each set of labels."""

    name: str
    """Name for OpenTelemetry; ``hw.*`` as its semantic conventions have them."""
    prometheus: str
    unit: str
    """UCUM, as OpenTelemetry wants it: ``s``, ``By``, ``1``."""
    meaning: str
    kind: str = "gauge"
    """``gauge``, ``counter`` (only grows) or ``updowncounter`` (adds up over labels)."""


_TABLE = (
    Metric("gputop.step.count", "gputop_steps_total", "{step}", "steps done", "counter"),
    Metric("gputop.step.time", "gputop_step_seconds", "s", "mean time of a step of the last steps"),
    Metric("gputop.phase.time", "gputop_phase_seconds", "s", "mean time of a phase in a step"),
    Metric("gputop.wait.time", "gputop_wait_seconds", "s", "mean wait for other ranks in a step"),
    Metric("gputop.step.rate", "gputop_steps_per_second", "{step}/s", "steps a second"),
    Metric("gputop.sample.rate", "gputop_samples_per_second", "{sample}/s", "samples a second"),
    Metric("gputop.token.rate", "gputop_tokens_per_second", "{token}/s", "tokens a second"),
    Metric("gputop.memory.usage", "gputop_memory_bytes", "By", "memory of a rank, by kind"),
    Metric("gputop.loss", "gputop_loss", "1", "the newest loss"),
    Metric("gputop.finding", "gputop_finding", "1", "1 for each finding there is now"),
    Metric(
        "gputop.finding.recoverable",
        "gputop_finding_recoverable_seconds",
        "s",
        "time a step that the finding's fix would win back",
    ),
    Metric("gputop.run.active", "gputop_run_active", "1", "1 while the run goes on, else 0"),
    Metric("gputop.run.exit_code", "gputop_run_exit_code", "1", "exit code of a run that ended"),
    Metric("hw.gpu.utilization", "gputop_gpu_utilization_ratio", "1", "share of time at work"),
    Metric(
        "hw.gpu.memory.usage",
        "gputop_gpu_memory_used_bytes",
        "By",
        "GPU memory in use",
        "updowncounter",
    ),
    Metric(
        "hw.gpu.memory.limit",
        "gputop_gpu_memory_total_bytes",
        "By",
        "GPU memory there is",
        "updowncounter",
    ),
    Metric("hw.power", "gputop_gpu_power_watts", "W", "power that the GPU draws"),
    Metric("hw.temperature", "gputop_gpu_temperature_celsius", "Cel", "temperature of the GPU"),
    Metric("gputop.host.cpu", "gputop_host_cpu_ratio", "1", "share of the host's cores at work"),
    Metric("gputop.host.memory", "gputop_host_memory_used_bytes", "By", "host memory in use"),
)
METRICS = {metric.name: metric for metric in _TABLE}
"""All metrics by their OpenTelemetry name."""
