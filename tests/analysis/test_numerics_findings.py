"""Findings about numerics and reproducibility, on built records."""

import math

import numpy as np
import pytest
from analysis_support import Builder

from gputop_agent import wire
from gputop_analysis.findings import evaluate

FAMILIES = ("NU", "RE")


def found(build, **options):
    """Findings of a record by id; each of these families rests on a proof."""
    every = evaluate(build.open(), **options)
    assert all(one.proof is not None for one in every if one.id[:2] in FAMILIES)
    return {one.id: one for one in every}


def trained(
    path,
    steps=400,
    ranks=1,
    bad=None,
    loss=None,
    grad_norm=None,
    lr=1e-3,
    seed=0,
    hello=None,
    **columns,
):
    """Steps of 20 ms with a noisy loss around 2 and log-normal gradient norms; ``bad`` maps a step
    to other columns.
    """
    build, random = Builder(path / "r"), np.random.default_rng(seed)
    for rank in range(ranks):
        build.hello(rank, world_size=ranks, **(hello or {}))
        for step in range(steps):
            values = {
                "loss": loss(step) if loss else 2 + 0.1 * random.standard_normal(),
                "grad_norm": grad_norm(step)
                if grad_norm
                else float(np.exp(0.3 * random.standard_normal())),
                "lr": lr(step) if callable(lr) else lr,
                "optimizer_steps": 1,
                **columns,
                **((bad or {}).get((rank, step)) or (bad or {}).get(step) or {}),
            }
            build.step(rank, forward=8, backward=12, **values)
    return build


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_run_has_no_finding(tmp_path, seed):
    build = trained(tmp_path, steps=1200, seed=seed, loss=None, hello={"clip": {"max_norm": 2.0}})
    assert all(one.severity == "info" for one in evaluate(build.open())), found(build)


def test_a_loss_spike_tells_what_jumps_with_it(tmp_path):
    spike = found(trained(tmp_path, bad={300: {"loss": 20.0, "grad_norm": 90.0}}))["NU02"]
    assert spike.absorbed == ("NU03",)
    assert "grad norm 90 at step 300" in spike.evidence
    assert spike.proof.value > 50 and spike.proof.threshold == 8


@pytest.mark.parametrize(
    ("bad", "severity"),
    [
        # hard batches of all degrees, after each of which the loss is as before
        ({102 + 9 * n: {"loss": 2 + 0.25 * 1.35**n} for n in range(11)}, "info"),
        # one, two or three hard samples in a batch
        (
            {
                102 + 4 * n: {"loss": 3.2 + 1.2 * (n % 3 == 0) + 1.2 * (n % 7 == 0)}
                for n in range(24)
            },
            "info",
        ),
        # some that lie far beyond all others
        ({102 + 9 * n: {"loss": 7 + 0.1 * n} for n in range(11)}, "medium"),
        # a step that went too far, and its way back
        ({190 + n: {"loss": 2 + 6 * 0.8**n} for n in range(12)}, "medium"),
    ],
)
def test_the_last_of_a_heavy_tail_is_no_spike(tmp_path, bad, severity):
    jump = found(trained(tmp_path, steps=205, bad=bad))["NU02"]
    assert jump.severity == severity
    assert ("nothing to mend" in jump.fix) is (severity == "info")


def test_a_jump_with_the_learning_rate_is_no_heavy_tail(tmp_path):
    tail = {102 + 9 * n: {"loss": 2 + 0.25 * 1.35**n} for n in range(11)}
    raised = {step: {"lr": 0.5} for step in range(188, 192)}
    bad = {step: {**tail.get(step, {}), **raised.get(step, {})} for step in {*tail, *raised}}
    jump = found(trained(tmp_path, steps=205, bad=bad))["NU02"]
    assert jump.severity == "medium" and "the learning rate is raised" in jump.fix


@pytest.mark.parametrize(
    ("steps", "origins", "rank"),
    [
        ((30, 30), {}, None),
        ((30, 30), {0: "gone", 1: "reduced"}, None),
        ((30, 30), {0: "reduced", 1: "backward"}, 1),
        ((30, 30), {0: "backward", 1: "backward"}, None),
        ((31, 30), {}, 1),
        ((30, None), {}, 0),
    ],
)
def test_the_rank_of_losses_that_go_bad_together(tmp_path, steps, origins, rank):
    """After a sum of gradients all have them at one step, whosoever began."""
    build = trained(tmp_path, steps=60, ranks=2)
    for at, step in enumerate(steps):
        if step is not None:
            build.event("nonfinite", rank=at, pid=at + 1, step=step, value="nan", unread=0)
    for at, direction in origins.items():
        build.event("nan_origin", rank=at, pid=at + 1, step=29, direction=direction, layer="body")
    bad = found(build)["NU01"]
    assert bad.rank == rank
    assert ("on all ranks" in bad.title) is (rank is None)


def test_an_accumulation_that_an_epoch_cuts_short_is_no_jump(tmp_path):
    """Transformers' Trainer divides its loss by the batches that it has: 16 / 10 of the others."""
    bad = {step: {"loss": 3.2, "micro_batches": 10} for step in (40, 140, 240)}
    assert "NU02" not in found(trained(tmp_path / "short", bad=bad, micro_batches=16))
    whole = {step: {"loss": 3.2} for step in bad}
    jump = found(trained(tmp_path / "whole", bad=whole, micro_batches=16))["NU02"]
    assert "the 40 records before it" in jump.evidence


def test_a_jump_that_is_nothing_beside_the_first_losses_is_an_info(tmp_path):
    loss = lambda step: 4.0 * 0.97**step + 1e-3 + 0.05 * (step == 300)  # noqa: E731
    assert found(trained(tmp_path, loss=loss))["NU02"].severity == "info"


def test_a_gradient_norm_that_jumps(tmp_path):
    jump = found(trained(tmp_path, bad={300: {"grad_norm": 400.0}}))["NU03"]
    assert jump.severity == "medium" and "step 300" in jump.title


def test_a_gradient_norm_that_rises_and_rises(tmp_path):
    build = trained(
        tmp_path,
        grad_norm=lambda step: 1 + 0.05 * (step % 3) if step < 385 else 1.5 ** (step - 384),
    )
    rise = found(build)["NU03"]
    assert "rises from" in rise.title and rise.proof.unit == "times"


def test_without_clipping_gradient_norms_are_not_judged(tmp_path):
    assert found(trained(tmp_path, grad_norm=lambda step: float("nan"))) == {}


def test_skipped_updates_are_counted_also_in_folded_records(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello(0)
    for record in range(100):
        skipped = record % 2
        flags = wire.F_SCALER_SKIP * skipped | (wire.F_FIRST if record == 0 else 0)
        build.step(
            n_steps=5,
            forward=1,
            backward=3,
            optimizer_steps=5 - skipped,
            flags=flags,
            loss_scale=64.0,
            loss=1.0 + record % 3,
        )
    skips = found(build)["NU04"]
    assert "30 of 300 steps" in skips.evidence and skips.severity == "medium"
    assert skips.proof.value == pytest.approx(10.0)


def test_skips_of_the_first_steps_are_the_scaler_finding_its_scale(tmp_path):
    bad = {step: {"flags": wire.F_SCALER_SKIP, "optimizer_steps": 0} for step in range(5, 60)}
    assert found(trained(tmp_path, bad=bad, loss_scale=1024.0)) == {}


def test_a_collapsed_loss_scale(tmp_path):
    bad = {step: {"loss_scale": 0.25} for step in range(380, 400)}
    bad |= {
        step: {"loss_scale": 0.25, "flags": wire.F_SCALER_SKIP, "optimizer_steps": 0}
        for step in range(380, 384)
    }
    assert found(trained(tmp_path, bad=bad, loss_scale=1024.0))["NU04"].severity == "high"


@pytest.mark.parametrize(
    ("max_norm", "state", "severity"),
    [
        (0.01, "momentum_buffer", "medium"),
        (0.01, "exp_avg_sq", "info"),
        (0.001, "exp_avg_sq", "medium"),
        (0.3, "momentum_buffer", "info"),
        (1.0, "momentum_buffer", None),
    ],
)
def test_always_clipped(tmp_path, max_norm, state, severity):
    optimizer = {"state": {state: "float32"}}
    build = trained(
        tmp_path, steps=800, hello={"clip": {"max_norm": max_norm}, "optimizer": optimizer}
    )
    clipped = found(build).get("NU05")
    assert (clipped.severity if clipped else None) == severity


def test_a_learning_rate_of_zero(tmp_path):
    zero = found(trained(tmp_path, lr=lambda step: max(0.0, 1e-3 * (1 - step / 200))))["NU06"]
    assert "since step 200" in zero.title and zero.severity == "high"


@pytest.mark.parametrize(("begins", "told"), [(100, True), (0, False)])
def test_a_rate_that_fades_is_judged_by_its_own_optimizers_steps(tmp_path, begins, told):
    build = trained(tmp_path, lr=lambda step: 1e-3 if step < 250 else 1e-8)
    if begins:
        build.event("optimizer_begins", rank=0, pid=1, step=begins, optimizer="SGD")
    assert ("NU06" in found(build)) is told


def test_a_schedule_that_is_stepped_twice_an_update_has_the_line_that_does(tmp_path):
    build = trained(tmp_path, lr=lambda step: max(0.0, 1e-3 * (1 - step / 200)))
    twice = {"rate_steps": 2.0, "rate_stepped_at": ["train.py:44", "train.py:90"]}
    build.event("checkup", rank=0, pid=1, step=250, alike=1, lr_max=0.0, **twice)
    zero = found(build)["NU06"]
    assert zero.site == "train.py:44" and "once for each rank" in zero.fix
    assert "2.0 times an update, by train.py:44 and train.py:90" in zero.evidence


@pytest.mark.parametrize(
    ("lr", "site"),
    [
        (lambda step: max(0.0, 1e-3 * (1 - step / 200)), "train.py:33"),
        (lambda step: 0.0, "train.py:30"),
    ],
)
def test_a_zero_has_the_line_that_works_the_rate_out(tmp_path, lr, site):
    optimizer = {"scheduler": "train.py:50", "scheduler_returns": ["train.py:30", "train.py:33"]}
    zero = found(trained(tmp_path, lr=lr, hello={"optimizer": optimizer}))["NU06"]
    assert zero.site == site


@pytest.mark.parametrize(
    ("inside", "way_out"),
    [((), "after each optimizer.step()"), (("lightning",), '"interval": "step"')],
)
def test_a_schedule_that_has_not_left_its_zero(tmp_path, inside, way_out):
    loader = {"loop": "train.py:5", "inside": list(inside)}
    zero = found(trained(tmp_path, lr=lambda step: 0.0, hello={"dataloader": loader}))["NU06"]
    assert way_out in zero.fix and "has not gone on" in zero.fix


def test_a_learning_rate_that_falls_on_below_zero(tmp_path):
    negative = found(trained(tmp_path, lr=lambda step: 1e-3 * (1 - step / 200)))["NU06"]
    assert "negative since step 200" in negative.title and "a floor" in negative.fix


def test_a_record_of_several_steps_tells_the_latest_step_of_a_zero(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello(0)
    for record in range(20):
        build.step(forward=8, backward=12, n_steps=20, lr=1e-3 * (record < 5))
    zero = found(build)["NU06"]
    assert "since step 119 at the latest" in zero.title, zero.title
    assert zero.proof.value == 281


@pytest.mark.parametrize(
    "lr", [lambda step: 1e-3 * (399 - step), lambda step: 1e-3 * min(1, step / 100)]
)
def test_decay_to_zero_and_warm_up_are_no_finding(tmp_path, lr):
    assert found(trained(tmp_path, lr=lr)) == {}


def test_a_zero_in_the_first_group_alone_is_no_finding(tmp_path):
    build = trained(tmp_path, lr=0.0, hello={"optimizer": {"groups": 2}})
    build.event("checkup", rank=0, pid=1, step=100, alike=4, lr_max=1e-3)
    assert found(build) == {}


def test_a_rate_of_zero_in_all_groups_needs_no_look(tmp_path):
    build = trained(
        tmp_path, lr=lambda step: 1e-3 * (step < 90), hello={"optimizer": {"groups": 2}}
    )
    build.event("checkup", rank=0, pid=1, step=60, alike=4, lr_max=1e-3)
    assert "since step 90" in found(build)["NU06"].title


def noisy(seed=0, size=0.1):
    random = np.random.default_rng(seed)
    return lambda: size * random.standard_normal()


@pytest.mark.parametrize(("floor", "said"), [(0.0, True), (1e-29, True), (1e-5, False)])
def test_a_learning_rate_that_is_nothing_beside_its_largest(tmp_path, floor, said):
    build = trained(tmp_path, lr=lambda step: max(1e-3 * 0.8**step, floor))
    assert ("NU06" in found(build)) is said


def scaled(tmp_path, skipped, steps=120, **hello):
    """Steps of a scaler of which those for which ``skipped`` holds make no update."""
    build = Builder(tmp_path / "r")
    build.hello(0, amp={"grad_scaler": True, "autocast": True, "dtype": "float16"}, **hello)
    for step in range(steps):
        skip = skipped(step)
        flags = wire.F_SCALER_SKIP * skip | (wire.F_FIRST if step == 0 else 0)
        build.step(
            forward=8,
            backward=12,
            optimizer_steps=not skip,
            flags=flags,
            loss_scale=2.0 ** (20 - step * skip),
        )
    return found(build)


def test_updates_that_are_all_skipped_are_worse_than_float16(tmp_path):
    every = scaled(tmp_path / "every", lambda step: True)["NU04"]
    assert every.severity == "high" and "100 %" in every.title and "CE03" in every.absorbed
    late = scaled(tmp_path / "late", lambda step: step >= 80)["NU04"]
    assert "40 of 40 steps from step 80" in late.evidence
    assert "NU04" not in scaled(tmp_path / "search", lambda step: step < 17)
    assert "NU04" not in scaled(tmp_path / "short", lambda step: step >= 100)


def dead(tmp_path, values=0, alike=4, loss=None, **fields):
    build = trained(tmp_path, loss=loss)
    for at in range(alike):
        looked = {
            "gradients_looked_at": 9000,
            "gradients_not_zero": values,
            "lr_max": 1e-3,
            **fields,
        }
        build.event("checkup", rank=0, pid=1, step=20 * (at + 1), alike=at + 1, **looked)
    return found(build)


def test_gradients_that_are_all_zero(tmp_path):
    assert dead(tmp_path / "dead")["NU13"].severity == "high"
    assert "NU13" not in dead(tmp_path / "few", alike=2) and "NU13" not in dead(
        tmp_path / "alive", values=1
    )
    solved = dead(tmp_path / "solved", loss=lambda step: 2.0 if step < 50 else 0.0)
    assert solved["NU13"].severity == "info"


def test_an_optimizer_none_of_whose_parameters_has_a_gradient(tmp_path):
    none = {
        "values": 5,
        "trainable": 500,
        "without_gradient": 500,
        "without_gradient_names": ["a.weight"],
    }
    assert dead(tmp_path / "all", **none)["NU08"].severity == "high"


def climbed(tmp_path, loss, steps=85, **options):
    return found(
        trained(tmp_path, steps=steps, loss=loss, grad_norm=lambda _: float("nan"), **options)
    )


def test_a_loss_that_runs_away_within_few_steps(tmp_path):
    noise = noisy(size=0.5)
    away = climbed(tmp_path / "away", lambda step: 9 + 2 * step + noise())["NU07"]
    assert away.severity == "high" and away.title.startswith("the loss runs away")
    assert "NU07" in climbed(
        tmp_path / "later", lambda step: 2 if step < 300 else 2 * 1.03 ** (step - 300), steps=400
    )
    assert "NU07" not in climbed(tmp_path / "back", lambda step: 9 + abs(2 * (step - 40)), steps=60)
    assert "NU07" not in climbed(tmp_path / "little", lambda step: 9 + 0.15 * step + noise())
    assert "NU07" not in climbed(
        tmp_path / "down", lambda step: 20 * 0.97**step + 1 + 0.02 * step + 0.1 * noise()
    )


def test_a_loss_that_the_first_updates_threw_out(tmp_path):
    noise = noisy(size=100)
    thrown = climbed(tmp_path / "thrown", lambda step: 5000 + noise() if step else 3.9)["NU07"]
    assert thrown.severity == "high" and "threw the loss from 3.9" in thrown.title
    filling = climbed(tmp_path / "filling", lambda step: 5 + noise() / 9 if step else 0.008)
    assert "NU07" not in filling
    assert "NU07" not in climbed(
        tmp_path / "back", lambda step: 3.9 + 5000 * 0.9**step if step else 3.9
    )
    assert "NU07" not in climbed(
        tmp_path / "policy", lambda step: 9.0 if step else 0.1, flags=wire.F_EVAL
    )


def test_a_loss_that_follows_rewards_may_climb(tmp_path):
    assert "NU07" not in climbed(tmp_path / "a", lambda step: 1 + 0.5 * step, flags=wire.F_EVAL)
    beside = {"network_beside": True}
    assert "NU07" not in climbed(tmp_path / "b", lambda step: 1 + 0.5 * step, hello=beside)


def test_a_target_that_is_copied_now_and_then_makes_the_loss_jump(tmp_path):
    noise = noisy(size=0.02)

    def loss(step):
        return 1.0 + noise() + (4.0 if step % 100 < 3 and step >= 200 else 0.0)

    jumps = found(trained(tmp_path / "copied", steps=900, loss=loss, flags=wire.F_EVAL))["NU02"]
    assert jumps.severity == "info" and "every 100 steps" in jumps.fix
    assert found(trained(tmp_path / "batch", steps=900, loss=loss))["NU02"].severity == "medium"


def test_a_loss_beside_another_network_that_jumps_again_and_again_is_no_event(tmp_path):
    random, noise = np.random.default_rng(4), noisy(size=0.02)
    jumps = set(random.choice(np.arange(200, 600), 12, replace=False))

    def loss(step):
        return 1.0 + noise() + 4.0 * (step in jumps)

    beside = {"network_beside": True}
    again = found(trained(tmp_path / "beside", steps=900, loss=loss, hello=beside))["NU02"]
    assert again.severity == "info"
    assert found(trained(tmp_path / "alone", steps=900, loss=loss))["NU02"].severity == "medium"

    def once(step):
        return 1.0 + noise() + 4.0 * (step == 700)

    assert found(trained(tmp_path / "once", steps=900, loss=once, hello=beside))[
        "NU02"
    ].severity == ("medium")


def test_divergence(tmp_path):
    noise = noisy()
    build = trained(tmp_path, steps=2400, loss=lambda step: 2 + noise() + max(0, step - 1200) / 300)
    diverges = found(build)["NU07"]
    assert diverges.severity == "high" and "the loss rises" in diverges.title
    assert "the loss rises" in found(build, window_steps=1000, live=True)["NU07"].title


def test_a_falling_loss_is_no_finding_and_a_still_one_only_info(tmp_path):
    noise = noisy(1)
    assert "NU07" not in found(
        trained(tmp_path / "a", steps=1500, loss=lambda step: 4 + noise() - step / 800)
    )
    still = found(trained(tmp_path / "b", steps=1500, loss=lambda step: 4 + 0.1 * noise())).get(
        "NU07"
    )
    assert still is None or still.severity == "info"


def test_a_rise_that_is_nothing_beside_the_beginning_is_no_divergence(tmp_path):
    noise = noisy(2, 1e-5)
    loss = lambda step: 5 * np.exp(-step / 50) + 1e-4 + noise() + max(0, step - 1000) * 1e-7  # noqa: E731
    assert "NU07" not in found(trained(tmp_path, steps=2000, loss=loss))


def test_two_optimizers_are_not_judged_by_their_loss(tmp_path):
    hello = {"optimizer": {"class": "Adam", "others": ["Adam"]}}
    build = trained(
        tmp_path, steps=2400, loss=lambda step: 2 + max(0, step - 1200) / 300, hello=hello
    )
    assert "NU07" not in found(build)


def looks(build, count=4, **fields):
    for at in range(count):
        build.event(
            "checkup", rank=0, pid=1, step=20 * (at + 1), alike=at + 1, lr_max=1e-3, **fields
        )


@pytest.mark.parametrize(("missing", "severity"), [(400, "medium"), (5, "info"), (0, None)])
def test_parameters_without_gradient(tmp_path, missing, severity):
    build = trained(tmp_path, steps=150)
    looks(build, without_gradient=missing, without_gradient_names=["pooler.weight"], trainable=1000)
    without = found(build).get("NU08")
    assert (without.severity if without else None) == severity
    assert without is None or "pooler.weight" in without.title


@pytest.mark.parametrize(("backward_ms", "is_told"), [(16.0, True), (0.0, False)])
def test_a_dummy_that_steps_through_a_schedule_has_nothing_to_train(tmp_path, backward_ms, is_told):
    build = Builder(tmp_path / "r")
    build.hello(0)
    for _ in range(150):
        build.step(0, forward=8.0 * (backward_ms > 0), backward=backward_ms, optimizer=1.0)
    looks(build, without_gradient=1000, without_gradient_names=["weight"], trainable=1000)
    assert ("NU08" in found(build)) is is_told


@pytest.mark.parametrize(
    ("lines", "site", "advice"),
    [
        ({}, "train.py:9", "branch that is not taken"),
        ({"without_gradient_at": "net.py:4"}, "net.py:4", "branch that is not taken"),
        ({"without_gradient_at": "net.py:4", "new_leaf_at": "net.py:7"}, "net.py:7", "new leaf"),
        (
            {"reentrant_at": "net.py:5", "new_leaf_at": "net.py:7"},
            "net.py:5",
            "use_reentrant=False",
        ),
        ({"held_back_at": "net.py:3"}, "train.py:9", "branch that is not taken"),
        ({"held_back_at": "net.py:3", "without_gradient": 1000}, "net.py:3", "reduce gradients"),
    ],
)
def test_where_a_part_is_used_that_gets_no_gradient(tmp_path, lines, site, advice):
    build = trained(tmp_path, steps=150)
    fields = {"without_gradient": 400, "without_gradient_names": ["a"], "trainable": 1000}
    looks(build, backward_at="train.py:9", **fields | lines)
    without = found(build)["NU08"]
    assert without.site == site and advice in without.fix


def test_the_losses_of_a_copy_that_an_evaluation_trains_are_no_jump(tmp_path):
    """Each 100 steps 8 more, by an optimizer of their own with another rate."""
    tuning = {step: {"loss": 4.0, "lr": 0.1} for step in range(400) if step % 100 >= 92}
    jumps = found(trained(tmp_path / "copy", bad=tuning))["NU02"]
    assert jumps.severity == "info" and "another optimizer's steps" in jumps.fix
    same_rate = {step: {"loss": 4.0} for step in tuning}
    assert found(trained(tmp_path / "same", bad=same_rate))["NU02"].severity == "medium"
    spoilt = {step: {"loss": 3.0} for step in range(400) if step % 100 < 20}
    assert found(trained(tmp_path / "in place", bad=tuning | spoilt))["NU02"].severity == "medium"


@pytest.mark.parametrize(
    ("calls_a_step", "looks", "is_told"),
    [(1.0, 4, True), (0.5, 4, True), (0.4, 4, False), (1.0, 1, False)],
)
def test_a_seed_that_each_step_sets(tmp_path, calls_a_step, looks, is_told):
    build = trained(tmp_path, steps=150)
    for step in (20, 40, 60, 100)[4 - looks :]:
        calls = math.ceil(calls_a_step * (step - 4))
        seen = {"seed_calls": calls, "seeded_since": 6, "seeded_at": "train.py:12"}
        build.event("checkup", rank=0, pid=1, step=step, alike=1, lr_max=1e-3, **seen)
    again = found(build).get("RE05")
    assert (again is not None) is is_told
    assert again is None or (again.site == "train.py:12" and again.severity == "medium")


def test_one_look_without_gradient_is_not_enough(tmp_path):
    build = trained(tmp_path, steps=150)
    looks(build, count=2, without_gradient=400, without_gradient_names=["a"], trainable=1000)
    assert found(build) == {}


def test_gradients_never_cleared_take_in_what_they_cause(tmp_path):
    build = trained(
        tmp_path, grad_norm=lambda step: 1.0 + step if step < 380 else 1.4 ** (step - 360)
    )
    looks(build, stale=True)
    never = found(build)["NU11"]
    assert never.severity == "high" and never.absorbed == ("NU03",)


def test_updates_that_vanish(tmp_path):
    build = trained(
        tmp_path / "a",
        steps=150,
        hello={
            "optimizer": {
                "module": "torch",
                "state": {"exp_avg": "bfloat16"},
                "site": "train.py:12",
            }
        },
    )
    looks(build, bf16_pushed=4000, bf16_stuck=3990)
    vanishing = found(build)["NU12"]
    assert vanishing.proof.value == pytest.approx(99.75)
    assert vanishing.site == "train.py:12"
    build = trained(tmp_path / "b", steps=150, hello={"optimizer": {"module": "torchao"}})
    looks(build, bf16_pushed=4000, bf16_stuck=3990)
    assert found(build) == {}, "another library's optimizer may keep what bf16 cannot"


def replicas(
    build,
    sums,
    ranks=2,
    updates=(10, 11, 50, 51, 100, 101),
    group=None,
    state=None,
    joins=False,
    **more,
):
    for rank in range(ranks):
        for update in updates:
            random = {"seed": 7, "state": state(rank, update) if state else 1000 * rank + update}
            event = {
                "update": update,
                "group": group or ranks,
                "parameters": sums(rank, update),
                "random": random,
            }
            build.event("replica", rank=rank, pid=rank + 1, joins=joins, **more, **event)


@pytest.mark.parametrize(
    ("rates", "said"), [((1e-3, 2e-3), True), ((1e-3, 1e-3), False), ((1e-3, None), False)]
)
def test_replicas_that_ranks_update_at_rates_of_their_own(tmp_path, rates, said):
    optimizer = {"site": "train.py:7"}
    build = trained(tmp_path, steps=150, ranks=2, hello={"optimizer": optimizer})
    replicas(build, lambda rank, update: update + 7 * rank * (update >= 50))
    for rank, rate in enumerate(rates):
        for at in range(4):
            fields = {"step": 20 * (at + 1), "alike": at + 1, "lr_max": rate}
            build.event("checkup", rank=rank, pid=rank + 1, **fields)
    parted = found(build)["NU09"]
    assert ("the same learning rate" in parted.fix) is said
    assert parted.site == ("train.py:7" if said else None)
    assert ("0.001 on rank 0, 0.002 on rank 1" in parted.evidence) is said


@pytest.mark.parametrize(("fed", "site"), [(True, "train.py:20"), (False, "train.py:8")])
def test_replicas_whose_plateaus_end_at_other_steps(tmp_path, fed, site):
    """The rates are the same at first."""
    hello = {"optimizer": {"site": "train.py:7", "scheduler": "train.py:8"}}
    build = trained(tmp_path, steps=100, ranks=2, hello=hello)
    for rank in range(2):
        for step in range(50):
            rate = 1e-3 if rank == 0 or step < 20 else 1e-4
            build.step(rank, lr=rate, forward=8, backward=16, optimizer=4)
        if fed:
            build.event("plateau", rank=rank, pid=rank + 1, step=50, site="train.py:20")
    replicas(build, lambda rank, update: update + 7 * rank * (update >= 50))
    parted = found(build)["NU09"]
    assert "0.001 on rank 0, 0.0001 on rank 1" in parted.evidence
    assert parted.site == site


def test_replicas_that_drift_apart(tmp_path):
    build = trained(tmp_path, steps=150, ranks=3)
    replicas(build, lambda rank, update: update + 7 * (rank == 1 and update >= 50), ranks=3)
    differ = found(build)["NU09"]
    assert (differ.rank, differ.severity) == (1, "high") and "since update 50" in differ.title


def test_ranks_that_sum_gradients_themselves_and_were_never_equal(tmp_path):
    build = trained(tmp_path, steps=150, ranks=2)
    made_at = "train.py:12"
    replicas(build, lambda rank, update: update + 7 * rank, by_hand=True, made_at=made_at)
    differ = found(build)["NU09"]
    assert (differ.title, differ.site) == ("replicas were never equal: ranks 0, 1", made_at)
    assert "broadcast(p.data, src=0)" in differ.fix


@pytest.mark.parametrize(
    ("parted", "site"), [(["Net.codes"], "train.py:40"), (["Net.codes", "Net.in", "Net.out"], None)]
)
def test_what_only_a_hand_can_have_changed_is_named(tmp_path, parted, site):
    """Sums of gradients are the same on all ranks, so that no update parts a few parameters."""
    build, names = trained(tmp_path, steps=150, ranks=2), ["Net.codes", "Net.in", "Net.out"]
    for rank in range(2):
        for update in (10, 11, 50, 51, 100, 101):
            apart = rank if update >= 50 else 0
            each = [update + 7 * apart * (name in parted) for name in names]
            build.event(
                "replica",
                rank=rank,
                pid=rank + 1,
                update=update,
                group=2,
                parameters=sum(each),
                each=each,
                names=names,
                edited_at={"Net.codes": "train.py:40"},
            )
    differ = found(build)["NU09"]
    assert differ.site == site
    assert ("only Net.codes differed then, of 3" in differ.evidence) is (site is not None)


@pytest.mark.parametrize(
    ("parted", "named"), [(["table", "bias"], "table and bias"), (["table", "bias", "head"], None)]
)
def test_parameters_that_a_sum_by_hand_leaves_out(tmp_path, parted, named):
    build, names = trained(tmp_path, steps=150, ranks=2), ["table", "bias", "head"]
    for rank in range(2):
        for update in (10, 11, 50, 51, 100, 101):
            each = [update + 7 * rank * (name in parted and update > 10) for name in names]
            build.event(
                "replica",
                rank=rank,
                pid=rank + 1,
                update=update,
                group=2,
                parameters=sum(each),
                each=each,
                names=names,
                by_hand=True,
                summed_in_part_at="train.py:31",
            )
    differ = found(build)["NU09"]
    assert differ.site == ("train.py:31" if named else None)
    assert (f"{named} is left out" in differ.fix) is (named is not None)


def test_ranks_that_sum_gradients_themselves_and_drift_apart(tmp_path):
    build = trained(tmp_path, steps=150, ranks=3)
    parts = lambda rank, update: update + 7 * (rank == 1 and update >= 50)  # noqa: E731
    replicas(build, parts, ranks=3, by_hand=True)
    assert found(build)["NU09"].title == "replicas differ since update 50: rank 1"


@pytest.mark.parametrize(
    ("loads", "equal_at_first", "site"),
    [
        ({0: [(0, "train.py:5")]}, False, "train.py:5"),
        ({0: [(0, "train.py:5")]}, True, None),  # that DDP gave to all
        ({0: [(40, "ema.py:7"), (40, "ema.py:9")], 1: [(40, "ema.py:7")]}, True, "ema.py:9"),
        ({0: [(40, "ema.py:7")], 1: [(40, "ema.py:7")]}, True, None),
    ],
)
def test_replicas_that_load_weights_on_some_ranks(tmp_path, loads, equal_at_first, site):
    build = trained(tmp_path, steps=150, ranks=2)
    first = 50 if equal_at_first else 0
    replicas(build, lambda rank, update: update + 7 * (rank == 1 and update >= first))
    for rank, events in loads.items():
        for step, line in events:
            build.event("weights_loaded", rank=rank, pid=rank + 1, step=step, into="Net", site=line)
    differ = found(build)["NU09"]
    assert differ.site == site
    assert ("only rank 0 loads weights" in differ.evidence) is (site is not None)


@pytest.mark.parametrize(("iterations", "is_told"), [(59, True), (63, False), (130, False)])
def test_replicas_whose_updates_no_sum_comes_before(tmp_path, iterations, is_told):
    """The micro-batches that an epoch ends with were still within ``no_sync()``."""
    build = trained(tmp_path, steps=150, ranks=2)
    replicas(build, lambda rank, update: update + 7 * (rank == 1 and update >= 50))
    for rank in (0, 1):
        build.event("ddp_progress", rank=rank, pid=rank + 1, step=64, iterations=iterations)
    build.event("checkup", rank=0, pid=1, step=20, alike=1, lr_max=1e-3, update_at="train.py:40")
    differ = found(build)["NU09"]
    assert (differ.site == "train.py:40") is is_told
    assert ("5 updates came without a sum" in differ.evidence) is is_told
    assert ("no_sync()" in differ.fix.split(";")[0] and "last backward" in differ.fix) is is_told


@pytest.mark.parametrize(
    ("at", "site"), [("train.py:31", "train.py:31"), ("", "train.py:40"), (None, None)]
)
def test_replicas_whose_last_backward_is_inside_no_sync(tmp_path, at, site):
    build = trained(tmp_path, steps=150, ranks=2)
    more = {} if at is None else {"unsynced_at": at}
    replicas(build, lambda rank, update: update + 7 * (rank == 1 and update >= 50), **more)
    build.event("checkup", rank=0, pid=1, step=20, alike=1, lr_max=1e-3, update_at="train.py:40")
    differ = found(build)["NU09"]
    assert differ.site == site
    assert ("ran inside of no_sync(), at 12 of 12 looks" in differ.evidence) is (at is not None)


def test_replicas_that_clip_their_gradients_on_one_rank(tmp_path):
    build = trained(tmp_path, steps=150, ranks=2)
    build.hello(1, world_size=2, clip={"max_norm": 0.3, "site": "train.py:30"})
    replicas(build, lambda rank, update: update + 7 * (rank == 1 and update >= 50))
    differ = found(build)["NU09"]
    assert differ.site == "train.py:30" and "only rank 1 clips gradients" in differ.fix


@pytest.mark.parametrize(("loaded_step", "is_told"), [(299, True), (300, True), (280, False)])
def test_a_jump_after_weights_were_loaded(tmp_path, loaded_step, is_told):
    build = trained(tmp_path, bad={step: {"loss": 20.0} for step in range(300, 304)})
    event = {"step": loaded_step, "into": "Net", "site": "train.py:88"}
    build.event("weights_loaded", rank=0, pid=1, **event)
    jump = found(build)["NU02"]
    assert (jump.site == "train.py:88") is is_told
    assert ("weights were loaded at train.py:88" in jump.evidence) is is_told


@pytest.mark.parametrize(("begins", "severity"), [(300, "info"), (294, "info"), (250, "medium")])
def test_a_jump_where_another_optimizer_begins_is_that_of_a_network_that_begins(
    tmp_path, begins, severity
):
    build = trained(tmp_path, bad={step: {"loss": 20.0} for step in range(300, 304)})
    build.event("optimizer_begins", rank=0, pid=1, step=begins, optimizer="Adam")
    jump = {one.id: one for one in evaluate(build.open())}["NU02"]
    assert jump.severity == severity
    assert ("another optimizer makes its first updates" in jump.fix) is (severity == "info")


@pytest.mark.parametrize(
    ("sums", "group"),
    [
        (lambda rank, update: update, 2),  # equal
        (lambda rank, update: update + rank, 2),  # one rank counts its updates from 1
        (lambda rank, update: update + 50 * rank, 1),  # replicas in groups of one: pipeline stages
        (lambda rank, update: update + 50 * (rank and update < 50), 2),  # were mended
    ],
)
def test_replicas_that_do_not_differ(tmp_path, sums, group):
    build = trained(tmp_path, steps=150, ranks=2)
    replicas(build, sums, group=group)
    assert found(build) == {}


def test_replicas_under_join_need_not_update_together(tmp_path):
    build = trained(tmp_path, steps=150, ranks=2)
    replicas(build, lambda rank, update: update + 7 * (rank == 1 and update >= 50), joins=True)
    assert found(build) == {}


def test_the_loss_of_one_rank_stands_out(tmp_path):
    bad = {(2, step): {"loss": 9.0} for step in range(100, 300, 5)}
    outlier = found(trained(tmp_path, ranks=4, bad=bad))["NU10"]
    assert outlier.rank == 2 and "stands out in 40 of" in outlier.title
    assert outlier.fix == "look at the data of rank 2 (corrupt or other samples, labels)"


def test_small_losses_with_long_tails_on_every_rank_name_no_rank(tmp_path):
    """Clinics with data of their own: one has six such steps by chance, the others fewer."""
    tails = {0: (30, 36, 71, 75, 82, 90), 1: (33, 64, 88), 2: (40, 77)}
    bad = {(rank, step): {"loss": 4.5} for rank, steps in tails.items() for step in steps}
    assert "NU10" not in found(trained(tmp_path, ranks=3, steps=100, bad=bad))


def test_ranks_of_other_levels_make_no_jump_where_their_records_end_apart(tmp_path):
    build, random = Builder(tmp_path / "r"), np.random.default_rng(0)
    for rank, level in enumerate((0.4, 1.0)):
        build.hello(rank, world_size=2)
        for n in [1] * 40 + [3, 2] * 40 + ([2] * 8 if rank else [3, 3, 3, 3, 4]):
            loss = level * (1 + 0.001 * random.standard_normal())
            build.step(rank, n, forward=0.8, backward=1.2, loss=loss, loss_max=loss)
    assert "NU02" not in found(build)


def test_two_ranks_or_a_jump_on_all_of_them_name_no_rank(tmp_path):
    bad = {(1, step): {"loss": 9.0} for step in range(100, 300, 5)}
    assert "NU10" not in found(trained(tmp_path / "a", ranks=2, bad=bad))
    bad = {step: {"loss": 9.0} for step in range(100, 300, 5)}
    assert "NU10" not in found(trained(tmp_path / "b", ranks=4, bad=bad))


def folded(path, bad=lambda rank, step: False, steps=4000, ranks=3, seed=0):
    """Steps of 2 ms, about ten to a record, cut at other steps on each rank."""
    build, random = Builder(path / "r"), np.random.default_rng(seed)
    for rank in range(ranks):
        build.hello(rank, world_size=ranks)
        losses = (
            2
            + 0.1 * random.standard_normal(steps)
            + np.array([9.0 * bad(rank, step) for step in range(steps)])
        )
        step = 0
        while step < steps:
            n = min(int(random.integers(8, 13)), steps - step)
            part = losses[step : step + n]
            build.step(
                rank, n, forward=0.8, backward=1.2, loss=float(part[-1]), loss_max=float(part.max())
            )
            step += n
    return build


def test_the_loss_of_one_rank_stands_out_of_groups_where_steps_are_folded(tmp_path):
    outlier = found(folded(tmp_path, bad=lambda rank, step: rank == 2 and step % 97 == 0))["NU10"]
    assert outlier.rank == 2 and "groups of 24 steps" in outlier.title
    assert outlier.proof.value >= 35, "each jump is in some record's largest loss"


@pytest.mark.parametrize("seed", range(3))
def test_jumps_on_all_ranks_of_folded_steps_name_no_rank(tmp_path, seed):
    assert "NU10" not in found(folded(tmp_path, bad=lambda rank, step: step % 97 == 0, seed=seed))


def test_a_seed_with_benchmarking_on_is_told_as_info(tmp_path):
    def flags(**given):
        return {"flags": {"seed": 3, "cudnn_benchmark": False, "deterministic": False, **given}}

    on_gpu = {**flags(cudnn_benchmark=True, deterministic=True), "device": "cuda"}
    told = found(trained(tmp_path / "a", steps=50, hello=on_gpu))["RE02"]
    assert told.severity == "info" and "seed 3" in told.title
    assert (
        found(trained(tmp_path / "d", steps=50, hello=flags(cudnn_benchmark=True))) == {}
    )  # no cuDNN on a CPU
    assert found(trained(tmp_path / "b", steps=50, hello=flags())) == {}
    assert (
        found(trained(tmp_path / "c", steps=50, hello=flags(seed=None, cudnn_benchmark=True))) == {}
    )


@pytest.mark.parametrize(
    ("state", "expected"), [(lambda r, u: u, ["RE03"]), (lambda r, u: u + 99 * r, [])]
)
def test_the_same_random_numbers_on_all_ranks(tmp_path, state, expected):
    build = trained(
        tmp_path, steps=150, ranks=2, hello={"model": {"modules": {"Dropout": 2, "Linear": 4}}}
    )
    replicas(build, lambda rank, update: update, state=state)
    assert list(found(build)) == expected


def test_the_same_random_numbers_where_nothing_is_dropped(tmp_path):
    build = trained(tmp_path, steps=150, ranks=2, hello={"model": {"modules": {"Dropout": 2}}})
    for rank in range(2):
        for update in (10, 11, 50, 51):
            random = {"seed": 7, "state": update, "drops": False}
            event = {"update": update, "group": 2, "parameters": update, "random": random}
            build.event("replica", rank=rank, pid=rank + 1, **event)
    assert "RE03" not in found(build)


def test_a_loss_that_is_0_from_the_start_is_no_problem_that_is_solved(tmp_path):
    """As cross_entropy() of a single class, which a tutorial of PyTorch's has."""
    nothing = dead(tmp_path / "nothing", loss=lambda step: 0.0)["NU13"]
    assert nothing.severity == "high" and "from the first step on" in nothing.fix
