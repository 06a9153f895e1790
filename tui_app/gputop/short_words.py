"""What short words mean, once for every screen and for the help of ``gputop plan``."""

from __future__ import annotations

import re

PLAN: tuple[tuple[str, str], ...] = (
    (r"\bDP\d", "DPn: n ranks with other data each"),
    (r"\bTP\d", "TPn: each layer over n GPUs"),
    (r"\bPP\d+x\d", "PPnxm: the layers in n stages of m interleaved parts"),
    (r"\bPP\d+(?!\d*x)", "PPn: the layers in n stages"),
    (r"\bCP\d", "CPn: each sequence over n GPUs"),
    (r"\bEP\d", "EPn: the experts over n GPUs"),
    (r"\bHSDP\d", "HSDPnxm: n copies, each sharded over m GPUs"),
    (r"\bFSDP", "FSDP: weights, gradients and optimizer sharded"),
    (r"ZeRO-\d", "ZeRO-n: its stage n"),
    (r"\bmb\d", "mbn: n sequences a micro-batch"),
    (r"\brc:", "rc: activations recomputed, in part or in full"),
    (r"\btight\b", "tight: fits with little to spare"),
    (r"\bMFU\b", "MFU: model FLOPs / what the GPUs could do"),
)
"""Patterns of words in a plan, each with its meaning."""
SCREENS: tuple[tuple[str, str], ...] = (
    *PLAN,
    (r"▲\d", "▲ tight: fits with little to spare"),
    (r"≈ +\d+ GB", "≈: uncertain, or only some GPUs of this size"),
    (r"(?m)\bjust$", "just: once the allocator has given its cache back"),
    (r"\blikely \d", "likely: nine of ten measurements lay between"),
    (r"\btrace tier\b", "trace tier: the modules themselves, run on fake tensors"),
    (r"\bprofile tier\b", "profile tier: sized from a recorded step of such a model"),
    (r"\bformula tier\b", "formula tier: computed from the model's shape"),
    (r"\$/Mtok\b", "$/Mtok: rent of a million tokens"),
    (r"\bof now\b", "of now: so many times the run's speed"),
    (r"\bstep\b", "step: one pass of the loop up to its last optimizer update"),
    (r"\bp50\b", "p50: the median"),
    (r"\bp95\b", "p95: 19 of 20 take less"),
    (r"\bown\b", "own: a rank's work without its waiting"),
    (r"\bwaits?\b", "wait: in communication, for other ranks or the network"),
    (r"\bcore waits\b", "core waits: ready to run while other threads have the cores"),
    (r"\bh2d\b", "h2d: batches on their way to the device"),
    (r"\bother\b", "other: host code between the phases"),
    (r"\bvs median\b", "vs median: own work against the median rank's"),
    (r"\bvs peer\b", "vs peer: own work against the other rank's"),
    (r"\bslow in\b", "slow in: phase that is above the median rank's"),
    (r"\bslowest +slow in\b", "slowest: part of the steps that the rank set"),
    (r"\bLR\b|\blr\b", "lr: learning rate"),
    (r"\bRSS\b", "RSS: memory of the process on the host"),
    (r"\bTF/\$", "TF/$: TFLOP/s for a dollar an hour"),
)
LEGEND = "; ".join(meaning for _, meaning in PLAN)


def legend(text: str) -> str:
    """What the short words of a plan that occur in ``text`` mean."""
    return "; ".join(meanings(text, PLAN))


def meanings(text: str, words: tuple[tuple[str, str], ...] = SCREENS) -> list[str]:
    """Of exactly those words that occur in ``text``, each once."""
    matching = [meaning for pattern, meaning in words if re.search(pattern, text)]
    names = [meaning.removeprefix("▲ ").partition(":")[0] for meaning in matching]
    return [meaning for i, meaning in enumerate(matching) if names[i] not in names[:i]]
