"""The line that may have made a value which is not finite, read from the source of a script."""

import ast
import textwrap
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from gputop_agent.runtime.session import session
from gputop_agent.watchers.loaders import batch_origin
from gputop_agent.watchers.nan import attribute_fills, held_values, nan_source, value_flow

SCRIPT = """
import math
import torch


def scaled(x):
    spread = x.std(0)  # callee
    return (x - x.mean(0)) / (spread + 1e-3)


def balance(counts):
    return counts.sum() / counts  # weights


def learn(self, batch):
    x, y = batch
    rate = self.base / self.warm  # no way in
    if self.fresh:
        x = x * float("nan")  # literal
    first, best = x / x.norm(), float("inf")  # own
    self.call("literal", x, y)
    second = scaled(y)
    self.call("callee", second)
    third = torch.log(y + 1e-6)  # guarded
    self.call("guarded", third)
    fourth = y * 2
    self.call("nothing", fourth)
    fifth = torch.sqrt(y)  # far
    sixth = (
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        9,
        10,
        11,
        12,
    )
    seventh = torch.log(fifth)
    self.call("far", seventh)
    loss = torch.nn.functional.nll_loss(
        self.model(y), y, balance(self.counts)
    )
    return loss


def deviance(told, paid):
    return told - paid * paid.log()  # in the loss


def back(told, paid):
    each = deviance(told, paid)
    each.mean().backward()


class Net:
    def spread(self, x):
        return torch.sqrt(x.square().mean(2) - x.mean(2).square())  # method

    def forward(self, x):
        deviation = self.spread(x)
        return self.first(deviation)  # forward
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "torch", torch)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def line_of(text):
    return next(at for at, line in enumerate(SCRIPT.split("\n"), 1) if text in line)


@pytest.mark.parametrize(
    ("call", "made", "operation"),
    [
        ('call("literal"', "# literal", "nan"),
        ('call("callee"', "# callee", "std"),
        ('call("guarded"', "# guarded", "log"),
        ("self.model(y)", "# weights", "div"),
        ("# forward", "# method", "sqrt"),
        ("each.mean().backward()", "# in the loss", "log"),
    ],
)
def test_what_flows_into_a_call_and_can_make_a_nan(script, call, made, operation):
    told = nan_source.of_call(script, line_of(call))
    assert told is not None
    assert (told.site.rpartition(":")[2], told.operation) == (str(line_of(made)), operation)


AROUND = """
class Tone:
    def __call__(self, x):
        return x.clamp(0, 1) ** self.gamma if self.late else x**self.gamma  # tone


def filled(x):
    known = x.isfinite().float()
    return x * known, x.nan_to_num() * known  # masked


class Training:
    def __init__(self):
        self.tone = Tone()

    def losses(self, x, y):
        return self.net(x).sub(y)  # losses

    def learn(self, batch):
        loss = self.losses(self.tone(batch), batch.sub(1).div(2).pow(2))
        x, known = filled(batch)
        self.net(x)  # gaps
        self.net(batch * ~batch.isnan())  # asked
        self.net(batch**2, batch.pow(2))  # whole
"""


@pytest.mark.parametrize(
    ("call", "made", "operation"),
    [
        ("# losses", "# tone", "pow"),
        ("# gaps", "# masked", "mul"),
        ("# asked", "# asked", "mul"),
        ("# whole", None, None),
    ],
)
def test_values_are_followed_to_the_caller_and_into_objects(
    tmp_path, monkeypatch, call, made, operation
):
    monkeypatch.setattr(session, "torch", torch)
    path = tmp_path / "train.py"
    path.write_text(AROUND)
    lines = AROUND.split("\n")
    line = next(at for at, text in enumerate(lines, 1) if call in text)
    told = nan_source.of_call(str(path), line)
    if made is None:
        assert told is None
        return
    expected = next(at for at, text in enumerate(lines, 1) if made in text)
    assert told is not None
    assert (told.site.rpartition(":")[2], told.operation) == (str(expected), operation)


def test_of_several_layers_in_a_line_the_one_that_was_given_it(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "torch", torch)
    lines = [
        "def forward(self, windows, table):",
        "    windows = windows / self.spread",
        "    table = table.log()",
        "    return self.mixed(self.hours(windows), self.table(table))",
    ]
    path = tmp_path / "net.py"
    path.write_text("\n".join(lines))
    told = nan_source.of_call(str(path), 4, "net.table.0")
    assert told is not None and (told.operation, told.site.endswith(":3")) == ("log", True)
    told = nan_source.of_call(str(path), 4, "hours")
    assert told is not None and (told.operation, told.site.endswith(":2")) == ("div", True)


DIVIDED = """
def balanced(scores, sharpness):
    return scores / sharpness  # by a parameter
%s
class Trainer:
    def loss(self, large):
        targets = balanced(self.teacher(large), self.sharpness[self.step])
        logs = self.student(large) / self.plan.heat
        return (targets * logs).sum()  # met
""" % (15 * "\n")


class Plan:
    __slots__ = ("heat",)

    def __init__(self, heat):
        self.heat = heat


class Owner:
    def __init__(self, heat):
        self.plan = Plan(heat)


@pytest.mark.parametrize(("heat", "is_told"), [(0.1, True), (0.0, False), (None, False)])
def test_a_divisor_that_the_running_objects_know_to_be_a_number_is_no_suspect(
    tmp_path, monkeypatch, heat, is_told
):
    monkeypatch.setattr(session, "torch", torch)
    path = tmp_path / "train.py"
    path.write_text(DIVIDED)
    lines = DIVIDED.split("\n")
    line = next(at for at, text in enumerate(lines, 1) if "# met" in text)
    told = nan_source.of_call(str(path), line, "", [("self", Owner(heat))])
    assert (told is not None) == is_told
    if told:
        expected = next(at for at, text in enumerate(lines, 1) if "# by a" in text)
        assert told.site.endswith(f":{expected}")


def test_samples_are_not_blamed_where_several_lines_of_the_flow_are_as_likely(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(session, "torch", torch)
    path = tmp_path / "train.py"
    path.write_text(DIVIDED)
    line = next(at for at, text in enumerate(DIVIDED.split("\n"), 1) if "# met" in text)
    samples = value_flow.SourcePart(str(path), ast.parse("x / y").body[0])
    monkeypatch.setattr(nan_source, "_samples", lambda: [samples])
    assert nan_source.of_call(str(path), line) is None


@pytest.mark.parametrize("call", ['call("nothing"', 'call("far"', "# no way in"])
def test_where_no_line_or_several_can_it_says_nothing(script, call):
    assert nan_source.of_call(script, line_of(call)) is None


def test_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "torch", torch)
    assert nan_source.of_call(str(tmp_path / "gone.py"), 3) is None
    (tmp_path / "broken.py").write_text("def (:\n")
    assert nan_source.of_call(str(tmp_path / "broken.py"), 1) is None


DATA = """
import numpy
import torch


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, n):
        row = torch.arange(4.0) + n
        return row / (row - n).prod()  # sample


class Silenced(Rows):
    def __getitem__(self, n):
        row = torch.arange(4.0) / torch.arange(4.0).norm()
        with numpy.errstate(divide="ignore"):
            return torch.log(row)  # silenced


class Fine(Rows):
    def __getitem__(self, n):
        return torch.arange(4.0) / 4
"""


@pytest.mark.parametrize(
    ("name", "made"), [("Rows", "# sample"), ("Silenced", "# silenced"), ("Fine", None)]
)
def test_what_makes_the_samples(tmp_path, monkeypatch, name, made):
    monkeypatch.setattr(session, "torch", torch)
    path = tmp_path / "data.py"
    path.write_text(DATA)
    space: dict[str, Any] = {"__name__": "data"}
    exec(compile(DATA, str(path), "exec"), space)
    iterator = iter(DataLoader(space[name](), batch_size=2))
    monkeypatch.setattr(batch_origin, "batches", batch_origin.Batches())
    batch_origin.fetched(iterator, next(iterator))
    (tmp_path / "train.py").write_text(textwrap.dedent("for x in loader:\n    net(x)\n"))
    told = nan_source.of_call(str(tmp_path / "train.py"), 2)
    if made is None:
        assert told is None
    else:
        line = next(at for at, text in enumerate(DATA.split("\n"), 1) if made in text)
        assert told is not None and told.site.endswith(f":{line}")


HELD = """
import numpy as np
import torch


class Prices(torch.utils.data.Dataset):
    def __init__(self, table):
        self.returns = []
        for row in table:
            self.returns.append(np.log1p(row - 2))  # computed
        self.table = table

    def __len__(self):
        return 8

    def __getitem__(self, n):
        return self.returns[n]


class Read(Prices):
    def __init__(self, table):
        rows = read()
        self.returns = rows  # read


class Given(Prices):
    def __init__(self, rows):
        self.returns = rows  # given


def scaled(table):
    return table / table.std(0)  # scaled


def read():
    return np.full((8, 4), np.inf - np.inf)


class Days:
    def __init__(self, count):
        self.gains, self.days = np.zeros((count, 4)), np.zeros(count)


class World:
    def moved(self, day):
        return np.log(day)  # outside


class Rolled(Prices):
    def __init__(self, table):
        self.rolled = Days(8)
        self.fill()

    def __getitem__(self, n):
        return self.rolled.gains[n]

    def fill(self):
        rolled, world = self.rolled, World()
        for day in range(8):
            gain = world.moved(day)
            rolled.gains[day] = gain


def train():
    rows = scaled(np.ones((8, 4)))
    given = Given(rows)
    return torch.utils.data.DataLoader(given)  # built
"""


def line_with(text, source):
    return next(at for at, line in enumerate(source.split("\n"), 1) if text in line)


@pytest.mark.parametrize(
    ("name", "value", "made", "operation", "held_in"),
    [
        ("Prices", 0.5, "# computed", "log1p", "Prices.returns"),
        ("Read", float("nan"), "# read", "", "Read.returns"),
        ("Given", float("nan"), "# scaled", "div", "Given.returns"),
        ("Rolled", 0.0, "# outside", "log", "Days.gains"),
        ("Prices", 3.0, None, None, None),
    ],
)
def test_what_a_data_set_holds(tmp_path, monkeypatch, name, value, made, operation, held_in):
    np = pytest.importorskip("numpy")
    monkeypatch.setattr(session, "torch", torch)
    path = tmp_path / "data.py"
    path.write_text(HELD)
    space: dict[str, Any] = {"__name__": "data"}
    exec(compile(HELD, str(path), "exec"), space)
    with np.errstate(all="ignore"):
        loader = DataLoader(space[name](np.full((8, 4), value)), batch_size=2)
    iterator = iter(loader)
    monkeypatch.setattr(batch_origin, "batches", batch_origin.Batches())
    batch_origin.fetched(iterator, next(iterator))
    site = f"data.py:{line_with('# built', HELD)}"
    monkeypatch.setattr(nan_source.open_step, "loader", {"site": site})
    monkeypatch.setattr(nan_source.frames, "file_of", lambda site: str(path))
    monkeypatch.setattr(attribute_fills.source, "users_files", lambda: [str(path)])
    monkeypatch.setattr(held_values.keepers, "is_the_users", lambda value: type(value) is not type)
    (tmp_path / "train.py").write_text("for x in batches:\n    net(x)\n")
    told = nan_source.of_call(str(tmp_path / "train.py"), 2)
    if made is None:
        assert told is None
        return
    assert told is not None
    assert told.site.endswith(f":{line_with(made, HELD)}")
    assert (told.operation, told.held_in) == (operation, held_in)


OF_SONGS = """
import torch


def loss(scores, numbers):
    within = (numbers[1:] == numbers[:-1]).float()
    if scores.dim() > 1:
        return by_song(scores, within, numbers)
    return (scores * within).sum() / within.sum()  # not taken


def by_song(each, within, numbers):
    total = 0.0
    left = torch.bincount(numbers) - 1
    weight = (1 / left)[numbers]  # nearest
    total = total + (each * within * weight).sum()  # given
    return total


def learn(notes, numbers):
    total = loss(notes, numbers)
    total.backward()
"""


def test_what_the_function_itself_divides_is_likelier_than_what_its_callers_do(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(session, "torch", torch)
    path = tmp_path / "songs.py"
    path.write_text(OF_SONGS)
    told = nan_source.of_call(str(path), line_with("# given", OF_SONGS))
    assert told is not None and told.site.endswith(f":{line_with('# nearest', OF_SONGS)}")


def test_a_collate_function_that_is_an_object_is_read(tmp_path, monkeypatch):
    source = """
import torch


class Pictures:
    def __call__(self, sounds):
        return torch.stack(sounds).abs().log()  # collated
"""
    monkeypatch.setattr(session, "torch", torch)
    path = tmp_path / "pictures.py"
    path.write_text(source)
    space: dict[str, Any] = {"__name__": "pictures"}
    exec(compile(source, str(path), "exec"), space)
    iterator = iter(DataLoader([torch.ones(4)] * 8, batch_size=2, collate_fn=space["Pictures"]()))
    monkeypatch.setattr(batch_origin, "batches", batch_origin.Batches())
    batch_origin.fetched(iterator, next(iterator))
    (tmp_path / "train.py").write_text("for x in batches:\n    net(x)\n")
    told = nan_source.of_call(str(tmp_path / "train.py"), 2)
    assert told is not None and told.site.endswith(f":{line_with('# collated', source)}")


OF_HEAT = """
import torch


class Noise:
    def weight(self, level):
        ratio = (self.signal[level] / self.noise[level]) ** 2  # without a zero
        return ratio.clamp(max=5) / ratio  # with one


class Trainer:
    def learn(self, each, level):
        each = each / each.sum()  # of the line's own names
        total = (self.noise.weight(level) * each).mean()  # calls
        scores = self.model(each)
        scores = scores - self.frequencies[level]
        return torch.nn.functional.cross_entropy(scores, level)  # given

    def count(self, counts):
        self.frequencies = (counts / counts.sum()).log()  # held
"""


@pytest.fixture
def heat(tmp_path, monkeypatch):
    """A trainer with its noise, and the path of their source."""
    monkeypatch.setattr(session, "torch", torch)
    path = tmp_path / "heat.py"
    path.write_text(OF_HEAT)
    space: dict[str, Any] = {"__name__": "heat"}
    exec(compile(OF_HEAT, str(path), "exec"), space)
    trainer = space["Trainer"]()
    trainer.noise = space["Noise"]()
    trainer.noise.signal, trainer.noise.noise = torch.tensor([1.0, 0.0]), torch.tensor([0.1, 1.0])
    monkeypatch.setattr(
        held_values.keepers, "is_the_users", lambda one: type(one).__module__ == "heat"
    )
    return trainer, str(path)


def test_a_function_that_the_line_calls_is_likelier_and_a_divisor_without_zero_is_not(heat):
    trainer, path = heat
    told = nan_source.of_call(path, line_with("# calls", OF_HEAT), "", [("self", trainer)])
    assert told is not None and told.site.endswith(f":{line_with('# with one', OF_HEAT)}")


@pytest.mark.parametrize(
    ("counts", "is_told"), [([3.0, 0.0], True), ([3.0, 1.0], False), ([float("nan"), 1.0], False)]
)
def test_an_infinity_that_an_object_holds_is_followed_to_where_it_is_made(heat, counts, is_told):
    trainer, path = heat
    trainer.count(torch.tensor(counts))
    told = nan_source.of_attribute(path, line_with("# given", OF_HEAT), [("self", trainer)])
    assert (told is not None) is is_told
    if told:
        assert told.site.endswith(f":{line_with('# held', OF_HEAT)}")
        assert told.held_in == "Trainer.frequencies"
