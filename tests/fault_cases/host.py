"""Faults of the Python side of a training."""

from pathlib import Path

from fault_cases import Case, Clean

HOST = "host.py"
_TEXT = (Path(__file__).parents[1] / "faults" / "scripts" / HOST).read_text()


def _line_with(words: str) -> str:
    """The site of the script's one line with these words."""
    (number,) = (n for n, line in enumerate(_TEXT.splitlines(), 1) if words in line)
    return rf"host\.py:{number}$"


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
        site=_line_with("set_detect_anomaly("),
    ),
    Case(
        "HO16",
        "torch.profiler around the whole training",
        HOST,
        {"FAULT": "profiler", "STEPS": 400},
        title="profiler",
        site=_line_with("profiler.profile("),
    ),
)

CLEAN = (
    Clean("a small training on host code", HOST, suite=False),
    Clean("a compiled model", HOST, {"FAULT": "clean_compile"}, suite=False),
    Clean("a fused optimizer of many tensors", HOST, {"FAULT": "clean_fused", "STEPS": 120}),
)
