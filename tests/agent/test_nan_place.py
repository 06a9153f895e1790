"""The line of the operation at which values stopped being finite, in real trainings."""

import pytest
import torch
from agent_support import run_plain, run_script

from gputop_agent.runtime.session import session
from gputop_agent.watchers.graphs import gradient_poles
from gputop_agent.watchers.graphs.graph_origin import Graph
from gputop_agent.watchers.nan import nan_place

pytestmark = pytest.mark.e2e

SCRIPT = """
import sys, warnings, eager, torch
from torch import nn
from torch.nn import functional as F
warnings.simplefilter("ignore")
torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x, mask):
        x = self.first(x)
        scores = x.masked_fill(~mask, float("-inf"))
        weights = scores.softmax(1)  # inside
        return self.last(weights * x)


def mean_of(losses, count):
    total = losses.sum()
    return total / count  # outside


net, kind = Net(), sys.argv[1]
optimizer = torch.optim.SGD(net.parameters(), 1e-2)
for step in range(40):
    mask = torch.ones(4, 8, dtype=torch.bool)
    if kind == "inside" and step == 25: mask[2] = False
    if kind == "first step" and step == 0: mask[2] = False
    longer = kind == "longer" and step != 25
    count = 0 if kind in ("outside", "two losses") and step >= 25 else 4
    if kind == "own mode" and step == 26: torch.autograd.set_detect_anomaly(True, check_nan=True)
    if kind == "own mode" and step == 25: count = 0
    x = torch.randn(4, 8)
    if kind == "before" and step == 25: x = x / torch.zeros(8)
    out = net(x, mask) * 1.0 if longer else net(x, mask)  # before
    if kind == "longer" and step == 25: count = 0
    if kind == "another way" and step == 25: out = out / torch.zeros(1)
    losses = F.cross_entropy(out, torch.randint(0, 3, (4,)), reduction="none")
    if kind == "outside" and step < 25: losses = losses * 1.0
    loss = mean_of(losses, count)
    optimizer.zero_grad()
    try:
        loss.backward()
    except RuntimeError as error:
        print(step, "stopped")
        break
    optimizer.step()
    if kind == "two losses": net(x, mask).square().mean().backward()
    print(step, loss.item())
print(torch.is_anomaly_enabled())
"""


def told(tmp_path, kind):
    """The events of a run whose output is that of a bare one."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    outcome = run_script([str(script), kind])
    assert (outcome.exit_code, outcome.agent_errors) == (0, ""), outcome.stderr
    bare = run_plain([str(script), kind])
    assert (outcome.stdout, outcome.stderr) == (bare.stdout, bare.stderr)
    (guest,) = outcome.guests
    return guest.of_type("nan_origin"), guest.of_type("nan_place")


@pytest.mark.parametrize(("kind", "operation"), [("inside", "softmax"), ("outside", "div")])
def test_the_line_is_that_of_the_operation(tmp_path, kind, operation):
    (origin, *_), (place,) = told(tmp_path, kind)
    line = next(at for at, text in enumerate(SCRIPT.split("\n"), 1) if text.endswith(f"# {kind}"))
    assert (place["site"], place["operation"]) == (f"train.py:{line}", operation)
    assert place["step"] == origin["step"] == 25


def test_of_what_came_into_the_model_the_line_is_that_which_calls_it(tmp_path):
    (origin, *_), (place,) = told(tmp_path, "before")
    line = next(at for at, text in enumerate(SCRIPT.split("\n"), 1) if text.endswith("# before"))
    assert origin["direction"] == "input"
    assert (place["step"], place["site"]) == (25, f"train.py:{line}")
    made = next(at for at, text in enumerate(SCRIPT.split("\n"), 1) if "x = x / torch" in text)
    assert (place["suspect_at"], place["suspect"]) == (f"train.py:{made}", "div")


def test_the_first_step_of_all_is_explained_too(tmp_path):
    (origin, *_), (place, *_) = told(tmp_path, "first step")
    line = next(at for at, text in enumerate(SCRIPT.split("\n"), 1) if text.endswith("# inside"))
    assert (place["step"], place["site"]) == (0, f"train.py:{line}")
    assert (origin["step"], origin["operation"]) == (0, "softmax")


def test_a_graph_that_is_longer_before_the_operation_tells_its_line(tmp_path):
    _, (place,) = told(tmp_path, "longer")
    line = next(at for at, text in enumerate(SCRIPT.split("\n"), 1) if text.endswith("# outside"))
    assert (place["site"], place["operation"]) == (f"train.py:{line}", "div")


def test_a_second_loss_between_them_is_passed_over(tmp_path):
    _, (place,) = told(tmp_path, "two losses")
    line = next(at for at, text in enumerate(SCRIPT.split("\n"), 1) if text.endswith("# outside"))
    assert (place["site"], place["operation"]) == (f"train.py:{line}", "div")


def test_a_step_that_goes_another_way_tells_no_line(tmp_path):
    (origin, *_), places = told(tmp_path, "another way")
    assert origin["operation"] == "div" and places == []


def test_a_mode_that_the_script_switches_on_stays(tmp_path):
    _, (place,) = told(tmp_path, "own mode")  # the output says that it is on at the end
    assert place["operation"] == "div"


OF_GRADIENTS = """
import sys, eager, torch
from torch import nn
torch.manual_seed(0)
kind = sys.argv[1]
class Net(nn.Sequential):
    def forward(self, x):
        out = super().forward(x)
        if kind == "of one weight":
            paid = x[:, :1].abs()
            paid = torch.where(paid > 0, (paid * self.scale).log(), paid)  # of one weight
            out = out + paid
        return out
net = Net(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
if kind == "of one weight": net.scale = nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD(net.parameters(), 1e-2)
for step in range(40):
    x = torch.randn(4, 8)
    if step == 25: x[0, 0] = 0
    out = net(x)
    same = out if step == 25 else out + torch.randn(4, 3)
    squares = (out - same).square().sum(1)
    losses = squares
    if kind == "root":
        losses = squares.sqrt()  # root
    elif kind == "power":
        losses = squares ** 0.4  # power
    elif kind == "two roots":
        losses = squares.sqrt() + 0.1 * (out - same).abs().sum(1) ** 0.5
        losses = losses * 1.0
        losses = losses + (out.sum(1) - same.sum(1)).abs().sqrt()
    elif kind == "left out":
        losses = torch.where(squares > 0, squares.log(), squares)  # left out
    loss = losses.sum() + 0.1 * (out * out + 1e-6).sqrt().mean()
    optimizer.zero_grad()
    loss.backward()
    if "clip" in sys.argv: nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    print(step, loss.item())
"""


def told_of_gradients(tmp_path, *words):
    script = tmp_path / "train.py"
    script.write_text(OF_GRADIENTS)
    outcome = run_script([str(script), *words])
    assert (outcome.exit_code, outcome.agent_errors) == (0, ""), outcome.stderr
    assert outcome.stdout == run_plain([str(script), *words]).stdout
    (guest,) = outcome.guests
    return guest.of_type("nan_origin")[0], guest.of_type("nan_place")


@pytest.mark.parametrize("clip", [(), ("clip",)])
@pytest.mark.parametrize(
    ("kind", "operation"), [("root", "sqrt"), ("left out", "log"), ("power", "pow")]
)
def test_the_one_line_whose_gradient_can_be_infinite_is_suspected(tmp_path, kind, operation, clip):
    """All layers' gradients were NaN while the loss was finite."""
    origin, (place,) = told_of_gradients(tmp_path, kind, *clip)
    texts = enumerate(OF_GRADIENTS.split("\n"), 1)
    line = next(at for at, text in texts if text.endswith(f"# {kind}"))
    assert origin["direction"] == "gone"
    assert (place["suspect_at"], place["suspect"]) == (f"train.py:{line}", operation)
    assert place["step"] == origin["step"] and "site" not in place


def test_the_line_whose_gradient_goes_to_the_one_weight_that_is_nan_is_suspected(tmp_path):
    origin, (place,) = told_of_gradients(tmp_path, "of one weight")
    texts = enumerate(OF_GRADIENTS.split("\n"), 1)
    line = next(at for at, text in texts if text.endswith("# of one weight"))
    assert (origin["direction"], origin["weight"]) == ("weights", "scale")
    assert (place["suspect_at"], place["suspect"]) == (f"train.py:{line}", "log")


def test_poles_that_reach_weights_which_are_numbers_are_not_guilty(monkeypatch):
    monkeypatch.setattr(session, "torch", torch)
    bad, good = torch.tensor([float("nan")], requires_grad=True), torch.ones(1, requires_grad=True)
    guilty = []
    for loss in (bad.sqrt(), bad.sqrt() + good, good.sqrt() + bad, (good * bad).sqrt()):
        graph = Graph(loss.sum(), reads_tensors=False)
        guilty.append(len(gradient_poles.guilty(graph)))
    assert guilty == [1, 1, 0, 0]


def test_a_pole_that_was_guilty_while_lines_were_not_known_is_it_in_the_next_forward(monkeypatch):
    """By then all weights may be NaN, and each pole as guilty as any other."""
    monkeypatch.setattr(session, "torch", torch)
    bad, good = torch.tensor([float("nan")], requires_grad=True), torch.ones(1, requires_grad=True)
    nan_place.begin_of_gradients(31)
    first = Graph((bad.sqrt() + good.square().sqrt()).sum(), reads_tensors=False)
    assert [pole.name for pole in nan_place._guilty(first)] == ["sqrt"]
    later = Graph((good.sqrt() + good.square().sqrt()).sum(), reads_tensors=False)
    assert not gradient_poles.guilty(later)
    (again,) = nan_place._guilty(later)
    assert again is gradient_poles.poles(later)[nan_place.search.poles[1][0]]
    nan_place.reset()


def test_of_two_such_lines_none_is_suspected(tmp_path):
    assert told_of_gradients(tmp_path, "two roots")[1] == []


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        (lambda x: x.sqrt(), ["sqrt"]),
        (lambda x: x**0.5, ["pow"]),
        (lambda x: x.square() ** 1.5, []),
        (lambda x: torch.where(x > 0, 1 / x, x), ["reciprocal"]),
        (lambda x: torch.where(x > 0, x**-1.5, x), ["pow"]),
        (lambda x: torch.where(x > 0, x.square(), x), []),
        (lambda x: 1 / x, []),
        (lambda x: (x + 1e-8).sqrt(), []),
        (lambda x: (x + x.abs()).sqrt(), ["sqrt"]),
        (lambda x: x.clamp(min=1e-8).unsqueeze(0).sqrt(), []),
        (lambda x: torch.maximum(x, torch.tensor(1e-8)).sqrt(), []),
        (lambda x: x.clamp(min=0).sqrt(), ["sqrt"]),
        (lambda x: x.clamp(-1, 1).arccos(), ["acos"]),
        (lambda x: x.clamp(-0.999, 0.999).arccos(), []),
        (lambda x: x.norm() + x.std(), []),
    ],
)
def test_poles_of_gradients(monkeypatch, loss, names):
    """Those at which the value is finite, and that nothing keeps off; torch's own norm and
    deviation give a gradient of 0 there.
    """
    monkeypatch.setattr(session, "torch", torch)
    x = torch.rand(4, requires_grad=True)
    graph = Graph(loss(x).sum(), reads_tensors=False)
    assert [node.name for node in gradient_poles.poles(graph)] == names
