"""The estimator as a picture at the three designed sizes; its answer is fixed, only the drawing can
change it.
"""

from __future__ import annotations

import pytest

from gputop import api
from gputop.app.estimator import EstimatorApp
from gputop_analysis import catalog
from gputop_analysis.vram.answer import Peak
from gputop_analysis.vram.estimate import Estimate
from gputop_analysis.vram.fits import Fit
from gputop_analysis.vram.levers import Lever
from gputop_analysis.vram.options import setup_of

GIB = 1 << 30
PARTS = {
    "weights": 15,
    "gradients": 15,
    "optimizer": 30,
    "activations": 6,
    "logits_loss": 3,
    "temporaries": 1,
}


def fixed(setup, *_, **__):
    """An answer that depends on the sequence length only."""
    factor = setup.seq / 4096
    breakdown = {
        name: round(size * GIB * (factor if name == "activations" else 1))
        for name, size in PARTS.items()
    }
    allocated = sum(breakdown.values())
    course = tuple(
        (i / 50, round(allocated * (0.7 + 0.3 * (1 - abs(i - 30) / 30)))) for i in range(50)
    )
    reserved = allocated + 2 * GIB
    total = reserved + round(0.6 * GIB)
    phases = {"forward": 50 * GIB, "backward": 60 * GIB, "optimizer": allocated}
    named = [
        (spec.name, spec.usable_bytes)
        for spec in catalog.gpus()
        if spec.name in ("L40S", "H100-NVL-94GB", "T4")
    ]
    return Estimate(
        setup=setup,
        peak=Peak(
            "profile",
            allocated,
            reserved,
            breakdown,
            "optimizer: step: _foreach_sqrt",
            phases,
            course,
        ),
        context=round(0.6 * GIB),
        nccl=0,
        interval_pct=(-3.0, 5.0),
        fits=tuple(Fit(name, memory, memory >= total, memory - total) for name, memory in named),
        levers=(
            Lever("fused AdamW", setup, reserved - 15 * GIB, 15 * GIB, "A100-PCIe-80GB", 79 * GIB),
        ),
        gpu="H100-NVL-94GB",
        max_micro_batch=2,
    )


@pytest.fixture(autouse=True)
def _fixed(monkeypatch, tmp_path):
    monkeypatch.setattr(api, "answer", fixed)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def app(theme="gputop-dark"):
    made = EstimatorApp(
        setup_of(catalog.model("llama-3-8b"), {"seq": 4096, "checkpointing": "full"})
    )
    made.theme = theme
    return made


def after(*keys):
    async def run(pilot):
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
            await pilot.app.workers.wait_for_complete()
            await pilot.pause()

    return run


@pytest.mark.parametrize(
    "size", [(80, 24), (120, 40), (200, 50)], ids=["80x24", "120x40", "200x50"]
)
def test_answer(snap_compare, size):
    assert snap_compare(app(), terminal_size=size, run_before=after())


def test_compared(snap_compare):
    keys = ("down", "down", "b", "right", "tab")
    assert snap_compare(app(), terminal_size=(120, 40), run_before=after(*keys))


def test_light(snap_compare):
    assert snap_compare(app("gputop-light"), terminal_size=(120, 40), run_before=after())
