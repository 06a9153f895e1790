"""Peak throughput of a GPU, dense, by the name that its driver gives it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from gputop_analysis.data import table

DRIVER_NAMES = {
    "a100-pcie-40gb": "A100-PCIe-40GB",
    "a100 80gb pcie": "A100-PCIe-80GB",
    "v100-pcie-16gb": "V100-PCIe-16GB",
    "v100-pcie-32gb": "V100-PCIe-32GB",
    "h100 80gb hbm3": "H100-SXM5-80GB",
    "h100 pcie": "H100-PCIe-80GB",
    "h100 nvl": "H100-NVL-94GB",
    "h200 nvl": "H200-NVL-141GB",
    "gh200 120gb": "GH200-96GB",
    "gh200 480gb": "GH200-96GB",
    "gh200 144g hbm3e": "GH200-144GB",
    "rtx 6000 ada generation": "RTX 6000 Ada",
    "rtx pro 6000 blackwell workstation edition": "RTX PRO 6000 Blackwell Workstation",
    "rtx pro 6000 blackwell server edition": "RTX PRO 6000 Blackwell Server",
}
"""What drivers say where the table says something else; a GH200 is named after the memory of its CPU."""
_MAKERS = re.compile(r"^(?:nvidia|tesla|amd|instinct|geforce)\s+")
_HALVES = ("MI250", "MI250X")
"""PyTorch sees each half of these as a device, so that the table's peak would be twice too high."""
_COLUMNS = {
    "float32": "fp32_tflops",
    "tf32": "tf32_tflops_dense",
    "float16": "fp16_tflops_dense",
    "bfloat16": "bf16_tflops_dense",
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One model of GPU."""

    name: str
    dense_flops: dict[str, float]
    """FLOP/s of matrix products by ``float32``, ``tf32``, ``float16``, ``bfloat16``, without sparsity."""
    source: str


def find_gpu(name: str) -> Gpu | None:
    """The GPU of exactly that name or alias, whatever maker and letter case it is written with; None for any other.

    Never by a part of the name: an L40 is no L4 and an A1000 no A100, a MIG slice is no whole GPU.
    """
    return _gpus().get(plain(name))


def precision(hello: dict[str, Any]) -> str:
    """The type in which a rank multiplies matrices: ``float32``, ``tf32``, ``float16`` or ``bfloat16``."""
    sharded = ((hello.get("parallel") or {}).get("fsdp") or {}) if isinstance(hello.get("parallel"), dict) else {}
    mixed = (sharded.get("mixed_precision") or {}) if isinstance(sharded, dict) else {}
    amp = hello.get("amp") or {}
    weights = (hello.get("model") or {}).get("by_dtype") or {}
    largest = max(weights, key=lambda kind: weights[kind], default="float32")
    found = mixed.get("param_dtype") or (amp.get("dtype") if amp.get("autocast") else None) or largest
    flags = hello.get("flags") or {}
    fast = flags.get("cuda_matmul_tf32") or flags.get("matmul_precision") in ("high", "medium")
    return "tf32" if found == "float32" and fast else str(found)


@cache
def _gpus() -> dict[str, Gpu]:
    found: dict[str, Gpu] = {}
    for row in table("gpus.csv"):
        if row["name"] in _HALVES:
            continue
        peaks = {kind: 1e12 * float(row[column]) for kind, column in _COLUMNS.items() if row[column]}
        gpu = Gpu(row["name"], peaks, row["source"])
        for name in (row["name"], *row["aliases"].split(",")):
            found.setdefault(plain(name), gpu)
    by_name = {gpu.name: gpu for gpu in found.values()}
    found.pop("", None)
    return found | {driver: by_name[name] for driver, name in DRIVER_NAMES.items()}


def plain(name: str) -> str:
    """A name without its maker, in lower case, for comparing."""
    name = " ".join(name.lower().split())
    while shorter := _MAKERS.sub("", name):
        if shorter == name:
            break
        name = shorter
    return name
