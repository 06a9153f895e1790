"""Small print of the findings about reproducing a run."""

from gputop_analysis.notes.note import CPU, PAIR, Note

NOTES = {
    "RE01": Note(
        "hello and context of this run and of the baseline", "no baseline", "an upgrade that is intended", PAIR
    ),
    "RE02": Note(
        "whether a seed was set, hello.flags",
        "no seed was set",
        "a run that need not be reproduced",
    ),
    "RE03": Note(
        "state of torch's CPU generator on each rank after the same update",
        "fewer than two DDP ranks; no dropout",
        "tensor parallelism, which needs the same seed",
        CPU,
    ),
    "RE04": Note(
        "the loss of both runs step by step", "no baseline; another configuration or seed", "TF32 and atomic adds", PAIR
    ),
}
