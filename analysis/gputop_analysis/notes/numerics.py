"""Small print of the findings about loss, gradients and parameters."""

from gputop_analysis.notes.note import CPU, Note

NOTES = {
    "NU01": Note(
        "nonfinite events, steps.loss and its flag", "the loss is not read", "masked batches without a target", CPU
    ),
    "NU02": Note(
        "steps.loss against the median of the last 100",
        "fewer than 30 losses before it",
        "a new epoch or a curriculum that is harder; a loss of both signs, which weighs rewards, is an info",
        CPU,
    ),
    "NU03": Note(
        "steps.grad_norm as clip_grad_norm_ returns it; of several steps in a record the last, or the largest if it is "
        "four times that",
        "no clipping: the norm is not computed; jumps of less than four times inside a record of several steps",
        "the warm-up's first steps",
        CPU,
    ),
    "NU04": Note(
        "skipped updates and steps.loss_scale of GradScaler",
        "no scaler; the first 200 steps",
        "the scaler's search at start",
        CPU,
    ),
    "NU05": Note(
        "steps.grad_norm against max_norm over 500 steps",
        "no clipping; fewer than 500 steps",
        "updates that are normalised on purpose",
        CPU,
    ),
    "NU06": Note(
        "steps.lr, torch's own warning about the order",
        "the learning rate is not read",
        "the warm-up's first step",
        CPU,
    ),
    "NU07": Note(
        "steps.loss in blocks over 1000 steps (Mann-Kendall, Theil-Sen)",
        "fewer than 1000 losses",
        "adversarial and reinforcement learning, whose loss need not fall",
        CPU,
    ),
    "NU08": Note(
        "parameters of the optimizer whose gradient is None, at looks 20 steps or more apart",
        "frozen parameters",
        "experts that no token was sent to",
        CPU,
    ),
    "NU09": Note(
        "a checksum of the parameters on each rank at the same step",
        "fewer than two ranks; sharded or tensor-parallel models",
        "shards that differ on purpose",
        CPU,
    ),
    "NU10": Note(
        "steps.loss of each rank at the same step; where several steps share a record, steps.loss_max in equal groups",
        "fewer than three ranks; losses not read; fewer than 50 steps or groups that all ranks have",
        "shards of different domains",
        CPU,
    ),
    "NU11": Note(
        "whether gradients are zero when the first backward after an update begins, at looks 20 steps or more apart",
        "fewer than three looks",
        "gradient accumulation",
        CPU,
    ),
    "NU12": Note(
        "values of a sampled bfloat16 tensor before and after an update",
        "weights that are not bfloat16; fewer than three looks",
        "the end of a decay, frozen layers",
        CPU,
    ),
    "NU13": Note(
        "4096 values of up to eight gradients just before an update, at looks 20 steps or more apart",
        "fewer than three looks; gradients that are sparse, sharded or of a tensor subclass",
        "a problem that is solved, a hinge loss that is met",
        CPU,
    ),
}
