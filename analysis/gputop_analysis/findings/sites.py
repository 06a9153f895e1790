"""Where in the user's code a phase's time goes, from the agent's stack samples."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gputop_analysis.view import RunView

Event = dict[str, Any]

TRAINERS = ("transformers/trainer", "accelerate/", "lightning/", "pytorch_lightning/", "trl/", "deepspeed/")
"""Packages that own the loop: what they do between the phases is theirs, and no line of the user's can spare it."""


@dataclass(frozen=True, slots=True)
class Site:
    """The line that was seen most often."""

    site: str
    """``train.py:118 get_batch``"""
    share: float
    """Of the phase's samples, 0 to 1."""
    samples: int
    torch_share: float = 0.0
    """Of the phase's samples, those inside torch: a loss function or zero_grad, which are work and no overhead."""
    detail: str = ""
    """Library line that it was waiting in most often, if it was in one."""
    trainers_share: float = 0.0
    """Of the phase's samples, those inside a trainer's own code."""

    def __str__(self) -> str:
        inside = f", inside {self.detail}" if self.detail else ""
        return f"{self.site}{inside} ({self.share * 100:.0f} % of {self.samples} stack samples)"


def top_site(view: RunView, phase: str, rank: int | None = None) -> Site | None:
    """Most sampled line of a phase, on one rank or on all; None with fewer than 5 samples."""
    ours: Counter[str] = Counter()
    in_torch: Counter[str] = Counter()
    insides: Counter[tuple[str, str]] = Counter()
    for event in view.events("stacks", rank=rank):
        for sample in event.get("samples", ()) if event.get("phase") == phase else ():
            site = f"{sample.get('site') or ''} {sample.get('function') or ''}".strip()
            inside = str(sample.get("inside") or "")
            if site:
                (in_torch if _is_tensor_work(sample) else ours)[site] += int(sample.get("count", 1))
                insides[site, inside] += int(sample.get("count", 1))
    total = ours.total() + in_torch.total()
    if total < 5:
        return None
    site, count = (ours or in_torch).most_common(1)[0]
    counted = {inside: n for (at, inside), n in insides.items() if at == site}
    in_trainers = sum(n for (_, inside), n in insides.items() if inside.startswith(TRAINERS))
    detail = max(counted, key=lambda inside: counted[inside])
    return Site(site, count / total, total, in_torch.total() / total, detail, in_trainers / total)


def samples_where(view: RunView, phase: str, rank: int, wanted: Callable[[Event], bool]) -> tuple[int, int]:
    """Stack samples of a phase on a rank: those that are wanted, and all of them."""
    samples = [one for e in view.events("stacks", rank=rank) if e.get("phase") == phase for one in e.get("samples", ())]
    counts = [(wanted(one), int(one.get("count", 1))) for one in samples]
    return sum(n for chosen, n in counts if chosen), sum(n for _, n in counts)


_READS_OUT = re.compile(r"\.(item|tolist)\(")
_UPDATES = re.compile(r"\.(add|addcdiv|addcmul|addmm|clamp|copy|div|fill|lerp|mul|sub|zero)_\(|=.*\.data\b")
_INDEXING = "torch/_C operator"
_BY_ROWS = "torch/_tensor.py"
"""Iterating over a tensor in Python ends in its ``__iter__``."""


def _is_tensor_work(sample: Event) -> bool:
    """Whether a line does work that the training needs, inside torch or by updating tensors in place.

    Not where it takes values out of tensors one by one, whatever part of that the samples fell into.
    """
    inside, code = str(sample.get("inside") or ""), str(sample.get("code") or "")
    if (inside in ("", _INDEXING) and _READS_OUT.search(code)) or (inside.startswith(_BY_ROWS) and inside.endswith("__iter__")):
        return False
    return inside.startswith("torch/") or bool(_UPDATES.search(code))


def user_line(frames: list[str]) -> str | None:
    """The innermost of a dump's ``file:line function`` frames that is neither torch's nor the standard library's."""
    for frame in frames:
        file = frame.partition(":")[0]
        is_library = file.startswith(("torch/", "<")) or ("/" not in file and file[:-3] in sys.stdlib_module_names)
        if not is_library:
            return frame
    return frames[0] if frames else None
