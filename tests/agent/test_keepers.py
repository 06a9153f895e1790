"""Which container keeps what piles up."""

import contextlib
import inspect
import logging
import sys
from collections import OrderedDict, deque
from logging.handlers import MemoryHandler

import pytest
import torch

from gputop_agent.runtime import frames
from gputop_agent.watchers.memory import keepers


def of_this_file(file):
    """Where a file of code comes from: this one is the user's."""
    return frames.USER if file == __file__ else frames.LIBRARY


@pytest.fixture(autouse=True)
def _as_long_as_it_takes(monkeypatch):
    """A test's process has a million objects, and cores that others use."""
    monkeypatch.setattr(keepers, "MAX_WALKS_NS", 10**11)


class Recorder:
    """Keeps by an attribute."""

    def __init__(self):
        self.rows = []


def pile_of(kind):
    """A container with 200 tensors, and those tensors."""
    tensors = [torch.ones(2) * i for i in range(200)]
    return kind(tensors), tensors


def looked(tensors, keeper):
    return keeper.look(tensors, beside=())


def test_a_local_container_that_grows_is_named_at_the_second_look(monkeypatch):
    monkeypatch.setattr(frames, "origin", of_this_file)
    keeper = keepers.GrowingContainer()
    history, tensors = pile_of(lambda values: [(value, 1) for value in values])
    assert looked(tensors, keeper) == {}
    for _ in range(50):
        tensors.append(torch.ones(2))
        history.append((tensors[-1], 1))  # the line that fills it
    told = looked(tensors, keeper)
    assert told["kept_in"] == "history"
    with open(__file__) as file:
        line = 1 + next(n for n, text in enumerate(file) if text.rstrip().endswith("fills it"))
    assert told["kept_site"] == f"{frames.short_name(__file__)}:{line}"


def worst_of(value, kept=[]):
    kept.append((value, 1))  # into the default


def worst_by_keyword(value, *, kept_by_keyword=[]):
    kept_by_keyword.append((value, 1))


@pytest.mark.parametrize(
    ("function", "name"), [(worst_of, "kept"), (worst_by_keyword, "kept_by_keyword")]
)
def test_the_default_of_a_parameter_that_grows_has_its_name(monkeypatch, function, name):
    monkeypatch.setattr(frames, "origin", of_this_file)
    keeper = keepers.GrowingContainer()
    tensors = [torch.ones(2) * i for i in range(200)]
    for tensor in tensors:
        function(tensor)
    assert looked(tensors, keeper) == {}
    for _ in range(50):
        tensors.append(torch.ones(2))
        function(tensors[-1])
    told = looked(tensors, keeper)
    assert told["kept_in"] == name
    if name == "kept":
        with open(__file__) as file:
            line = 1 + next(n for n, text in enumerate(file) if text.endswith("default\n"))
        assert told["kept_site"] == f"{frames.short_name(__file__)}:{line}"


def test_a_variable_of_a_module_that_no_running_function_is_of(monkeypatch, tmp_path):
    (tmp_path / "history.py").write_text("shown_of_all = []\n")
    monkeypatch.syspath_prepend(tmp_path)
    import history  # pyright: ignore[reportMissingImports]

    monkeypatch.setattr(
        frames, "origin", lambda file: frames.USER if file == history.__file__ else frames.LIBRARY
    )
    pile = history.shown_of_all
    keeper = keepers.GrowingContainer()
    tensors = [torch.ones(2) * i for i in range(200)]
    pile.extend(tensors)
    del pile
    assert looked(tensors, keeper) == {}
    tensors += [torch.ones(2) for _ in range(50)]
    history.shown_of_all.extend(tensors[200:])
    assert looked(tensors, keeper)["kept_in"] == "shown_of_all"
    del sys.modules["history"]


def test_the_line_that_fills_it_is_not_the_one_that_cuts_it(monkeypatch):
    monkeypatch.setattr(frames, "origin", of_this_file)
    worst: list[object] = []
    worst += zip((1.0,), (2.0,), strict=True)  # what puts something in
    worst[3:] = []
    with open(__file__) as file:
        line = 1 + next(n for n, text in enumerate(file) if text.rstrip().endswith("something in"))
    assert keepers.filled_at("worst") == f"{frames.short_name(__file__)}:{line}"


def test_the_line_that_pushes_into_a_heap(tmp_path, monkeypatch):
    path = tmp_path / "train.py"
    path.write_text(
        "heapq.heappush(\n    self.hardest, (loss, kept)\n)\nheapq.heappop(self.hardest)"
    )
    monkeypatch.setattr(keepers.source, "users_files", lambda: [str(path)])
    assert keepers.pushed_at("hardest").endswith(":1")
    assert keepers.pushed_at("loss") == ""


def test_of_tensors_without_graphs_the_largest_pile_is_looked_at_first(monkeypatch):
    """A short list of small ones is more tensors and next to no memory."""
    monkeypatch.setattr(frames, "origin", of_this_file)
    monkeypatch.setattr(keepers.session, "torch", torch)
    keeper = keepers.GrowingContainer()
    lately, buckets, tensors = [], [], [torch.ones(3) for _ in range(150)]
    assert looked(tensors, keeper) == {}
    for _ in range(70):
        lately += [torch.ones(2), torch.ones(2)]
        buckets.append(torch.ones(5000))
        tensors[:0] = [*lately[-2:], buckets[-1]]
    assert looked(tensors, keeper)["kept_in"] == "buckets"


def test_a_pile_among_more_tensors_of_another_shape_is_found_at_the_second_look(monkeypatch):
    """Weights, gradients and states of the optimizer are older, and more."""
    monkeypatch.setattr(frames, "origin", of_this_file)
    monkeypatch.setattr(keepers.session, "torch", torch)
    keeper = keepers.GrowingContainer()
    weights = iter([torch.ones(3) for _ in range(150)])
    tensors, shown = list(weights), {}
    assert looked(tensors, keeper) == {}
    for step in range(70):
        shown[step] = torch.ones(2)
        tensors.insert(0, shown[step])
    assert looked(tensors, keeper)["kept_in"] == "shown"


def test_closures_that_hold_on_to_tensors_lie_in_the_container_of_them(monkeypatch):
    monkeypatch.setattr(frames, "origin", of_this_file)
    keeper, reports, tensors = keepers.GrowingContainer(), deque(), []

    def closed(worst):
        return lambda: worst.max()

    for _ in range(60):
        tensors.append(torch.ones(2))
        reports.append(closed(tensors[-1]))
    assert looked(tensors, keeper) == {}
    tensors.append(torch.ones(2))
    reports.append(closed(tensors[-1]))
    assert looked(tensors, keeper)["kept_in"] == "reports"


def test_what_does_not_grow_is_not_told(monkeypatch):
    monkeypatch.setattr(frames, "origin", of_this_file)
    monkeypatch.setattr(keepers.session, "torch", torch)
    keeper = keepers.GrowingContainer()
    shadow, tensors = pile_of(lambda values: {str(i): value for i, value in enumerate(values)})
    assert [looked(tensors, keeper), looked(tensors, keeper)] == [{}, {}]
    assert len(shadow) == 200


def test_an_attribute_is_named_and_a_container_of_torchs_is_not(monkeypatch):
    monkeypatch.setattr(frames, "origin", of_this_file)
    keeper, recorder = keepers.GrowingContainer(), Recorder()
    recorder.rows, tensors = pile_of(deque)
    assert looked(tensors, keeper) == {}
    tensors.append(torch.ones(2))
    recorder.rows.append(tensors[-1])
    assert looked(tensors, keeper)["kept_in"] == "rows"
    del recorder
    monkeypatch.undo()
    keeper = keepers.GrowingContainer()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1)) for _ in range(40)], 0.1)
    parameters = [*optimizer.param_groups[0]["params"]]
    assert keepers._most_common(parameters, (parameters,))[0] == ""


def test_exceptions_that_are_kept_keep_the_tensors_of_their_frames():
    def fail():
        values = torch.ones(2)
        raise ValueError(len(values))

    failures = []
    for _ in range(40):
        try:
            fail()
        except ValueError as error:
            failures.append(error)
    raised_in = failures[20].__traceback__.tb_next.tb_frame
    assert keepers._pile_above(raised_in.f_locals["values"], ()) is failures


@pytest.mark.parametrize("by_step", [False, True], ids=["list", "dict"])
@pytest.mark.parametrize("kind", [dict, OrderedDict])
@pytest.mark.parametrize("layers", [4, 30])
def test_states_of_a_model_pile_up_in_the_list_or_dict_of_them(monkeypatch, kind, layers, by_step):
    monkeypatch.setattr(frames, "origin", of_this_file)
    keeper, recorder, tensors = keepers.GrowingContainer(), Recorder(), []
    if by_step:
        recorder.rows = {}

    def keep(count):
        for _ in range(count):
            state = kind((f"layer.{n}.weight", torch.ones(2)) for n in range(layers))
            tensors.extend(state.values())
            if by_step:
                recorder.rows[len(recorder.rows)] = state
            else:
                recorder.rows.append(state)

    keep(60)
    assert looked(tensors, keeper) == {}
    keep(5)
    assert looked(tensors, keeper)["kept_in"] == "rows"


def test_outputs_are_found_among_the_many_tensors_that_their_graphs_keep(monkeypatch):
    monkeypatch.setattr(frames, "origin", of_this_file)
    monkeypatch.setattr(keepers.session, "torch", torch)
    keeper, outputs = keepers.GrowingContainer(), []
    start = torch.ones(2, requires_grad=True)

    def keep(count):
        for _ in range(count):
            outputs.append((start * 2, "played"))

    keep(30)
    of_graphs_alone = [torch.ones(1) for _ in range(200)]
    held_by_torch = iter([of_graphs_alone])
    assert keeper.look(next(held_by_torch), beside=(of_graphs_alone,)) == {}
    keep(10)
    assert keeper.look(of_graphs_alone, beside=())["kept_in"] == "outputs"


def test_what_a_closure_reaches_through_a_dict_lies_in_the_container_of_closures(monkeypatch):
    monkeypatch.setattr(frames, "origin", of_this_file)
    keeper, waiting, tensors = keepers.GrowingContainer(), [], []

    def told_later(told):
        return lambda: told["features"].max()

    for count in (60, 20):
        for _ in range(count):
            tensors.append(torch.ones(2))
            waiting.append(told_later({"features": tensors[-1], "loss": 0.0}))
        found = looked(tensors, keeper)
    assert found["kept_in"] == "waiting"


def test_records_that_a_handler_of_logging_holds_back_are_named(monkeypatch):
    monkeypatch.setattr(frames, "origin", of_this_file)
    handler, keeper, tensors = MemoryHandler(10_000), keepers.GrowingContainer(), []
    for count in (60, 20):
        for _ in range(count):
            tensors.append(torch.ones(2))
            record = logging.LogRecord("n", logging.INFO, "f", 1, "%s", (tensors[-1],), None)
            handler.buffer.append(record)
        found = looked(tensors, keeper)
    assert found["kept_in"] == "MemoryHandler.buffer"


class Watched:
    """A context that holds a tensor until it is left."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


def contexts_pile_up(whole, tensors, count):
    for _ in range(count):
        tensors.append(torch.ones(2))
        whole.enter_context(Watched(tensors[-1]))


def test_contexts_that_a_stack_keeps_open_are_named(monkeypatch):
    monkeypatch.setattr(frames, "origin", of_this_file)
    keeper, tensors = keepers.GrowingContainer(), []
    with contextlib.ExitStack() as whole:
        for count in (60, 20):
            contexts_pile_up(whole, tensors, count)
            found = looked(tensors, keeper)
        assert found["kept_in"] == "whole"
        line = inspect.getsourcelines(contexts_pile_up)[1] + 3
        assert found["kept_site"].endswith(f"test_keepers.py:{line}")


@pytest.mark.parametrize(("budget_ns", "found"), [(-1, []), (10**11, ["history"])])
def test_a_look_goes_through_all_objects_for_a_while_only(monkeypatch, budget_ns, found):
    """With 400,000 objects each walk takes 30 ms, which the training would wait for."""
    monkeypatch.setattr(keepers, "MAX_WALKS_NS", budget_ns)
    history = [torch.ones(2) for _ in range(100)]
    walks = keepers.Walks()
    holders = walks.referrers(history[0])
    assert ["history" for holder in holders if holder is history] == found
    assert walks.spent_ns > 0 or not found


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_lists_that_are_one_of_many_are_told_by_what_holds_them(monkeypatch, kind):
    monkeypatch.setattr(frames, "origin", of_this_file)
    keeper = keepers.GrowingContainer()
    latest, tensors = kind(), []
    for step in range(16):
        tensors += [torch.ones(3) for _ in range(25)]
        latest[step] = tensors[-25:]  # keeps the states
        if step == 11:
            assert looked(tensors, keeper) == {}
    assert looked(tensors, keeper)["kept_in"] == "latest"


def test_a_list_among_other_things_is_told_itself(monkeypatch):
    monkeypatch.setattr(frames, "origin", of_this_file)
    keeper = keepers.GrowingContainer()
    rest = {"pile": [torch.ones(2) * i for i in range(200)], "step": 3, "name": "run"}
    keeper.look(tuple(rest["pile"]), beside=())
    rest["pile"].extend(torch.ones(2) for _ in range(40))
    assert keeper.look(tuple(rest["pile"]), beside=()).get("kept_in") != "rest"


def test_a_log_of_a_librarys_object_is_named_by_who_fills_it(monkeypatch):
    """As ``trainer.state.log_history``, whose class is the library's."""
    monkeypatch.setattr(frames, "origin", of_this_file)
    state = type("State", (), {"__module__": "torch"})()
    state.log_entries = []

    def note(count):
        for _ in range(count):
            entry = {"states": [torch.ones(2) for _ in range(3)]}
            state.log_entries.append(entry)
        return [tensor for entry in state.log_entries for tensor in entry["states"]]

    keeper = keepers.GrowingContainer()
    assert looked(note(60), keeper) == {}
    assert looked(note(30), keeper)["kept_in"] == "log_entries"
