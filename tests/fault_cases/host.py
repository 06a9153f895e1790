"""Faults of the Python side of a training."""

from fault_cases import Case, Clean

HOST = "host.py"

CASES = (
    Case(
        "HO09",
        "a batch size that changes under torch.compile",
        HOST,
        {"FAULT": "recompiles"},
        site="host.py",
    ),
    Case(
        "HO10",
        "a print inside a compiled model",
        HOST,
        {"FAULT": "graph_breaks"},
        site=r"host\.py:\d+ forward",
        severity=("info",),
    ),
    Case(
        "HO11",
        "an optimizer that updates tensor by tensor",
        HOST,
        {"FAULT": "foreach", "STEPS": 120},
    ),
    Case(
        "HO15",
        "a histogram every twentieth step",
        HOST,
        {"FAULT": "periodic"},
        site="draw_histogram",
        title="20th",
    ),
    Case(
        "HO16",
        "anomaly mode",
        HOST,
        {"FAULT": "anomaly", "STEPS": 400},
        title="anomaly mode",
        site=r"host\.py:105$",
    ),
    Case(
        "HO16",
        "torch.profiler around the whole training",
        HOST,
        {"FAULT": "profiler", "STEPS": 400},
        title="profiler",
    ),
)

CLEAN = (
    Clean("a small training on host code", HOST, suite=False),
    Clean("a compiled model", HOST, {"FAULT": "clean_compile"}, suite=False),
    Clean("a fused optimizer of many tensors", HOST, {"FAULT": "clean_fused", "STEPS": 120}),
)
