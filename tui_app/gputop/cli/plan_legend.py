"""What the short words of a plan mean, for its help and below its table."""

from __future__ import annotations

import re

_WORDS: tuple[tuple[str, str], ...] = (
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
LEGEND = "; ".join(said for _, said in _WORDS)


def legend(text: str) -> str:
    """What the short words that occur in ``text`` mean."""
    return "; ".join(meaning for pattern, meaning in _WORDS if re.search(pattern, text))
