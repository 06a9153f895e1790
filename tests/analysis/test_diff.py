"""Two runs compared: no false alarm on one thing twice, the slower one named with phase and rank,
where losses part.
"""

import json

import numpy as np
import pytest
from analysis_support import Builder
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_agent import wire
from gputop_analysis.diff import compare, diff_data, diff_text
from gputop_analysis.diff.blocks import COLUMNS, blocks_of
from gputop_analysis.view import RunView


def run(
    path, steps=200, noise=0.03, seed=0, ranks=1, wait_ms=None, hello=None, each=None, **phases
):
    """A finished run; ``each(rank)`` adds to the phases of a rank."""
    builder = Builder(path)
    random = np.random.default_rng(seed)
    for rank in range(ranks):
        builder.hello(rank, world_size=ranks, **(hello or {}))
        mine = {**phases, **(each(rank) if each else {})}
        for _ in range(steps):
            drawn = {k: v * random.gamma(1 / noise**2, noise**2) for k, v in mine.items()}
            builder.step(rank, wait_ms=wait_ms(rank) if wait_ms else None, **drawn)
    builder.end()
    return builder.open()


def test_the_same_thing_twice_is_no_regression(tmp_path):
    a = run(tmp_path / "a", seed=1, forward=5, backward=10, other=1)
    b = run(tmp_path / "b", seed=2, forward=5, backward=10, other=1)
    found = compare(a, b)
    assert found.judgement == "no difference"
    assert found.exit_code == 0
    assert abs(found.speed.slower.value) < 0.02


def test_runs_shorter_than_a_load_lasts_are_no_proof_of_a_few_percent(tmp_path):
    """150 steps of one training, 5.0 ms each, took 6.4 ms beside the programs of others."""
    a = run(tmp_path / "a", steps=150, seed=1, forward=5)
    b = run(tmp_path / "b", steps=150, seed=2, forward=5.6)
    assert compare(a, b).judgement == "no difference"
    longer_a = run(tmp_path / "longer a", steps=600, seed=1, forward=5)
    longer_b = run(tmp_path / "longer b", steps=600, seed=2, forward=5.6)
    assert compare(longer_a, longer_b).is_regression


@pytest.mark.parametrize("persistence", [0.0, 0.9, 0.98])
def test_false_alarms_stay_rare_whatever_the_autocorrelation(tmp_path, persistence):
    """Step times of two runs from one process with noise of 20 %: how often is one called 5 %
    slower?
    """
    alarms, pairs = 0, 40
    random = np.random.default_rng(0)
    records = []
    for number in range(2 * pairs):
        builder = Builder(tmp_path / str(number))
        level = 0.0
        for _ in range(150):
            level = persistence * level + np.sqrt(1 - persistence**2) * random.normal()
            builder.step(forward=10 * np.exp(0.2 * level))
        records.append(builder.open())
    for a, b in zip(records[::2], records[1::2], strict=True):
        alarms += compare(a, b).is_regression
    assert alarms <= 3, f"{alarms} of {pairs}"


def test_a_slower_phase_is_found_with_its_size(tmp_path):
    a = run(tmp_path / "a", seed=1, data=1, forward=5, backward=10)
    b = run(tmp_path / "b", seed=2, data=4, forward=5, backward=10)
    found = compare(a, b)
    assert found.is_regression and found.exit_code == 1
    assert found.speed.phase == "data"
    assert found.speed.slower.value == pytest.approx(3 / 16, abs=0.02)
    worst = found.speed.phases[0]
    assert worst.name == "data"
    assert worst.difference_ms.low < 3 < worst.difference_ms.high
    assert "waiting for data" in diff_text(found, 120)


def test_the_threshold_decides_and_the_other_way_round_is_faster(tmp_path):
    a = run(tmp_path / "a", seed=1, forward=5, backward=10)
    b = run(tmp_path / "b", seed=2, forward=5, backward=12)
    assert compare(a, b, threshold=0.05).is_regression
    assert compare(a, b, threshold=0.20).judgement == "slower"
    assert compare(b, a).judgement == "faster"


def test_the_slow_rank_is_named_although_all_ranks_step_together(tmp_path):
    def waiting(slow):
        return lambda rank: 1.0 if rank == slow else 9.0

    a = run(tmp_path / "a", seed=1, ranks=3, wait_ms=lambda rank: 1.0, forward=5, backward=10)
    b = run(
        tmp_path / "b",
        seed=2,
        ranks=3,
        wait_ms=waiting(2),
        each=lambda rank: {"forward": 13.0 if rank == 2 else 5.0},
        backward=10,
    )
    found = compare(a, b)
    assert found.is_regression
    assert found.speed.culprit == 2
    assert next(one for one in found.speed.ranks if one.rank == 2).phase == "forward"
    assert "rank 2 in forward" in diff_text(found, 120)
    assert next(one for one in found.speed.phases if one.name == "wait").difference_ms.value > 4


def test_batches_of_another_size_are_compared_by_sample(tmp_path):
    def sized(path, samples, ms, seed):
        builder = Builder(path)
        builder.hello()
        random = np.random.default_rng(seed)
        for _ in range(200):
            builder.step(forward=ms * random.gamma(1000, 1 / 1000), samples=samples)
        return builder.open()

    found = compare(sized(tmp_path / "a", 32, 10, 1), sized(tmp_path / "b", 64, 20, 2))
    assert found.speed.unit == "sample"
    assert found.judgement == "no difference"
    assert found.speed.a_ms == pytest.approx(10 / 32, rel=0.01)


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.one_of(st.none(), st.floats(0, 5)), st.sampled_from((0.0, 1.0)))
def test_the_phases_add_up_to_the_difference(tmp_path_factory, seed, wait_ms, scale):
    random = np.random.default_rng(seed)
    steps = [
        ({name: scale * random.uniform(0, 20) for name in wire.PHASES}, int(random.integers(1, 5)))
        for _ in range(80)
    ]
    records = []
    for name, order in (("a", steps), ("b", steps[::-1])):
        builder = Builder(tmp_path_factory.mktemp(name))
        for times, n in order:
            builder.step(n_steps=n, wait_ms=wait_ms, **times)
        records.append(builder.open())
    speed = compare(*records).speed
    assert sum(one.difference_ms.value for one in speed.phases) == pytest.approx(
        speed.b_ms - speed.a_ms, abs=1e-6
    )
    for one in speed.phases:
        assert one.difference_ms.low <= one.difference_ms.value <= one.difference_ms.high
    assert {one.name for one in speed.phases} <= set(COLUMNS)


def test_blocks_hold_every_step_once(tmp_path):
    record = run(tmp_path, steps=137, ranks=2, forward=3)
    blocks = blocks_of(RunView(record))
    assert blocks.steps.sum(axis=1).tolist() == [127, 127]
    assert blocks.ms.sum() == pytest.approx(
        sum(record.steps(r)["wall_ns"][10:].sum() / 1e6 for r in (0, 1))
    )


def test_too_few_steps_are_no_judgement(tmp_path):
    a, b = run(tmp_path / "a", steps=15, forward=1), run(tmp_path / "b", steps=500, forward=9)
    found = compare(a, b)
    assert (found.judgement, found.speed, found.exit_code) == ("too few steps", None, 0)
    assert "too few" in diff_text(found)


def losses(path, values, seed=7, folded=1, flags=0):
    builder = Builder(path)
    builder.hello(flags={"seed": seed})
    for value in values:
        builder.step(forward=1, loss=value, n_steps=folded, flags=flags)
    return builder.open()


def test_the_first_step_at_which_losses_differ(tmp_path):
    a = [1 / (1 + i) for i in range(60)]
    b = [*a[:20], *(x * (1 + 1e-6) for x in a[20:40]), *(x * 1.1 for x in a[40:])]
    loss = compare(losses(tmp_path / "a", a), losses(tmp_path / "b", b)).loss
    assert (loss.first_step, loss.first_visible_step, loss.compared) == (20, 40, 60)
    assert loss.same_seed is True
    same = compare(losses(tmp_path / "c", a), losses(tmp_path / "d", a)).loss
    assert same.first_step is same.first_visible_step is None


def test_folded_steps_are_compared_where_both_know_the_loss(tmp_path):
    a = losses(tmp_path / "a", [float(i) for i in range(2, 60, 3)], folded=3)
    b = losses(tmp_path / "b", [float(i) for i in range(60)])
    loss = compare(a, b).loss
    assert loss.first_step is None and loss.compared == 20


def test_a_loss_of_some_earlier_step_is_not_compared(tmp_path):
    a = losses(
        tmp_path / "a", [float(i) for i in range(1, 60, 3)], folded=3, flags=wire.F_LOSS_EARLIER
    )
    b = losses(tmp_path / "b", [float(i) for i in range(60)])
    assert compare(a, b).loss is None


def test_settings_that_differ_are_listed_and_passing_ones_are_not(tmp_path):
    a = run(
        tmp_path / "a",
        forward=1,
        hello={
            "torch": "2.12.0",
            "optimizer": {"class": "AdamW", "lr": 0.1},
            "env": {"MASTER_PORT": "1"},
        },
    )
    b = run(
        tmp_path / "b",
        forward=1,
        hello={
            "torch": "2.13.0",
            "optimizer": {"class": "AdamW", "lr": 0.2},
            "env": {"MASTER_PORT": "2", "OMP_NUM_THREADS": "8"},
            "dataloader": {"num_workers": 4},
        },
    )
    found = {one.name: (one.a, one.b, one.group) for one in compare(a, b).changes}
    assert found == {
        "torch": ("2.12.0", "2.13.0", "environment"),
        "env.OMP_NUM_THREADS": (None, "8", "environment"),
    }


def test_data_is_json_and_text_fits(tmp_path):
    a = run(
        tmp_path / "a",
        ranks=2,
        seed=1,
        wait_ms=lambda rank: 2.0,
        forward=5,
        backward=5,
        hello={"torch": "x" * 90},
    )
    b = run(
        tmp_path / "b",
        ranks=2,
        seed=2,
        wait_ms=lambda rank: 2.0,
        forward=9,
        backward=5,
        hello={"torch": "y" * 90},
    )
    found = compare(a, b)
    data = json.loads(json.dumps(diff_data(found), allow_nan=False))
    assert data["regression"] is True and data["speed"]["phase"] == "forward"
    low, high = data["speed"]["interval_pct"]
    assert low < data["speed"]["slower_pct"] < high
    for width in (60, 80, 120):
        text = diff_text(found, width)
        assert text.isascii()
        assert max(map(len, text.splitlines())) <= width, text
