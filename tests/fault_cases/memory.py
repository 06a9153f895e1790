"""Memory: what is kept, and what evaluation wastes. Findings that need a GPU are tested on built
records.
"""

from fault_cases import Case, Clean

ONE, WORKERS = "memory.py", "memory_workers.py"

CASES = (
    Case(
        "ME02",
        "losses kept with their graphs",
        ONE,
        {"FAULT": "graphs", "STEPS": 300},
        title="graphs are kept",
        absorbed=("ME05",),
    ),
    Case(
        "ME02",
        "batches kept on a list",
        ONE,
        {"FAULT": "tensors", "STEPS": 300},
        absorbed=("ME05",),
    ),
    Case("ME05", "a history of strings that grows", ONE, {"FAULT": "objects"}),
    Case(
        "ME05",
        "the same in a container that it fills",
        ONE,
        {"FAULT": "objects", "MEMORY_MIB": 3072, "STEPS": 500},
        title="the container's limit is full in",
        needs="cgroup",
    ),
    Case(
        "ME05",
        "workers that copy the pages of Python objects",
        WORKERS,
        {"FAULT": "objects"},
        site=r"memory_workers\.py:\d+",
        title="the loader's 2 workers",
    ),
    Case(
        "ME09",
        "gradients zeroed and not freed",
        ONE,
        {"FAULT": "zero_grad", "WIDTH": 1312, "BATCH": 8, "STEPS": 90},
        severity=("info",),
    ),
    Case(
        "ME10",
        "an evaluation with gradients enabled",
        ONE,
        {"FAULT": "eval_graph"},
        title="forwards built a graph",
    ),
)

CLEAN = (
    Clean("a cache that fills, and evaluations without gradients", ONE, {"FAULT": "clean_cache"}),
    Clean("workers that read an array", WORKERS),
)
