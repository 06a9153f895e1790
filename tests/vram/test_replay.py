"""What a log needs: hand-made logs with sums worked out on paper."""

import pytest
from vram_log import MIB, LogBuilder, training

from gputop_analysis.vram.answer import CATEGORIES
from gputop_analysis.vram.conf import parse
from gputop_analysis.vram.replay import Replay, peak


def small_step():
    """Weights of 100 MiB, activations of 40 and 60, a gradient of 100, then a temporary of 30 in
    the update.
    """
    build = LogBuilder().mark("init")
    build.make(100 * MIB, "weights", module="layers.0")
    build.mark("forward")
    first = build.make(40 * MIB, "activations", 0, "layers.0", "mm")
    second = build.make(60 * MIB, "activations", 1, "layers.1", "mm")
    build.mark("backward")
    gradient = build.make(100 * MIB, "gradients", 0, "layers.0", "mm_backward")
    build.free(second, first)
    build.mark("optimizer")
    build.free(build.make(30 * MIB, "temporaries", -1, "", "foreach_sqrt"))
    build.mark("zero_grad").free(gradient)
    return build.log(versions={"torch": "2.13", "python": "3.11"})


def test_the_peak_its_moment_and_what_it_consists_of():
    found = peak(small_step())
    assert found.allocated == 300 * MIB
    assert found.reserved == 300 * MIB
    assert found.operation == "backward: layers.0: mm_backward"
    assert found.breakdown == {
        "weights": 100 * MIB,
        "gradients": 100 * MIB,
        "activations": 100 * MIB,
    }
    assert found.tier == "trace"
    assert found.sources == ("traced with torch 2.13, python 3.11",)


def test_each_phase_has_its_own_highest():
    assert peak(small_step()).phases == {
        "init": 100 * MIB,
        "forward": 200 * MIB,
        "backward": 300 * MIB,
        "optimizer": 230 * MIB,
        "zero_grad": 100 * MIB,
    }


def test_layers_hold_what_the_backward_finds():
    assert peak(small_step()).layers == (("layer 0", 40 * MIB), ("layer 1", 60 * MIB))


def test_the_timeline_is_of_the_last_step_and_keeps_its_highest():
    log = training(layers=40)
    found = peak(log)
    shares, values = zip(*found.timeline, strict=True)
    assert 100 < len(values) <= 200
    assert max(values) == found.allocated
    assert list(shares) == sorted(shares)
    assert (shares[0], shares[-1] < 1) == (0, True)


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:32"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_breakdown_adds_up_exactly_whatever_the_allocator_gives_out(conf, checkpointing):
    found = peak(training(6, unit=MIB + 77, checkpointing=checkpointing), conf=parse(conf))
    assert sum(found.breakdown.values()) == found.allocated
    assert set(found.breakdown) <= set(CATEGORIES)
    assert found.allocated <= found.reserved
    assert max(found.phases.values()) == found.allocated


def test_checkpointing_never_needs_more():
    assert peak(training(8, checkpointing=True)).allocated < peak(training(8)).allocated


def test_a_block_that_is_larger_than_its_request_counts_whole():
    build = LogBuilder().mark("init")
    build.make(11 * MIB, "weights")
    found = peak(build.log())
    assert found.allocated == 12 * MIB
    assert found.breakdown == {"weights": 12 * MIB}


def test_out_of_memory_names_the_operation_and_the_retries():
    found = peak(small_step(), capacity=250 * MIB)
    assert found.oom == "backward: layers.0: mm_backward"
    assert found.retries == 1
    assert found.allocated == 200 * MIB


def test_a_capacity_that_is_enough_after_a_retry():
    """The update's 30 MiB come from the activations' segments; a larger one needs those
    given back.
    """
    build = LogBuilder().mark("forward")
    build.free(build.make(100 * MIB), build.make(50 * MIB))
    build.mark("backward").make(140 * MIB)
    found = peak(build.log(), capacity=200 * MIB)
    assert (found.oom, found.retries, found.allocated) == ("", 1, 150 * MIB)
    assert peak(build.log()).reserved == 290 * MIB
    assert peak(build.log()).fragmentation == 150 * MIB


def test_events_played_are_those_before_the_end():
    played = Replay(small_step()).played(250 * MIB)
    assert len(played.events) == 3
    assert played.oom == 4
    assert played.allocated == [100 * MIB, 140 * MIB, 200 * MIB]


def test_an_empty_log_is_refused():
    with pytest.raises(ValueError, match="no memory events"):
        peak(LogBuilder().mark("init").log())
