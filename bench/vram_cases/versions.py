"""When a run was made, by the versions and dates that its row names: what libraries did by default
then.
"""

from __future__ import annotations

import re

Month = tuple[int, int]
"""A year and a month of it."""
TORCH = {
    (1, 12): (2022, 6),
    (1, 13): (2022, 10),
    (2, 0): (2023, 3),
    (2, 1): (2023, 10),
    (2, 2): (2024, 1),
    (2, 3): (2024, 4),
    (2, 4): (2024, 7),
    (2, 5): (2024, 10),
    (2, 6): (2025, 1),
    (2, 7): (2025, 4),
    (2, 8): (2025, 8),
    (2, 9): (2025, 10),
}
"""PyTorch's releases (its ``RELEASE.md``)."""
ALPHA_MONTHS = 2
"""By which an alpha of a release is older than it."""
TORCH_2: Month = (2023, 3)
"""Since PyTorch 2.0 its optimizers update all parameters at once, and ``zero_grad`` frees
gradients.
"""
SDPA: Month = (2023, 12)
"""Since Transformers 4.36 its models take PyTorch's fused attention where they can; before, they
wrote it out.
"""
SDPA_VERSION = (4, 36)
LOSS_APART: tuple[Month, Month] = (2024, 12), (2025, 3)
"""From the first to the last of these torchtitan compiled its model without the loss (its pull
requests 755, 1033).
"""


def made(text: str) -> Month | None:
    """The month of a date or of a nightly build, else that of a release of torch; None: none is
    named.
    """
    if dated := re.search(r"(?<!\d)(20[12]\d)[-/](0[1-9]|1[0-2])(?!\d)", text):
        return int(dated[1]), int(dated[2])
    if nightly := re.search(r"dev(20[12]\d)(0[1-9]|1[0-2])\d\d", text):
        return int(nightly[1]), int(nightly[2])
    named = re.search(r"torch\D{0,4}(\d)\.(\d+)(?:\.\d+)?(a\d)?", text.lower())
    released = TORCH.get((int(named[1]), int(named[2]))) if named else None
    if not (named and released and named[3]):
        return released
    months = 12 * released[0] + released[1] - 1 - ALPHA_MONTHS
    return months // 12, months % 12 + 1


def before_sdpa(versions: str, transformers: str) -> bool:
    """Whether Transformers wrote its attention out then."""
    if found := re.match(r"(\d+)\.(\d+)", transformers):
        return (int(found[1]), int(found[2])) < SDPA_VERSION
    when = made(versions)
    return when is not None and when < SDPA


def before_torch_2(versions: str) -> bool:
    when = made(versions)
    return when is not None and when < TORCH_2


def compiles_loss(versions: str) -> bool:
    """Whether torchtitan compiled the loss with its model then."""
    when = made(versions)
    return when is None or not LOSS_APART[0] <= when <= LOSS_APART[1]


def before_chunked_loss(notes: str) -> bool:
    """Whether figures are of a README older than torchtune 0.3, of September 2024, or of a table
    that names each option that it adds.
    """
    return bool(re.search(r"README 2024-0[1-8]|flags table", notes))
