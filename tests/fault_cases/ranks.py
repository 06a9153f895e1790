"""Faults of communication."""

from fault_cases import Case, Clean

COMM = "ranks_comm.py"

CASES = (
    Case(
        "CR02",
        "a slow rank of a sharded model",
        "sharded.py",
        {"FAULT": "slow"},
        rank=1,
        title="rank 1 is slow",
    ),
    Case("CR06", "a slow link", COMM, {"FAULT": "slow_link"}, rank=None, title="communication"),
    Case(
        "CR07",
        "all-reduce after every micro-batch",
        COMM,
        {"FAULT": "accumulate"},
        rank=None,
        title="4.0 times",
        alone=True,
    ),
    Case(
        "CR08", "a search for unused parameters", COMM, {"FAULT": "unused"}, rank=None, alone=True
    ),
    Case("CR10", "DataParallel", COMM, {"FAULT": "data_parallel"}, severity=("info",)),
    Case(
        "CR12",
        "a broadcast against an all-reduce",
        COMM,
        {"FAULT": "mismatch", "GPUTOP_HANG_S": 4},
        rank=1,
        title="rank 1 calls broadcast",
        until="flight_recorder",
        exit_code=130,
    ),
    Case(
        "CR13",
        "stages of unequal time",
        "pipeline.py",
        {"FAULT": "uneven"},
        rank=None,
        title="pipeline stages idle",
        absorbed=("CR02",),
        alone=True,
    ),
    Case(
        "CR14",
        "one expert gets most tokens",
        COMM,
        {"FAULT": "experts"},
        rank=None,
        title="expert 0",
    ),
    Case(
        "NU09",
        "no_sync the wrong way round",
        COMM,
        {"FAULT": "last_unsynced"},
        rank=None,
        title="DDP replicas differ",
        site="ranks_comm.py:",
        alone=True,
    ),
    Case(
        "CR16",
        "a bucket for each layer",
        COMM,
        {"FAULT": "small_buckets"},
        rank=None,
        title="where 1 would do",
        also=("CR06",),
    ),
)

CLEAN = (
    Clean("two ranks with a small model", COMM, suite=False),
    Clean("accumulation with no_sync", COMM, {"FAULT": "clean_no_sync"}),
    Clean("two ranks of a sharded model", "sharded.py"),
    Clean("two pipeline stages in balance", "pipeline.py"),
    Clean("experts in balance", COMM, {"FAULT": "clean_experts"}),
)
