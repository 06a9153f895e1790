"""A row of published throughput (of a benchmark CSV) as a planner's job and its answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gputop_analysis.planner.hardware import Cluster, cluster
from gputop_analysis.planner.job import Job, trainable_share
from gputop_analysis.planner.layout import Layouts
from gputop_analysis.planner.row_layout import layouts_of
from gputop_analysis.planner.row_model import framework_of, habits_of, shape_of

Row = Mapping[str, str]
MOST = 1e15
"""Larger than any count or time; an infinity in a file is not one."""
DEGREES = ("tp", "pp", "cp", "dp", "ep", "vpp", "micro_batch")


class Unreadable(ValueError):
    """The row cannot be predicted; the message says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One row: what was run, as far as it says, and what was measured (0 where nothing was)."""

    row: Row
    job: Job
    cluster: Cluster
    layouts: Layouts
    """Several where the row leaves something open: the fastest that fits is taken, as tuners do."""
    step_s: float
    peak_gib: float
    ran: bool
    """False: it ran out of memory (or crashed)."""

    @property
    def cell(self) -> tuple[str, ...]:
        """Rows of a cell compete: one model on as many of the same GPUs with the same batch."""
        keys = ("model", "gpus", "global_batch", "seq", "gpu_model", "dtype")
        return tuple(self.row.get(key, "") for key in keys)

    @property
    def tokens_per_s_per_gpu(self) -> float:
        if self.step_s:
            return self.job.tokens / self.step_s / self.cluster.gpus
        return 0.0


def read(row: Row) -> Case:
    """Raises Unreadable with the reason."""
    if "INCONSISTENT" in row.get("notes", "").upper():
        raise Unreadable("its source contradicts itself")
    if wrong := next((key for key in DEGREES if _is_wrong(row, key)), ""):
        raise Unreadable(f"{wrong} is no count: {row[wrong]!r}")
    ran = (row.get("status") or "ok").strip().lower() in ("ok", "success", "completed", "")
    job, cluster = job_of(row), cluster_of(row)
    step = step_seconds(row, job, cluster.gpus)
    if ran and not step and not number(row, "peak_mem_gib"):
        raise Unreadable("neither step time nor tokens/s (FLOP conventions differ by source)")
    layouts = layouts_of(row, job, cluster)
    if not len(layouts):
        raise Unreadable("tp x pp x cp x dp is not the number of GPUs")
    return Case(row, job, cluster, layouts, step, number(row, "peak_mem_gib"), ran)


def job_of(row: Row) -> Job:
    seq, batch = int(number(row, "seq")), int(number(row, "global_batch"))
    if not seq:
        raise Unreadable("no sequence length")
    if not batch:
        raise Unreadable("no global batch")
    try:
        shape = shape_of(row)
    except (LookupError, ValueError) as error:
        raise Unreadable(str(error)) from error
    dtype = dtype_of(row)
    notes = row.get("notes", "").lower()
    habits = habits_of(row, dtype)
    if habits.attention == "eager" and not number(row, "heads") and not number(row, "kv_heads"):
        raise Unreadable(
            "no number of heads, which decides the speed of attention outside a flash kernel"
        )
    return Job(
        model=shape,
        seq=seq,
        global_batch=batch,
        dtype=dtype,
        trainable_share=trainable_share("lora" in (row.get("task") or "").lower()),
        expert_imbalance=1.0 if "capacity" in notes or "balanced" in notes else 1.1,
        recipe=framework_of(row).recipe,
        framework=framework_of(row).name,
        habits=habits,
    )


_DTYPES = (
    (r"fp4|e2m1", "fp4"),
    (r"fp8|float8|e4m3|e5m2", "fp8"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|half", "fp16"),
    (r"fp32|float32|single", "fp32"),
)
"""The first that is named is that of the products: ``fp8-hybrid with bf16`` is fp8."""


def dtype_of(row: Row) -> str:
    """Of the products; bf16 where nothing is said. Raises Unreadable for another kind of number."""
    text = f"{row.get('dtype', '')} {row.get('precision', '')}".strip().lower()
    matched = next(
        (dtype for words, dtype in _DTYPES if re.search(words, text)), "" if text else "bf16"
    )
    if not matched:
        raise Unreadable(f"precision {text!r} is not predicted: fp4, fp8, bf16, fp16 and fp32 are")
    return matched


def cluster_of(row: Row) -> Cluster:
    gpus = int(number(row, "gpus"))
    if not gpus:
        raise Unreadable("no number of GPUs")
    if not (row.get("gpu_model") or "").strip():
        raise Unreadable("no GPU is named")
    if row.get("interconnect"):
        link = f"{row.get('interconnect', '')} {row.get('notes', '')}"
    else:
        link = ""
    try:
        return cluster(
            row.get("gpu_model", ""), gpus, int(number(row, "gpus_per_node")), _between_nodes(link)
        )
    except LookupError as error:
        raise Unreadable(str(error)) from error


def step_seconds(row: Row, job: Job, gpus: int) -> float:
    """As measured, or from tokens/s; 0 where neither is said."""
    if step := number(row, "step_time_s"):
        return step
    rate = number(row, "tokens_per_s_per_gpu")
    return job.tokens / rate / gpus if rate else 0.0


def number(row: Row, key: str) -> float:
    """0 where the field is empty, no number, or none that a count or a time can be."""
    try:
        value = float((row.get(key) or "").replace(",", ""))
    except ValueError:
        return 0.0
    return value if 0 < value < MOST else 0.0


def _is_wrong(row: Row, key: str) -> bool:
    """Something stands there that is neither a blank, a zero (not used) nor a whole number."""
    text = (row.get(key) or "").strip().lower()
    if text in ("", "nan", "none", "null", "-", "n/a"):
        return False
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return True
    return not (0 <= value < 1e7 and value == int(value))


def _between_nodes(text: str) -> str:
    """The part of an interconnect's description that is about the network."""
    parts = [
        part
        for part in re.split(r"[;,]", text)
        if not re.search(r"nvlink|nvswitch|intra", part.lower())
    ]
    return " ".join(parts)
