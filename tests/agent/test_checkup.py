"""The rare look at gradients and parameters, in real trainings: one script that forks a child for
each habit.
"""

import pytest
import torch
from agent_support import run_script

from gputop_agent.runtime.session import session
from gputop_agent.watchers.graphs import graph_chain
from gputop_agent.watchers.looks.checkup import PERIOD_STEPS

pytestmark = pytest.mark.e2e

SCRIPT = """
import eager, each_kind, torch, torch.utils.data
from torch import nn
kind = each_kind.fork()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.unused = nn.Linear(16, 16), nn.Linear(16, 8)
        self.drop = nn.Dropout(0.1)
    def forward(self, x): return self.body(x)
def gains(ratio, told): return ratio * told, ratio.clamp(0.8, 1.2) * told
net = Net()
if kind == "bf16": net = net.to(torch.bfloat16)
opt = torch.optim.AdamW(net.parameters(), 1e-6 if kind == "bf16" else 1e-3)
several = kind in ("two", "turns", "idle")
if several:
    opt = torch.optim.AdamW(net.body.parameters())
    head = torch.optim.SGD(net.unused.parameters(), 1e-3)
if kind == "shared": head = torch.optim.AdamW(net.unused.parameters())
if kind == "unstepped": head = torch.optim.SGD(net.unused.parameters(), 1e-3)
teacher = nn.Linear(16, 16)
if kind == "dead":
    net.body = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    nn.init.constant_(net.body[0].bias, -1e3)
    opt = torch.optim.AdamW(net.parameters())
if kind == "rounded":
    opt.add_param_group({"params": list(teacher.parameters())})
if kind == "thawed":
    net.body.requires_grad_(False)
    opt = torch.optim.AdamW([one for one in net.parameters() if one.requires_grad])
kept, shown = [], {"loss": 0.0}
class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.heads = [nn.Linear(16, 4), nn.Linear(16, 4)]  # held
    def forward(self, x): return sum(head(self.first(x)) for head in self.heads)
if kind == "held":
    heads = Heads()
    opt.add_param_group({"params": list(heads.parameters())})
own = {"shift": nn.Parameter(torch.ones(4, 16))}
points = torch.ones(4, 16).requires_grad_(bool(kind))
if kind == "inside": opt.add_param_group({"params": list(own.values())})
scheduler = torch.optim.lr_scheduler.StepLR(opt, 80)
scaler = torch.amp.GradScaler("cpu", enabled=kind in ("scaler", "clip_scaled"))
def fetch(n):
    return torch.utils.data.DataLoader(torch.randn(n * 4, 16).to(net.unused.weight.dtype), 4)
for step, x in enumerate(fetch(1500 if kind in ("kept", "numbers", "averaged") else 160)):
    if kind == "graphs" and step % 80 == 50:
        net.eval()
        for y in fetch(5): net(y)
        net.train()
    if kind == "listed" and step % 80 == 50:
        net.eval()
        print(sum(net(y).sum().item() for y in torch.randn(5, 4, 16)))
        net.train()
    if kind == "criterion" and step % 80 == 50:
        net.eval()
        for y in fetch(5): nn.MSELoss()(net(y).detach(), y).item()
        net.train()
    if kind in ("no_grad", "eval") and step % 80 == 50:
        net.eval()
        with torch.no_grad():
            for y in fetch(5): net(y)
        if kind == "no_grad": net.train()
    if kind in ("scored", "drawn", "target"):
        if kind == "drawn" and step == 10:
            net.eval()
            with torch.no_grad(): net(x)
            net.train()
        if kind == "target" or step % 40 == 30:
            with torch.no_grad():
                for y in [x] if kind == "target" else fetch(5): net(y)  # scored
    if kind == "kept":  # the forward runs inside the update, as in Lightning
        def closure():
            opt.zero_grad()
            loss = net(x).square().mean()
            kept.append(loss * 2)
            loss.backward()
            return loss
        opt.step(closure)
        continue
    pulled = 0.0
    if kind == "pulled":
        net.eval()
        pulled = (net(x) - net(x + 0.1)).square().mean()
        net.train()
    if kind == "thawed":
        if step == 10: net.body.requires_grad_(True)
        pulled = net.unused(net(x)).square().mean()
    loss = net(x).square().mean() + pulled
    if kind == "each second" and step % 2: loss = loss + net.unused(x).square().mean()
    if kind == "each tenth" and step % 10 == 7: loss = loss + net.unused(x).square().mean()
    if kind == "until 50" and step < 50: loss = loss + net.unused(x).square().mean()
    if kind == "anew": opt = torch.optim.AdamW(net.parameters(), 1e-3)
    if kind in ("outside", "inside"): loss = loss + (net(x) * own["shift"]).square().mean()
    if kind == "held": loss = loss + heads(x).square().mean()
    if kind == "rounded": loss = (net.unused(x).mean() + teacher(net(x)).round()).square().mean()
    if kind == "points": loss = loss + (net(x) * points).square().mean()
    if kind == "softmax": loss = nn.functional.cross_entropy(net(x).softmax(1), torch.arange(4))
    if kind in ("by class", "mixed", "tokens"):
        targets = torch.arange(8) if kind == "mixed" else torch.full((8,), step // 40 % 4)
        scores = net(x.repeat(2, 1, 1)).flatten(0, 1) if kind == "tokens" else net(x.repeat(2, 1))
        loss = nn.CrossEntropyLoss()(scores, targets)
    if kind == "crossed": loss = nn.functional.mse_loss(net(x)[:, :1], x[:, 0])
    if kind == "crossed by hand": loss = (x[:, 0] - net(x)[:, :1]).square().mean()
    if kind == "column": loss = (net(x)[:, :1] - x[:, :1]).square().mean()
    if kind == "weighed": loss = ((net(x)[:, :1] - x[:, :1]).square() * x[:, 0].abs()).mean() + loss
    if kind == "weighed gains": loss = -torch.minimum(*gains(net(x)[:, :1].exp(), x[:, 0])).mean()
    if kind == "pairs": loss = (net(x)[:, :1] - net(x)[:, :1].T).square().mean()
    if kind == "one for all": loss = nn.functional.mse_loss(net(x).mean(), x)
    if kind in ("heads", "surgery"): (2 * loss).backward(retain_graph=True)
    if kind == "surgery": opt.zero_grad()
    if kind == "teacher": loss = loss + (net(x) - teacher(x)).square().mean()
    if kind == "numbers": kept.append(str(loss.item()))
    if kind == "averaged":
        shown["loss"] = 0.9 * shown["loss"] + 0.1 * loss
    if kind == "between": opt.zero_grad()
    scaler.scale(loss).backward()
    if kind in ("clip", "clip_scaled"): nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.5)
    if kind == "order": scheduler.step()
    scaler.step(opt)
    scaler.update()
    if kind == "clip_late": nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.5)
    if kind == "norm_late": nn.utils.clip_grad_norm_(net.parameters(), float("inf"))
    if several:
        if kind == "turns": head.zero_grad()
        net.unused(x).square().mean().backward()
        if kind != "idle": head.step()
    if kind == "shared":
        net.unused(x).square().mean().backward()
        head.step()
    if kind not in ("order", "anew"): scheduler.step()
    if kind not in ("never", "between"): opt.zero_grad(set_to_none=kind != "zeros")
"""
KINDS = [
    "plain",
    "never",
    "two",
    "between",
    "zeros",
    "graphs",
    "criterion",
    "listed",
    "pulled",
    "no_grad",
    "bf16",
    "clip",
    "order",
    "scaler",
    "turns",
    "teacher",
    "outside",
    "inside",
    "points",
    "rounded",
    "held",
    "crossed",
    "crossed by hand",
    "column",
    "weighed",
    "weighed gains",
    "pairs",
    "one for all",
    "dead",
    "kept",
    "numbers",
    "averaged",
    "idle",
    "shared",
    "unstepped",
    "eval",
    "anew",
    "softmax",
    "by class",
    "mixed",
    "tokens",
    "heads",
    "clip_scaled",
    "clip_late",
    "norm_late",
    "surgery",
    "thawed",
    "scored",
    "drawn",
    "target",
    "each second",
    "each tenth",
    "until 50",
]
LONG = ("kept", "numbers", "averaged")


@pytest.fixture(scope="module")
def guests(tmp_path_factory):
    """What each child's guest sent, by the habit."""
    script = tmp_path_factory.mktemp("checkup") / "habits.py"
    script.write_text(SCRIPT)
    outcome = run_script([str(script), *KINDS], timeout=200)
    assert (outcome.exit_code, outcome.agent_errors) == (0, ""), outcome.stderr
    assert outcome.stderr.count("Warning:") == 3 and "Traceback" not in outcome.stderr, (
        "torch's own, of the scheduler and of the sizes of two losses"
    )
    return outcome.by_kind(KINDS)


def looks(guests, kind):
    return guests[kind].of_type("checkup")


def hello(guests, kind):
    known = {}
    for event in guests[kind].of_type("hello") + guests[kind].of_type("hello_update"):
        known.update(event)
    return known


@pytest.mark.parametrize("kind", KINDS)
def test_four_looks_and_every_step_counted(guests, kind):
    assert guests[kind].n_steps == (1500 if kind in LONG else 160)
    if kind not in ("eval", "by class"):  # where some are added
        assert [one["step"] // 20 for one in looks(guests, kind)[:4]] == [1, 2, 3, 5]
    if kind not in (
        "dead",
        "teacher",
        "outside",
        "held",
        "rounded",
        "pairs",  # the bias falls out of them
        "idle",
        "eval",
        "anew",
        "thawed",
        "scored",
        "by class",
        "until 50",
    ):  # they become sure of what they suspect
        assert [one["alike"] for one in looks(guests, kind)[:4]] == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_that_are_held_and_gradients_that_are_not_zero(guests, kind):
    last = looks(guests, kind)[-1]
    assert (last.get("held_bytes", 0) > 0) == (
        kind in ("never", "between", "zeros", "idle")  # idle: the forward of the head comes first
    )
    assert last.get("stale", False) == (kind == "never")


def test_a_part_that_some_steps_use_is_none_without_gradient(guests):
    """Whatever the steps of the looks are: the optimizer has counted updates of it meanwhile."""
    for kind in ("each second", "each tenth"):
        assert [one["without_gradient"] for one in looks(guests, kind)] == [0, 0, 0, 0], kind
    unused = 16 * 8 + 8
    assert looks(guests, "plain")[-1]["without_gradient"] == unused
    lost = [one["without_gradient"] for one in looks(guests, "until 50")]
    assert lost == [0, 0, 0, unused]  # of updates before the look at 61


def test_a_part_that_another_optimizer_updates_is_none_without_gradient(guests):
    """As of InfoGAN: the third optimizer has the discriminator, whose head its loss does not use;
    to freeze that head would end what the second one trains.
    """
    assert [one["without_gradient"] for one in looks(guests, "shared")] == [0, 0, 0, 0]
    unused = 16 * 8 + 8
    assert [one["without_gradient"] for one in looks(guests, "unstepped")] == [unused] * 4


def test_no_three_looks_in_a_row_fall_on_one_step_of_a_short_cycle(guests):
    steps = [one["step"] for one in looks(guests, "plain")]
    later = [*steps, steps[-1] + PERIOD_STEPS, steps[-1] + 2 * PERIOD_STEPS]
    for cycle in range(2, 11):
        for three in zip(later, later[1:], later[2:], strict=False):
            assert len({step % cycle for step in three}) > 1, (cycle, three)


def test_one_of_two_optimizers_that_is_never_cleared(guests):
    (event,) = guests["two"].of_type("uncleared")
    assert (event["optimizer"], event["looks"], event["backwards"]) == ("SGD", 3, 2)
    assert not any(guests[kind].of_type("uncleared") for kind in KINDS if kind != "two")


def test_gradients_that_no_optimizer_has_use_for(guests):
    last = looks(guests, "teacher")[-1]
    assert (last["stray"], last["stray_names"]) == (16 * 16 + 16, ["Linear.weight", "Linear.bias"])
    assert last["stray_looks"] == 3 and last["graded"] == 2 * last["stray"]
    assert not last["stray_waiting"]
    # an optimizer that is made anew has not stepped yet when a look meets it
    assert "stray_optimizer_at" not in last
    strays = ("teacher", "outside", "held", "idle", "anew", "thawed")
    others = [kind for kind in KINDS if kind not in strays]
    assert not any("stray" in look for kind in others for look in looks(guests, kind))


def test_a_part_that_is_thawed_and_given_to_no_optimizer(guests):
    last = looks(guests, "thawed")[-1]
    assert set(last["stray_names"]) == {"body.weight", "body.bias"} and last["stray_looks"] >= 3
    assert last["stray_optimizer_at"] == f"habits.py:{line_with('one.requires_grad]')}"
    assert last["stray_thawed_at"] == f"habits.py:{line_with('requires_grad_(True)')}"


@pytest.mark.parametrize("kind", ["crossed", "crossed by hand", "weighed", "weighed gains"])
def test_predictions_that_are_compared_with_all_targets(guests, kind):
    last = looks(guests, kind)[-1]
    assert (last["predictions_shape"], last["errors_shape"]) == ([4, 1], [4, 4])
    assert last["weighed"] == kind.startswith("weighed")
    # the nearest line above the backward that makes a loss which is not made from one
    assert last["loss_at"] == f"habits.py:{line_with('one for all')}"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("crossed", 'if kind == "crossed":'),
        ("crossed by hand", 'if kind == "crossed by hand":'),
        ("weighed", 'if kind == "weighed":'),
        ("weighed gains", "def gains"),
        ("softmax", 'if kind == "softmax":'),
    ],
)
def test_the_operation_itself_has_its_line_from_the_second_look_on(guests, kind, words):
    first, *others = looks(guests, kind)
    assert "shapes_at" not in first
    assert {look["shapes_at"] for look in others} == {f"habits.py:{line_with(words)}"}


def test_errors_of_other_shapes_are_none_of_that(guests):
    others = [kind for kind in KINDS if not kind.startswith(("crossed", "weighed"))]
    assert not any("predictions_shape" in look for kind in others for look in looks(guests, kind))


def test_modules_in_a_plain_list(guests):
    last = looks(guests, "held")[-1]
    assert last["stray"] == 2 * (16 * 4 + 4) and last["stray_held_in"] == "Heads.heads, a list"
    assert last["stray_held_at"] == f"habits.py:{line_with('# held')}"
    others = [kind for kind in KINDS if kind != "held"]
    assert not any("stray_held_in" in look for kind in others for look in looks(guests, kind))


def test_a_parameter_in_a_plain_dict(guests):
    last = looks(guests, "outside")[-1]
    assert (last["stray"], last["stray_outside"]) == (4 * 16, 4 * 16)
    assert last["stray_names"] == ["a tensor of 4 x 16"] and last["stray_looks"] >= 3
    assert last["stray_made_at"] == f"habits.py:{line_with('nn.Parameter(')}"


def line_with(words):
    return next(n for n, text in enumerate(SCRIPT.split("\n"), 1) if words in text)


def test_an_optimizer_that_never_steps(guests):
    last = looks(guests, "idle")[-1]
    assert set(last["stray_names"]) == {"unused.weight", "unused.bias"}
    assert last["stray"] == last["stray_waiting"] == 16 * 8 + 8 and last["stray_looks"] == 3


def test_a_model_that_is_left_in_eval_mode(guests):
    told = [look for look in looks(guests, "eval") if "eval_mode" in look]
    assert [(look["eval_mode_looks"], look["step"] // 20) for look in told[:2]] == [(1, 3), (2, 4)]
    assert (told[0]["eval_mode"], told[0]["eval_mode_parts"]) == ("Net", ["Dropout"])
    assert told[0]["eval_mode_at"] is None, "one of several lines"
    assert told[0]["eval_mode_after"] // 20 == 2
    others = [kind for kind in KINDS if kind != "eval"]
    assert not any("eval_mode" in look for kind in others for look in looks(guests, kind))


def test_an_evaluation_in_training_mode(guests):
    last = looks(guests, "scored")[-1]
    assert last["evaluated_in_training_steps"] == 2
    assert last["evaluated_in_training"] == "Net"
    assert last["evaluated_in_training_parts"] == ["Dropout"]
    line = next(n for n, text in enumerate(SCRIPT.split("\n"), 1) if text.endswith("# scored"))
    assert last["evaluated_in_training_at"] == f"habits.py:{line}"
    others = [kind for kind in KINDS if kind != "scored"]
    assert not any("evaluated_in_training" in look for one in others for look in looks(guests, one))


def test_an_operation_that_lets_no_gradient_through(guests):
    last = looks(guests, "rounded")[-1]
    assert last["zero_gradient_looks"] == 3 and last["zero_gradient_by"] == "round"
    assert last["zero_gradient_made_at"] == f"habits.py:{line_with('.round()')}"
    assert "zero_gradient_by" not in looks(guests, "dead")[-1]


def test_a_layer_whose_units_are_dead(guests):
    last = looks(guests, "dead")[-1]
    assert last["gradients_not_zero"] > 0
    assert set(last["zero_gradient_names"]) == {"body.0.weight", "body.0.bias", "body.2.weight"}
    assert last["zero_gradient"] == 2 * 16 * 16 + 16 and last["zero_gradient_looks"] == 3
    assert "zero_gradient" not in looks(guests, "plain")[-1]


def test_graphs_that_are_kept_are_counted_although_memory_stands_still(guests):
    counts = guests["kept"].of_type("tensors")
    first, last = counts[0], counts[-1]
    assert last["with_graph"] - first["with_graph"] == last["step"] - first["step"] >= 80
    assert counts[-1]["graph_kind"] == "MulBackward0 []"
    assert [one["with_graph"] for one in guests["numbers"].of_type("tensors")] == [1]
    assert not guests["plain"].of_type("tensors")


def test_an_average_that_keeps_all_graphs_is_one_tensor(guests):
    count = guests["averaged"].of_type("tensors")[0]
    assert count["chain_nodes"] >= count["chain_steps"] >= 80
    assert count["chain_kept_as"] == "loss" and count["with_graph"] < 10
    line = SCRIPT.split("\n").index('    if kind == "averaged":') + 2
    assert count["chain_site"] == f"habits.py:{line}"
    assert "chain_nodes" not in guests["kept"].of_type("tensors")[-1]


def test_a_graph_that_goes_back_to_what_was_made_once_is_no_chain(monkeypatch):
    monkeypatch.setattr(session, "torch", torch)
    made_once = torch.ones(2, requires_grad=True) * 2
    chain, total = graph_chain.Chain(), made_once.sum()
    since = chain.begin()
    for _ in range(40):
        loss = (made_once * 3).exp().sum()
        total = total + loss
    assert chain.look([loss]) == (0, None)
    chain.since = since
    nodes, begin = chain.look([loss, total])
    assert begin is total and nodes >= 40


def test_a_chain_that_keeps_tensors_at_each_of_its_nodes(monkeypatch):
    """What a square saves of its input is a tensor of Python's again, as old as its step."""
    monkeypatch.setattr(session, "torch", torch)
    weight = torch.ones(2, requires_grad=True)
    chain, total, kept = graph_chain.Chain(), torch.zeros(()), []
    for step in range(50):
        if step == 1:
            chain.begin()
        values = weight * step
        total = total + values.square().sum()
        loss = (values * 3).exp().sum()
        kept += [values, loss]
    nodes, begin = chain.look([*kept, total])
    assert begin is total and nodes >= 49


def test_parameters_without_gradient_are_named(guests):
    last = looks(guests, "plain")[-1]
    assert (last["without_gradient"], last["trainable"]) == (16 * 8 + 8, 16 * 16 + 16 + 16 * 8 + 8)
    assert last["without_gradient_names"] == ["unused.weight", "unused.bias"]


def test_updates_that_bf16_cannot_hold(guests):
    last = looks(guests, "bf16")[-1]
    assert last["bf16_pushed"] == 256 and last["bf16_stuck"] > 240
    assert "bf16_pushed" not in looks(guests, "plain")[-1]


def test_graphs_of_an_evaluation_are_counted(guests):
    graphs = hello(guests, "graphs")["graph_eval"]
    line = next(at for at, text in enumerate(SCRIPT.splitlines(), 1) if "for y in fetch(5)" in text)
    assert graphs["forwards"] == 10 and graphs["site"] == f"habits.py:{line}"
    criterion = hello(guests, "criterion")["graph_eval"]
    assert criterion["forwards"] == 10, "whose loss is a module, without parameters"
    assert hello(guests, "listed")["graph_eval"]["forwards"] >= 5, "of a loop without a loader"
    assert "graph_eval" not in hello(guests, "no_grad")
    assert "graph_eval" not in hello(guests, "pulled"), "two in eval mode, which a backward uses"


def test_the_clip_limit_and_the_order_of_the_scheduler(guests):
    clip = hello(guests, "clip")["clip"]
    assert clip["max_norm"] == 0.5 and clip["site"].startswith("habits.py:")
    assert "clip" not in hello(guests, "plain")
    assert [looks(guests, kind)[0]["scheduler_first"] for kind in ("plain", "order")] == [
        False,
        True,
    ]


def line_of(text):
    return next(at for at, line in enumerate(SCRIPT.splitlines(), 1) if text in line)


def test_habits_of_a_script_are_seen_at_the_looks(guests):
    anew = looks(guests, "anew")[-1]
    assert anew["fresh_looks"] >= 3
    made_at = line_of('if kind == "anew": opt')
    assert anew["fresh_at"] == f"habits.py:{made_at}"
    assert looks(guests, "softmax")[-1]["normalised_twice"] == "softmax"
    assert looks(guests, "heads")[-1]["graph_again"] == [pytest.approx(0.9, abs=0.2)]
    assert looks(guests, "clip_scaled")[-1]["clips_scaled"] >= 100
    late = looks(guests, "clip_late")[-1]
    assert late["clips_late"] == late["clips"] >= 100
    habits = "fresh_looks", "normalised_twice", "graph_again", "clips_scaled", "clips_late"
    for kind in (
        "plain",
        "never",
        "scaler",
        "clip",
        "norm_late",
        "teacher",
        "bf16",
        "two",
        "turns",
        "pulled",
        "surgery",
    ):
        assert not set(habits) & set(looks(guests, kind)[-1]), kind
    assert 1e-3 < looks(guests, "plain")[-1]["weights_rms"] < 1


def test_the_class_that_a_batch_holds_alone(guests):
    last = looks(guests, "by class")[-1]
    assert last["one_class_looks"] == last["class_looks"] >= 5
    assert last["one_class_in_turn"] == [0, 1, 2, 3]
    mixed = looks(guests, "mixed")[-1]
    assert (mixed["class_looks"], mixed["one_class_looks"], mixed["one_class_in_turn"]) == (
        4,
        0,
        [],
    )
    for kind in ("tokens", "softmax", "plain"):  # of texts; of four targets; of another loss
        assert "class_looks" not in looks(guests, kind)[-1], kind


def test_lines_of_optimizer_scheduler_backward_and_update(guests):
    optimizer, look = hello(guests, "plain")["optimizer"], looks(guests, "plain")[-1]
    assert (
        optimizer["site"] == f"habits.py:{line_of('opt = torch.optim.AdamW(net.parameters(), 1')}"
    )
    assert optimizer["scheduler"] == f"habits.py:{line_of('scheduler = ')}"
    assert look["backward_at"] == f"habits.py:{line_of('scaler.scale(loss).backward()')}"
    assert look["update_at"] == f"habits.py:{line_of('scaler.step(opt)')}"


def test_the_learning_rate_is_followed_in_the_fast_lane(guests):
    assert guests["plain"].steps[-1]["lr"] == pytest.approx(1e-4)


def test_only_a_scaler_that_is_switched_on_is_told(guests):
    assert hello(guests, "scaler")["amp"]["grad_scaler"] is True
    assert hello(guests, "plain")["amp"]["grad_scaler"] is False
