"""Faults of other shapes, each with a clean twin that is a near miss."""

from pathlib import Path

from fault_cases import Case, Clean

SHAPES, RANKS = "shapes.py", "shapes_ranks.py"
_LINES = (Path(__file__).parents[1] / "faults" / "scripts" / SHAPES).read_text().splitlines()
_MEAN = next(number for number, text in enumerate(_LINES, 1) if text.endswith("# the mean"))
_ERRORS = next(number for number, text in enumerate(_LINES, 1) if text.endswith("# the errors"))
_ROWS = next(number for number, text in enumerate(_LINES, 1) if text.endswith("# the rows"))
LOADER = ("IN01", "IN02", "IN03")

CASES = (
    Case(
        "IN15",
        "a loader built at each step",
        SHAPES,
        {"FAULT": "loader_each_step", "STEPS": 80},
        site="shapes.py",
    ),
    Case(
        "IN15",
        "a loader with a worker built at each step",
        SHAPES,
        {"FAULT": "workers_each_step", "STEPS": 60},
        site="shapes.py",
        title="at each step",
        suite=False,
    ),
    Case(
        "IN15",
        "epochs of four steps with a worker each",
        SHAPES,
        {"FAULT": "loader_each_few_steps", "STEPS": 120},
        title="every 4 steps",
    ),
    Case(
        "IN16",
        "workers that each go through all data",
        SHAPES,
        {"FAULT": "workers_repeat"},
        site="shapes.py",
        title="2 workers",
        also=LOADER,
        suite=False,
    ),
    Case(
        "NU04",
        "every update is skipped",
        SHAPES,
        {"FAULT": "all_skipped", "STEPS": 120},
        title="100 %",
        absorbed=("CE03",),
    ),
    Case(
        "CE11",
        "hooks that pile up",
        SHAPES,
        {"FAULT": "hooks_pile_up", "STEPS": 1400},
        title="slower and slower",
        also=("ME05",),  # each hook's history keeps 64 MB by the end
    ),
    Case("NU06", "a learning rate that vanishes", SHAPES, {"FAULT": "lr_vanishes", "STEPS": 200}),
    Case(
        "NU06",
        "a group of weights with a learning rate of 0",
        SHAPES,
        {"FAULT": "group_at_rest"},
        title="of the parameters is 0",
        site=r"shapes\.py:\d+",
        severity=("medium",),
    ),
    Case(
        "NU19",
        "gradients cleared for each batch",
        SHAPES,
        {"FAULT": "cleared_each_batch"},
        title="3 of 4 backwards",
        site=r"shapes\.py:\d+",
    ),
    Case(
        "NU01",
        "a mean of no rows",
        SHAPES,
        {"FAULT": "mean_of_none"},
        title="div after",
        site=rf"shapes\.py:{_MEAN}$",
    ),
    Case(
        "NU20",
        "each prediction against each target",
        SHAPES,
        {"FAULT": "crossed"},
        title="errors of 64 x 64 from predictions of 64 x 1",
        site=rf"shapes\.py:{_ERRORS}$",
    ),
    Case(
        "NU15",
        "a cosine that goes back up",
        SHAPES,
        {"FAULT": "cosine_swings", "STEPS": 300},
        title="every 40 steps",
        suite=False,
    ),
    Case("NU14", "a model left in eval mode", SHAPES, {"FAULT": "left_in_eval"}),
    Case(
        "NU21",
        "an evaluation in training mode",
        SHAPES,
        {"FAULT": "scored_in_training"},
        site=r"shapes\.py:\d+",
    ),
    Case("NU22", "data in the order of their classes", SHAPES, {"FAULT": "by_kind"}),
    Case(
        "NU08",
        "an optimizer that never steps",
        SHAPES,
        {"FAULT": "judge_never_steps"},
        title="has not stepped",
    ),
    Case("NU13", "units that are dead", SHAPES, {"FAULT": "dead_relus"}),
    Case(
        "NU13",
        "a loss that does not see the model",
        SHAPES,
        {"FAULT": "loss_without_model"},
        absorbed=("NU08",),
        suite=False,
    ),
    Case(
        "NU08",
        "an optimizer of a copy",
        SHAPES,
        {"FAULT": "wrong_parameters"},
        title="100.0 %",
        severity=("high",),
    ),
    Case(
        "NU07",
        "a loss that runs away in 90 steps",
        SHAPES,
        {"FAULT": "runs_away", "STEPS": 90},
        title="runs away",
    ),
    Case(
        "HO06",
        "values taken out one by one",
        SHAPES,
        {"FAULT": "item_loop", "STEPS": 300},
        site="shapes.py",
    ),
    Case(
        "HO17",
        "a layer that goes row by row",
        SHAPES,
        {"FAULT": "by_rows", "STEPS": 1200},
        site="ByRows|shapes.py",
        suite=False,
    ),
    Case(
        "HO18",
        "a recurrent net asked row by row",
        SHAPES,
        {"FAULT": "rows_asked", "STEPS": 200},
        site=rf"shapes\.py:{_ROWS}$",
        title="32 rows",
    ),
    Case(
        "HC10",
        "a thread that dies",
        SHAPES,
        {"FAULT": "clean_thread_dies"},
        severity=("info",),
        site="report",
    ),
    Case(
        "CR15",
        "one rank with longer texts",
        RANKS,
        {"FAULT": "longer_texts", "SHORT": 64, "LONG": 3, "STEPS": 200},
        rank=1,
        title="larger batches",
    ),
)

CLEAN = (
    Clean("a loader built anew each epoch", SHAPES, {"FAULT": "clean_loader_each_epoch"}),
    Clean(
        "a scaler that searches its scale", SHAPES, {"FAULT": "clean_some_skipped", "STEPS": 250}
    ),
    Clean(
        "a rate that decays a thousandfold",
        SHAPES,
        {"FAULT": "clean_lr_decays", "STEPS": 250},
        suite=False,
    ),
    Clean("one value taken out a step", SHAPES, {"FAULT": "clean_one_item"}, suite=False),
    Clean(
        "a moving average of the weights",
        SHAPES,
        {"FAULT": "clean_average", "STEPS": 300},
        suite=False,
    ),
    Clean("a long evaluation", SHAPES, {"FAULT": "clean_long_evaluation", "GPUTOP_HANG_S": 4}),
    Clean(
        "anomaly mode while torch compiles", SHAPES, {"FAULT": "clean_compile_anomaly"}, suite=False
    ),
    Clean("a collection while torch compiles", SHAPES, {"FAULT": "clean_compile_gc"}),
    Clean(
        "a recurrent net that goes on from its own answer",
        SHAPES,
        {"FAULT": "clean_goes_on", "STEPS": 200},
    ),
    Clean("two networks that learn in turn", SHAPES, {"FAULT": "clean_in_turn"}),
    Clean("data sorted by class, and shuffled", SHAPES, {"FAULT": "clean_leaves"}),
    Clean("predictions and targets of one shape", SHAPES, {"FAULT": "clean_prices"}),
    Clean("masks of dropout drawn beside an evaluation", SHAPES, {"FAULT": "clean_scored"}),
    Clean("four batches an update", SHAPES, {"FAULT": "clean_gathered"}),
    Clean("texts of one length on two ranks", RANKS, suite=False),
)
