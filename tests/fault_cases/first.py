"""The faults of the first findings."""

from fault_cases import Case, Clean

ONE, RANKS = "one.py", "ranks.py"

CASES = (
    Case(
        "IN02",
        "a sleep in __getitem__",
        ONE,
        {"FAULT": "slow_getitem"},
        site="one.py",
        absorbed=("IN01",),
    ),
    Case("IN01", "too few workers", ONE, {"FAULT": "few_workers"}, by_cores=True),
    Case("IN04", "six spinning processes", ONE, {"FAULT": "spinners", "STEPS": 200}, alone=True),
    Case("HO03", "garbage collection of many objects", ONE, {"FAULT": "gc", "STEPS": 100}),
    Case("HO04", "a thread that holds the GIL", ONE, {"FAULT": "gil", "STEPS": 300}, site="busy_thread"),
    Case("HO06", "a sleep after the step", ONE, {"FAULT": "host_sleep"}, site="log_metrics"),
    Case("HO07", "a checkpoint every ten steps", ONE, {"FAULT": "checkpoint"}),
    Case("HO08", "an evaluation every five steps", ONE, {"FAULT": "eval"}),
    Case("NU01", "a loss that becomes NaN", ONE, {"FAULT": "nan"}, title="step 60 "),
    Case("NU02", "a loss that jumps", ONE, {"FAULT": "spike"}, title=r"steps? 1[12]\d"),
    Case("ME02", "a list that grows", ONE, {"FAULT": "leak", "STEPS": 500}, absorbed=("ME05",), suite=False),
    Case("HC09", "exit with code 3", ONE, {"FAULT": "exit3", "STEPS": 90}, title="exit 3", exit_code=3),
    Case("HC09", "killed by SIGKILL", ONE, {"FAULT": "kill9", "STEPS": 90}, title="SIGKILL", exit_code=137),
    Case("HC06", "an exception", ONE, {"FAULT": "raise", "STEPS": 90}, title="a shard is missing", exit_code=1),
    Case("CR01", "a slow backward on one of two ranks", RANKS, {"FAULT": "backward", "WORLD": 2}, rank=1),
    Case(
        "CR01", "a slow backward on one of three ranks", RANKS, {"FAULT": "backward", "WORLD": 3}, rank=1, suite=False
    ),
    Case("CR02", "a slow forward on one of two ranks", RANKS, {"FAULT": "forward", "WORLD": 2}, rank=1),
    Case(
        "IN11",
        "slow batches on one of three ranks",
        RANKS,
        {"FAULT": "data", "WORLD": 3},
        rank=1,
        absorbed=("CR03",),
    ),
    Case("CR04", "slow host code on one of two ranks", RANKS, {"FAULT": "host", "WORLD": 2}, rank=1),
    Case(
        "CR04",
        "a slow optimizer on one of two ranks",
        RANKS,
        {"FAULT": "optimizer", "WORLD": 2},
        rank=1,
        title="optimizer",
        suite=False,
    ),
    Case("CR05", "batches of random length", RANKS, {"FAULT": "lengths", "STEPS": 200}, rank=None),
    Case(
        "HC06",
        "an exception on one of two ranks",
        RANKS,
        {"FAULT": "raise", "STEPS": 60},
        rank=1,
        title="disk quota exceeded",
        absorbed=("HC09",),
        exit_code=1,
    ),
    Case(
        "HC01",
        "a rank that stops",
        RANKS,
        {"FAULT": "hang", "GPUTOP_HANG_S": 4},
        rank=1,
        site="ranks.py",
        until="stack_dump",
        exit_code=130,
    ),
)

CLEAN = (
    Clean("a plain loop", ONE),
    Clean("workers that keep up", ONE, {"FAULT": "clean_workers"}, suite=False),
    Clean("one evaluation", ONE, {"FAULT": "clean_rare_eval"}, suite=False),
    Clean("one checkpoint", ONE, {"FAULT": "clean_one_checkpoint"}, suite=False),
    Clean("gradient accumulation", ONE, {"FAULT": "clean_accumulation"}, suite=False),
    Clean("autocast", ONE, {"FAULT": "clean_autocast"}, suite=False),
    Clean("a loop without DataLoader", ONE, {"FAULT": "clean_get_batch"}, suite=False),
    Clean("steps of a millisecond", ONE, {"FAULT": "clean_tiny", "WIDTH": 16, "BATCH": 8, "STEPS": 1500}),
    Clean("two ranks", RANKS, {"WORLD": 2}),
    Clean("three ranks", RANKS, {"WORLD": 3, "STEPS": 80}, suite=False),
)
