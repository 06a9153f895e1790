"""Faults of the input pipeline and of what the machine gives the run; clean runs of the trainers
people use.
"""

from fault_cases import Case, Clean

INPUT, RANKS, TOKENS, RESOURCES = "input.py", "input_ranks.py", "input_tokens.py", "resources.py"

CASES = (
    Case(
        "IN03",
        "a busy loop in the transform",
        INPUT,
        {"FAULT": "busy_workers"},
        site="input.py",
        absorbed=("IN01",),
        by_cores=True,
    ),
    Case("IN05", "workers that start anew each epoch", INPUT, {"FAULT": "epochs"}, site="input.py"),
    Case(
        "IN06",
        "one slow worker of two",
        INPUT,
        {"FAULT": "one_slow_worker"},
        site="input.py",
        title="worker 1 of 2",
        absorbed=("IN01",),
    ),
    Case(
        "IN07", "a disk of 4 MB/s", INPUT, {"FAULT": "storage"}, absorbed=("IN01",), needs="cgroup"
    ),
    Case(
        "IN10",
        "a hundred tensors a batch",
        INPUT,
        {"FAULT": "many_tensors", "STEPS": 200},
        absorbed=("IN01",),
        alone=True,
    ),
    Case(
        "IN12",
        "no DistributedSampler",
        RANKS,
        {"FAULT": "same_data"},
        rank=None,
        site="input_ranks.py",
    ),
    Case("IN13", "nearly all files open", INPUT, {"FAULT": "open_files"}, title="of 200 files"),
    Case("IN14", "one long text in eight", TOKENS, {"FAULT": "padding"}, title="7[0-9] %"),
    Case(
        "HO05",
        "a quota of 0.6 cores",
        RESOURCES,
        {"FAULT": "quota", "CPU_QUOTA": 0.6},
        needs="cgroup",
    ),
    Case(
        "HO12", "a new buffer of 48 MB each step", RESOURCES, {"FAULT": "page_faults", "STEPS": 100}
    ),
    Case(
        "HO14",
        "12 threads on the cores",
        RESOURCES,
        {"FAULT": "threads", "STEPS": 500},
        title="12 torch threads",
        absorbed=("IN04",),
        alone=True,
    ),
)

_FRAMEWORKS = (
    ("hf_trainer", "HF Trainer"),
    ("accelerate", "Accelerate"),
    ("lightning", "Lightning"),
)


def _in_suite(kind: str, workers: int) -> bool:
    """Of each trainer the run with a worker, less Accelerate's loop, which HF Trainer uses."""
    return workers > 0 and kind != "accelerate"


CLEAN = (
    Clean("a loader with one worker", INPUT, suite=False),
    Clean("texts of equal length", TOKENS, suite=False),
    Clean("two ranks with their own shards", RANKS),
    Clean("a loop that only computes", RESOURCES, suite=False),
    *(
        Clean(
            f"{name}, {workers} workers, {threads} threads",
            "input_frameworks.py",
            environment,
            _in_suite(kind, workers),
        )
        for kind, name in _FRAMEWORKS
        for workers, threads in ((0, 2), (1, 1))
        for environment in ({"KIND": kind, "WORKERS": workers, "OMP_NUM_THREADS": threads},)
    ),
)
