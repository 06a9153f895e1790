"""Runs that stand still, and runs that die."""

from fault_cases import Case, Clean

ENDS = "ends.py"
SOON = {"GPUTOP_HANG_S": 4, "WORLD": 1}

CASES = (
    Case(
        "HC02",
        "a worker waits for a lock held at the fork",
        ENDS,
        {"FAULT": "loader", **SOON},
        site="ends.py",
        title="1 of 1 workers live",
        until="stack_dump",
        exit_code=130,
    ),
    Case(
        "HC03",
        "an uninterruptible sleep in getitem",
        ENDS,
        {"FAULT": "storage", **SOON},
        site="sleep_in_the_kernel",
        title="phase data",
        until="stack_dump",
        exit_code=130,
    ),
    Case(
        "HC08",
        "an endless loop",
        ENDS,
        {"FAULT": "spin", **SOON},
        site="spin_forever",
        until="stack_dump",
        exit_code=130,
    ),
    Case(
        "HC05",
        "a tensor that outgrows the memory cgroup",
        ENDS,
        {"FAULT": "host_memory"},
        absorbed=("HC09",),
        exit_code=137,
        needs="cgroup",
    ),
    Case(
        "HC07",
        "a shared memory of 2 MiB",
        ENDS,
        {"FAULT": "shared_memory"},
        absorbed=("HC06", "HC09"),
        also=("IN01",),  # on a busy machine one worker is late for 30 ms steps
        exit_code=1,
        needs="root",
    ),
)

CLEAN = (
    Clean("a short run that ends well", ENDS, suite=False),
    Clean("one worker that keeps up", ENDS, {"FAULT": "clean_workers"}, suite=False),
)
