"""Zero-bubble schedules: the paper's formula, memory as before, searched where asked, emitted where
they exist.
"""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop.cli import main
from gputop_analysis.catalog import model
from gputop_analysis.launch.emit import LAUNCHERS, emit
from gputop_analysis.launch.strategy import NotPossible, Strategy
from gputop_analysis.planner import memory
from gputop_analysis.planner.cost import cost
from gputop_analysis.planner.hardware import cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Layouts
from gputop_analysis.planner.pipeline import bubble_seconds
from gputop_analysis.planner.space import Limits, configurations

JOB = Job(model("llama-3-8b"), seq=4096, global_batch=128)
PLAN = (
    "--model",
    "llama-3-8b",
    "--gpu",
    "H100",
    "--gpus",
    "16",
    "--global-batch",
    "128",
    "--pp",
    "4",
    "--vpp",
    "2",
)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_equal_stages_wait_as_the_paper_says(stages):
    forward, backward, weight = 1.0, 1.2, 0.9
    one = forward + backward + weight
    pp = np.array([stages])
    plain = bubble_seconds(pp, np.array([1]), stages * one, one, weight_gradient=weight)
    filled = bubble_seconds(
        pp, np.array([1]), stages * one, one, weight_gradient=weight, zero_bubble=True
    )
    assert plain[0] == pytest.approx((stages - 1) * one)
    assert filled[0] == pytest.approx((stages - 1) * (forward + backward))


@settings(max_examples=30)
@given(
    st.integers(1, 16), st.integers(1, 4), st.floats(0.1, 9), st.floats(0, 1), st.integers(1, 64)
)
def test_it_never_waits_longer_and_never_less_than_not_at_all(pp, vpp, slowest, share, micro):
    sizes = np.array([pp]), np.array([vpp]), pp * slowest, slowest, share * slowest
    plain = bubble_seconds(*sizes[:4], weight_gradient=sizes[4])
    filled = bubble_seconds(*sizes[:4], weight_gradient=sizes[4], zero_bubble=True, micro=micro)
    assert 0 <= filled[0] <= plain[0] + 1e-12
    assert plain[0] - filled[0] <= micro * share * slowest / vpp + 1e-9, (
        "no more than there is to do"
    )


def test_only_the_bubble_changes_and_the_memory_stays():
    both = Layouts.of(pp=4, dp=4, zero=1, zero_bubble=[False, True])
    parts = cost(JOB, cluster("H100", 16), both)
    for part, values in ((name, getattr(parts, name)) for name in parts.__dataclass_fields__):
        assert (values[0] == values[1]) == (part != "bubble"), part
    assert parts.bubble[1] < parts.bubble[0]
    held = memory.allocated_bytes(JOB, both)
    assert held[0] == held[1]


def test_it_is_searched_only_where_asked_and_only_in_a_pipeline():
    hardware = cluster("H100", 16)
    assert not configurations(JOB, hardware).zero_bubble.any()
    found = configurations(JOB, hardware, Limits(zero_bubble=(False, True)))
    assert found.zero_bubble.any() and (found.pp[found.zero_bubble] > 1).all()


def test_from_the_command_line_to_torchtitan(capsys):
    assert main(["plan", *PLAN, "--schedule", "zero-bubble", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["strategies"][0]
    assert best["zero_bubble"] is True and " ZB" in best["name"]
    assert (
        main(["launch", *PLAN, "--zero", "0", "--schedule", "zero-bubble", "--for", "torchtitan"])
        == 0
    )
    assert 'pipeline_parallel_schedule = "InterleavedZeroBubble"' in capsys.readouterr().out
    assert main(["launch", *PLAN, "--schedule", "zero-bubble", "--for", "megatron"]) == 2
    assert "has no zero-bubble schedule" in capsys.readouterr().err


def test_torch_knows_the_schedule_by_that_name():
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    assert schedules.get_schedule_class("InterleavedZeroBubble")


def test_launchers_without_it_refuse():
    strategy = Strategy.of(1, 8, dp=4, pp=2, vpp=2, zero_bubble=True, model=JOB.model)
    for launcher in LAUNCHERS:
        if launcher != "torchtitan":
            with pytest.raises(NotPossible, match="zero-bubble"):
                emit(strategy, launcher)
    with pytest.raises(ValueError, match="needs pipeline stages"):
        Strategy.of(1, 8, dp=8, zero_bubble=True).check()
