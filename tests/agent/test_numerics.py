"""Where a NaN came from, in real trainings: the cases of ``bench/nan_cases.py``, a forked child a
case.
"""

import re
from pathlib import Path

import pytest
from agent_support import run_plain, run_script
from nan_cases import BY_NAME, FAULT_STEP

pytestmark = pytest.mark.e2e
BENCH = Path(__file__).parents[2] / "bench"

SCRIPT = f"""
import eager, sys
sys.path.insert(0, {str(BENCH)!r})
import nan_training
nan_training.main(sys.argv[1:])
"""

WATCHED = (
    "exp in a softmax",
    "fully masked row",
    "sqrt backward at 0",
    "bad sample",
    "poisoned weight",
    "a layer that makes a mask",
    "GradScaler that finds its scale",
    "checkpointing",
)
AFTERWARDS = (
    "exp in a softmax",
    "where and sqrt",
    "bad sample",
    "log 0 in the loss",
    "GradScaler, every step",
    "NaN taken out again",
)


def origins(folder, names, **env):
    script = folder / "train.py"
    script.write_text(SCRIPT)
    found = run_script([str(script), *names], **env)
    assert found.exit_code == 0, found.stderr
    assert found.agent_errors == ""
    events = [guest.of_type("nan_origin") for guest in found.guests]
    return found.stdout, dict(zip(names, events, strict=True))


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numerics")
    stdout, events = origins(folder, WATCHED, GPUTOP_WATCH_NUMERICS="1")
    assert stdout == run_plain([str(folder / "train.py"), *WATCHED]).stdout
    return events


@pytest.fixture(scope="module")
def afterwards(tmp_path_factory):
    return origins(tmp_path_factory.mktemp("numerics"), AFTERWARDS)[1]


@pytest.mark.parametrize("name", WATCHED)
def test_each_step_watched_names_the_layer_once_or_says_nothing(watched, name):
    check(BY_NAME[name], watched[name])


@pytest.mark.parametrize("name", AFTERWARDS)
def test_what_is_left_names_the_layer_where_nothing_was_watched(afterwards, name):
    check(BY_NAME[name], afterwards[name])


def check(case, events):
    if case.layer is None:
        assert events == []
        return
    (event,) = events
    assert re.fullmatch(case.direction, event["direction"]), event
    if case.direction != "input":
        assert event["layer"] == case.layer, event
    if "operation" in event:
        assert re.search(case.operation, event["operation"]), event


def test_the_batch_is_named_to_the_sample_and_its_file(watched):
    (event,) = watched["bad sample"]
    assert event["step"] == FAULT_STEP
    number = FAULT_STEP * 8 + 2
    assert event["batch"] == {
        "number": FAULT_STEP + 1,
        "finite": False,
        "rows": [2],
        "samples": [number],
        "files": [f"sample-{number}.npy"],
    }


def test_an_overflow_has_the_limit_that_it_crossed(watched):
    (event,) = watched["exp in a softmax"]
    assert (event["value"], event["dtype"]) == ("inf", "float32")
    assert event["limit"] == pytest.approx(3.4028e38, rel=1e-4)


def test_a_weight_is_named_and_what_came_back_is_said_to_be_between(watched, afterwards):
    assert watched["poisoned weight"][0]["weight"] == "weight"
    (event,) = afterwards["where and sqrt"]
    assert (event["how"], event["between"]) == ("weights", ["body.before.down", "body.after.up"])
    assert event["step"] == FAULT_STEP + 1


OTHER_SHAPES = """
import eager, math, sys, torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self, *first):
        super().__init__()
        self.body = nn.Sequential(*first, nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 8)
        self.divides = False

    def forward(self, x):
        x = self.body(x)
        return self.head(x / 0 if self.divides else x)


models, target = [Net()], 0.0
if sys.argv[1] == "row of a table":
    models = [Net(nn.Embedding(40, 8))]
    with torch.no_grad():
        models[0].body[0].weight[30] = math.nan
if sys.argv[1] == "two of one class":
    models = [Net(), Net()]
optimizer = torch.optim.SGD([w for model in models for w in model.parameters()], 1e-3)
for step in range(16):
    x = torch.randn(4, 8)
    if sys.argv[1] == "row of a table":
        x = torch.full((4,), 30 if step == 12 else step)
    if sys.argv[1] == "two of one class":
        models[1].divides = step == 12
    if sys.argv[1] == "target":
        target = math.nan if step == 12 else 0.0
    for model in models:
        x = model(x)
    loss = F.mse_loss(x, torch.full_like(x, target))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
"""


@pytest.mark.parametrize("option", ["", "1"])
@pytest.mark.parametrize(
    ("name", "direction", "layer"),
    [
        ("row of a table", "weights", "body.0"),
        ("target", "input", "loss"),
        ("two of one class", "forward", "Net#2"),
    ],
)
def test_a_row_a_target_and_the_second_of_two_models_are_named(
    tmp_path, name, direction, layer, option
):
    """A row that no batch used is no gradient's work; a target is no operation's of the loss."""
    script = tmp_path / "train.py"
    script.write_text(OTHER_SHAPES)
    found = run_script([str(script), name], GPUTOP_WATCH_NUMERICS=option)
    assert found.exit_code == 0 and found.agent_errors == "", found.stderr
    (first, *_) = found.guest.of_type("nan_origin")
    assert (first["step"], first["direction"], first["layer"]) == (12, direction, layer)


def test_a_norm_that_stays_not_finite_is_looked_into_a_few_times(monkeypatch):
    """Each look makes objects enough to wake the garbage collector of the training."""
    from gputop_agent.watchers.nan import numerics

    looks = []
    monkeypatch.setattr(numerics, "watch", numerics.NumericsWatch())
    monkeypatch.setattr(numerics, "_explain_norm", lambda: looks.append(numerics.session.step))
    monkeypatch.setattr(numerics.steps, "book_agent_time", lambda function, *args: function(*args))
    for step in range(100):
        monkeypatch.setattr(numerics.session, "step", step)
        numerics.norm_is_bad()
    assert len(looks) == numerics.MAX_NORMS
    numerics.watch.norms_explained, numerics.watch.is_bad = 0, True
    numerics.norm_is_bad()
    assert len(looks) == numerics.MAX_NORMS, "what the loss has told already"
