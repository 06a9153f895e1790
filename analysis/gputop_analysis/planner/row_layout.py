"""Configurations that a benchmark row can mean: several where it leaves something open."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product

from gputop_analysis.planner.hardware import Cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Layouts
from gputop_analysis.planner.row_model import count, framework_of
from gputop_analysis.planner.space import divisors, powers

Row = Mapping[str, str]
Choice = dict[str, int | bool]
_RECOMPUTE = {
    "none": 0,
    "no": 0,
    "off": 0,
    "selective": 1,
    "attn": 1,
    "full": 2,
    "block": 2,
    "uniform": 2,
}


def layouts_of(row: Row, job: Job, cluster: Cluster) -> Layouts:
    """Those whose world is the cluster; none if the row's degrees contradict its GPUs."""
    choices = list(_choices(row, job, cluster))
    if not choices:
        return Layouts.of(tp=[])
    return Layouts.of(**{key: [choice[key] for choice in choices] for key in choices[0]})


def _choices(row: Row, job: Job, cluster: Cluster) -> Iterator[Choice]:
    sp = _sequence_parallel(row)
    for tp, pp, cp in product(
        _open(row, "tp", powers(8)),
        _open(row, "pp", divisors(job.model.layers)),
        _open(row, "cp", [1]),
    ):
        if cluster.gpus % (tp * pp * cp):
            continue
        dp = cluster.gpus // (tp * pp * cp)
        for vpp, micro, recompute in product(
            _open(row, "vpp", divisors(max(job.model.layers // pp, 1)) if pp > 1 else [1]),
            _micro_batches(row, job, pp, dp),
            _recompute(row),
        ):
            yield {
                "tp": tp, "pp": pp, "cp": cp, "dp": dp, "vpp": vpp, "ep": count(row, "ep") or 1,
                "micro_batch": micro,
                "zero": _zero(row), "replicas": _replicas(row, cluster, dp), "recompute": recompute,
                "sequence_parallel": sp and tp > 1,
            }  # fmt: skip


def _micro_batches(row: Row, job: Job, pp: int, dp: int) -> list[int]:
    """As the row says, else powers of 2; torchtitan's pipeline cuts the local batch into single
    sequences (``pipeline_parallel_microbatch_size`` is 1).
    """
    if pp > 1 and framework_of(row).name == "torchtitan":
        return [1]
    return _open(row, "micro_batch", powers(max(job.global_batch // dp, 1)))


def _open(row: Row, key: str, otherwise: list[int]) -> list[int]:
    value = count(row, key)
    return [value] if value else otherwise


def _recompute(row: Row) -> list[int]:
    text = (row.get("act_ckpt") or "").lower()
    for word, index in _RECOMPUTE.items():
        if text.startswith(word):
            return [index]
    return [0, 1, 2]


def _sequence_parallel(row: Row) -> bool:
    text = f"{row.get('act_ckpt', '')} {row.get('notes', '')}".lower()
    if "+sp" in text or "sp on" in text or "sequence parallel on" in text:
        return True
    return framework_of(row).sequence_parallel


def _zero(row: Row) -> int:
    if stage := re.search(r"[0-3]", row.get("zero") or ""):
        return int(stage[0])
    return framework_of(row).zero


def _replicas(row: Row, cluster: Cluster, ranks: int) -> int:
    """Copies of HSDP: by the row, else one a node, as PyTorch takes without a mesh."""
    text = f"{row.get('framework', '')} {row.get('notes', '')} {row.get('zero', '')}".lower()
    match = re.search(r"dp_replicate\D{1,10}(\d+)", text)
    shards = re.search(r"\bfsdp\s*=\s*(\d+)", text)
    if shards and not match:
        copies = ranks // int(shards[1])
        if copies and ranks % copies == 0 and _zero(row) == 3:
            return copies
        return 1
    if not match and not re.search(r"hsdp|hybrid[ _-]?shard", text):
        return 1
    if match:
        copies = int(match[1])
    else:
        copies = cluster.gpus // cluster.gpus_per_node
    if _zero(row) == 3 and copies and ranks % copies == 0 and ranks > copies:
        return copies
    return 1
