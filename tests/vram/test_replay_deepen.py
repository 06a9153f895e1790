"""All layers from four: against logs of all layers, made up and traced by the trace of models."""

from dataclasses import asdict, replace

import pytest
from vram_log import LogBuilder, training

from gputop_analysis.vram.deepen import deepen
from gputop_analysis.vram.eventlog import ordered, parse
from gputop_analysis.vram.replay import peak
from gputop_analysis.vram.setup import Lora, ModelShape, Setup

SHAPE = ModelShape(
    "tiny",
    hidden=64,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=16,
    ffn=160,
    vocab=500,
    max_position=64,
)
SETUPS = {
    "full": Setup(
        SHAPE,
        seq=64,
        micro_batch=2,
        accumulation=2,
        weights="fp32",
        checkpointing="full",
        optimizer="adafactor",
    ),
    "adapters": Setup(
        SHAPE, seq=64, micro_batch=2, lora=Lora(8, ("q_proj", "v_proj")), optimizer="adamw-loop"
    ),
    "masters": Setup(SHAPE, seq=64, micro_batch=2, master_weights=True, optimizer="adamw-8bit"),
}
"""With updates that go from one weight to the next and free what they needed for the one before."""


@pytest.mark.parametrize("layers", [5, 6, 9, 33])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_events_are_those_of_a_log_of_all_layers(layers, checkpointing):
    deep, whole = (
        deepen(training(4, checkpointing=checkpointing), layers),
        training(layers, checkpointing=checkpointing),
    )
    assert deep.events == whole.events
    for column in ("bytes", "stream", "layer"):
        assert getattr(deep, column) == getattr(whole, column)
    assert deep.marks == whole.marks
    assert peak(deep) == peak(whole)


def test_four_of_four_is_the_log_itself():
    log = training(4)
    assert deepen(log, 4) is log


@pytest.mark.parametrize("layers", [2, 3])
def test_too_few_traced_layers_are_refused(layers):
    with pytest.raises(ValueError, match=f"{layers} layers cannot stand for 8"):
        deepen(training(layers), 8)


def test_unlike_middle_layers_are_refused():
    build = LogBuilder().mark("forward")
    for layer, size in enumerate((1, 2, 3, 1)):
        build.make(size << 20, layer=layer)
    with pytest.raises(ValueError, match="unlike"):
        deepen(build.log(), 8)


def test_what_was_made_before_all_layers_and_is_freed_by_one_after_the_other_is_refused():
    build = LogBuilder().mark("forward")
    before = [build.make(1 << 20) for _ in range(4)]
    for layer in range(4):
        build.make(2 << 20, layer=layer)
        build.free(before[layer])
    with pytest.raises(ValueError, match="far one"):
        deepen(build.log(), 8)


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """Logs of the trace of models, by setup and layers."""
    model_trace = pytest.importorskip("gputop_tracer.model_trace")
    pytest.importorskip("transformers")
    from gputop_analysis.vram.eventlog import load

    folder = tmp_path_factory.mktemp("logs")

    def log(setup, layers):
        tracker = model_trace.trace(
            asdict(setup.but(model=replace(SHAPE, layers=layers))), None, full=True
        )
        tracker.log.save(str(folder / "log.json.gz"), tracker.meta)
        return load(folder / "log.json.gz")

    return {name: (log(setup, 4), log(setup, 6)) for name, setup in SETUPS.items()}


@pytest.mark.parametrize("name", SETUPS)
def test_a_traced_model_deepens_event_for_event(traced, name):
    shallow, whole = traced[name]
    deep = deepen(shallow, 6)
    assert deep.events == whole.events
    assert deep.layer == whole.layer
    ours, theirs = peak(deep), peak(whole)
    assert (ours.allocated, ours.reserved, ours.layers) == (
        theirs.allocated,
        theirs.reserved,
        theirs.layers,
    )
    assert ours.operation == theirs.operation


def test_the_order_in_which_many_layers_are_freed_at_once_does_not_count():
    def document(frees):
        storages = [[1 << 20, 0, 0, 0, 0, layer] for layer in range(4)]
        whole = {
            "format": 1,
            "strings": [""],
            "storages": storages,
            "events": [1, 2, 3, 4, *frees],
            "marks": [],
        }
        return ordered(parse(whole)).events

    assert document([-3, -1, -4, -2]) == document([-2, -4, -1, -3])
    assert document([-4, -3]) == [1, 2, 3, 4, -4, -3], "two layers keep their own order"
