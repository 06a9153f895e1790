"""Faults of what is computed."""

from fault_cases import Case, Clean

COMPUTE = "compute.py"

CASES = (
    Case(
        "CE03", "float16 with a GradScaler on a CPU", COMPUTE, {"FAULT": "fp16_scaler", "STEPS": 60}
    ),
    Case("CE07", "gradients of gradients at each step", COMPUTE, {"FAULT": "double_backward"}),
    Case(
        "CE10",
        "a batch of another size each time",
        COMPUTE,
        {"FAULT": "shapes"},
        severity=("info",),
    ),
    Case(
        "CE11",
        "a forward that gets slower half way",
        COMPUTE,
        {"FAULT": "slower", "STEPS": 400},
        title=r"since step (19\d|20\d)$",
    ),
    Case(
        "CE14",
        "a critic's loss that trains the generator in vain",
        "two_networks.py",
        {"FAULT": "undetached"},
        site=r"two_networks\.py",
    ),
    Case(
        "CE15",
        "texts to train on, drawn without a cache",
        "drawn_texts.py",
        {"FAULT": "whole"},
        site=r"drawn_texts\.py",
    ),
)

CLEAN = (
    Clean("a small training", COMPUTE, suite=False),
    Clean("bfloat16 with a GradScaler that is off", COMPUTE, {"FAULT": "clean_bf16"}, suite=False),
    Clean("a GAN whose critic is given what is detached", "two_networks.py"),
    Clean("texts to train on, drawn with a cache", "drawn_texts.py"),
    Clean("batches of three sizes", COMPUTE, {"FAULT": "clean_buckets"}),
    Clean("a batch that grows on purpose", COMPUTE, {"FAULT": "clean_larger_batch"}, suite=False),
)
