"""Numerics and reproducibility: gradients, schedules, precision, ranks that differ."""

from fault_cases import Case, Clean

ONE, RANKS = "numerics.py", "numerics_ranks.py"

CASES = (
    Case(
        "NU03",
        "a gradient 2000 times too large",
        ONE,
        {"FAULT": "grad_spike"},
        title=r"jumps to .* 1[45]\d",
    ),
    Case("NU04", "every eighth gradient overflows", ONE, {"FAULT": "skips", "STEPS": 400}),
    Case(
        "NU05",
        "a max_norm of 0.001",
        ONE,
        {"FAULT": "clipped", "STEPS": 800},
        title="max_norm 0.001",
    ),
    Case(
        "NU06",
        "a schedule half as long as the run",
        ONE,
        {"FAULT": "lr_zero"},
        title=r"since step (12[01]|1[2-9]\d at the latest):",
    ),
    Case(
        "NU06",
        "the scheduler before the optimizer",
        ONE,
        {"FAULT": "scheduler_first"},
        severity=("info",),
    ),
    Case(
        "NU07",
        "data that drifts away",
        ONE,
        {"FAULT": "diverge", "STEPS": 8000},
        title="the loss rises",
    ),
    Case("NU08", "a head that no loss needs", ONE, {"FAULT": "unused"}, title="pooler.weight"),
    Case(
        "NU09",
        "weights changed on one rank",
        RANKS,
        {"FAULT": "drift"},
        rank=None,
        title="since update 50",
        alone=True,
    ),
    Case(
        "NU09",
        "weights of their own on ranks that sum gradients by hand",
        RANKS,
        {"FAULT": "never_equal"},
        rank=None,
        title="were never equal",
        alone=True,
    ),
    Case(
        "NU09",
        "a head that DDP does not have",
        RANKS,
        {"FAULT": "outside"},
        rank=None,
        title="outside of DDP",
        site="numerics_ranks.py:",
        alone=True,
    ),
    Case(
        "NU10",
        "bad labels on one of three ranks",
        RANKS,
        {"FAULT": "bad_shard", "WORLD": 3},
        rank=1,
        alone=True,
    ),
    Case("NU11", "no zero_grad", ONE, {"FAULT": "no_zero_grad"}),
    Case("NU12", "bf16 weights and a learning rate of 1e-6", ONE, {"FAULT": "bf16"}, alone=True),
    Case(
        "RE01",
        "a variable that the baseline was run without",
        "one.py",
        {"NCCL_DEBUG": "WARN"},
        title="NCCL_DEBUG",
        severity=("info",),
        baseline=True,
    ),
    Case(
        "RE04",
        "another learning rate after the baseline's 60th step",
        "one.py",
        {"FAULT": "other_rate"},
        title="at step (6[1-9]|7[0-9]),",
        severity=("info",),
        baseline=True,
    ),
    Case("RE05", "one seed that each step sets", ONE, {"FAULT": "reseeded"}, site="numerics.py:"),
    Case(
        "RE03",
        "one seed for all ranks",
        RANKS,
        {"FAULT": "same_random"},
        rank=None,
        site="numerics_ranks.py:",
        severity=("info",),
        alone=True,
    ),
)

CLEAN = (
    Clean("a seed, and cudnn.benchmark on, without a GPU", ONE, {"FAULT": "benchmark"}),
    Clean(
        "clipping, loss scaling and a cosine schedule",
        ONE,
        {"FAULT": "clean_schedule", "STEPS": 800},
    ),
    Clean("a seed of its own for each step", ONE, {"FAULT": "clean_reseeded"}),
    Clean("bf16 weights that learn", ONE, {"FAULT": "clean_bf16"}, suite=False),
    Clean("two ranks with their own dropout", RANKS),
    Clean(
        "ranks that sum gradients by hand from the weights of one", RANKS, {"FAULT": "made_equal"}
    ),
    Clean("a head whose gradients are summed beside DDP's", RANKS, {"FAULT": "outside_summed"}),
)
