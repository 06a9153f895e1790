"""The estimator as a user drives it, alone and above a run; the setups are small, the formula tier
answers.
"""

from __future__ import annotations

from dataclasses import replace
from threading import Event

import pytest
from tui_pilot import press, screen_text, settle, started
from tui_support import START_NS, write_run

from gputop.app.estimator import EstimatorApp
from gputop.feed.build import build
from gputop.feed.estimator import Estimator, RunSetup
from gputop.feed.examples import EXAMPLES
from gputop.feed.form import GPUS, Form, applies, command, differences, shown
from gputop.feed.plots import Trouble
from gputop.render import vram_fits
from gputop.render.rows import row_text
from gputop.render.vram import short_gpu
from gputop.screens.dialog import ChoiceDialog, TextDialog
from gputop.screens.estimator import EstimatorScreen
from gputop.screens.models import ModelDialog, matching
from gputop.tracing import Watch, run
from gputop.widgets.estimate_form import draw as draw_form
from gputop_analysis import catalog
from gputop_analysis.vram.fits import computes
from gputop_analysis.vram.options import OPTION, setup_of
from gputop_analysis.vram.rules import check
from gputop_probes.record.reader import RunRecord


@pytest.fixture(autouse=True)
def _no_store(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def setup():
    return setup_of(catalog.model("gpt2"), {"seq": 512, "micro_batch": 4})


def screen_of(app) -> EstimatorScreen:
    """The screen, as what it is."""
    return app.screen


def answer_of(app):
    return app.screen.query_one("#answer").answer


# ---- the form as data


def test_an_arrow_never_ends_at_a_rule():
    """Whatever an arrow key changes in an example, the result can be trained."""
    for example in EXAMPLES:
        form = Form(setup_of(catalog.model(example.model), example.values))
        check(form.setup)
        for line in form.lines():
            for direction in (1, -1):
                check(form.stepped(line.name, direction).setup)


def test_steps_go_up_and_down_and_come_back(setup):
    form = Form(setup)
    assert form.stepped("seq", 1).setup.seq == 1024
    assert form.stepped("seq", 1).stepped("seq", -1).setup == setup
    assert form.given("seq", "700").stepped("seq", 1).setup.seq == 1024
    assert (
        form.stepped("checkpointing", 1).setup.checkpointing == OPTION["checkpointing"].choices[1]
    )
    assert form.stepped("gpu", 1).gpu == GPUS[1] and form.stepped("gpu", -1).gpu == GPUS[-1]
    assert form.stepped("model", 1) == form
    assert form.given("seq", 1024).stepped("seq", 1).setup.seq == 1024, (
        "gpt2 has positions for so many"
    )


def test_what_goes_together_changes_together(setup):
    sharded = Form(setup).given("sharding", "fsdp2")
    assert sharded.setup.parallel.dp == 8
    assert sharded.given("dp", 1).setup.parallel.sharding == "none"
    qlora = Form(setup).given("lora_rank", 16).given("quant", "nf4")
    assert qlora.setup.quantized == "nf4" and qlora.given("lora_rank", 0).setup.quantized == ""


def test_undo_and_base(setup):
    form = Form(setup).stepped("seq", 1).marked().stepped("micro_batch", 1)
    assert form.base is not None and list(differences(form.base, form.setup)) == [
        ("micro batch", "4", "6")
    ]
    assert form.undone().undone().setup == setup and form.undone().undone().undone().setup == setup
    assert form.marked().marked().base is None


def test_another_model_takes_away_what_it_cannot_have():
    form = Form(setup_of(catalog.model("qwen2.5-vl-7b"), {"images": 2, "freeze": "vision"}))
    assert "images" in [line.name for line in form.lines()]
    other = form.of_model(catalog.model("gpt2"))
    assert other.setup.images == 0 and other.setup.freeze == ()
    assert not applies("images", other.setup) and not applies("ep", other.setup)


def test_the_command_asks_the_same(setup):
    from gputop.cli.fit.estimate import _setup, parser

    form = Form(
        setup_of(
            setup.model,
            {
                "seq": 512,
                "lora_rank": 8,
                "quant": "nf4",
                "clip_grad": False,
                "freeze": "embeddings",
            },
        )
    )
    words = command(replace(form, gpu="H100")).split()[2:]
    options = parser().parse_args(words)
    assert _setup(options) == form.setup and options.gpu == "H100"


def test_models_are_found_by_any_of_their_words():
    assert [name for name, _ in matching("llama-3 70b")][:1] == ["llama-3-70b"]
    assert not matching("no such model")
    assert len(matching("")) == len(catalog.models())


# ---- the screen


async def test_a_change_is_estimated_at_once_and_compared(setup):
    app = EstimatorApp(setup)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        first = answer_of(app).estimate
        assert first is not None and first.setup == setup
        await press(app, pilot, "down", "down", "b", "right")
        now = answer_of(app)
        assert now.estimate.setup.seq == 1024 and now.base.setup == setup
        assert "base: seq 512 → 1024" in screen_text(app) and "against the base" in screen_text(app)
        for size in ((60, 20), (80, 24)):
            await pilot.resize_terminal(*size)
            await settle(app, pilot)
            line = next(row for row in screen_text(app).splitlines() if "512 → 1024" in row)
            assert "+" in line  # the headline has no room for the difference
        await press(app, pilot, "u")
        assert answer_of(app).estimate.setup == setup


async def test_values_are_typed_and_wrong_ones_refused(setup):
    app = EstimatorApp(setup)
    async with app.run_test(size=(120, 40)) as pilot:
        await press(app, pilot, "down", "down", "7", "6", "8", "enter")
        assert screen_of(app).form.setup.seq == 768
        await press(app, pilot, "0", "enter")
        assert screen_of(app).form.setup.seq == 768
        await press(app, pilot, "1", "escape")
        assert screen_of(app).form.setup.seq == 768 and app.screen_stack[-1] is app.screen


async def test_a_lever_is_applied_by_enter(setup):
    app = EstimatorApp(setup)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        wanted = answer_of(app).estimate.levers[1]
        await press(app, pilot, "tab", "down", "enter")
        assert screen_of(app).form.setup == wanted.setup
        assert answer_of(app).estimate.peak.reserved == wanted.reserved


async def test_a_rule_is_said_and_the_last_answer_stays(setup):
    app = EstimatorApp(setup)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        screen_of(app)._show(screen_of(app).form.given("tp", 5))
        await settle(app, pilot)
        answer = answer_of(app)
        assert "tensor parallelism 5" in answer.problem and answer.estimate.setup == setup
        assert "tensor parallelism 5" in screen_text(app)


async def test_models_and_examples_are_picked(setup):
    app = EstimatorApp(setup)
    async with app.run_test(size=(80, 24)) as pilot:
        await press(app, pilot, "slash")
        assert isinstance(app.screen, ModelDialog)
        await press(
            app,
            pilot,
            *("minus" if c == "-" else "full_stop" if c == "." else c for c in "qwen2.5-0.5b"),
            "enter",
        )
        assert screen_of(app).form.setup.model.name == "qwen2.5-0.5b"
        await press(app, pilot, "x")
        assert isinstance(app.screen, ChoiceDialog)
        await press(app, pilot, "1")
        assert screen_of(app).form.setup.quantized == "nf4"
        await press(app, pilot, "n")
        assert isinstance(app.screen, TextDialog)


async def test_a_trace_shows_its_progress_and_its_answer(setup):
    from gputop.api import answer

    told = []

    def tracer(asked, gpu, progress):
        progress("half way")
        told.append(asked)
        found = answer(asked, gpu=gpu)
        return replace(found, peak=replace(found.peak, tier="trace"))

    app = EstimatorApp(setup, tracer)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "t")
        assert told == [setup] and answer_of(app).estimate.peak.tier == "trace"
        await press(app, pilot, "down", "down", "right")
        assert answer_of(app).estimate.peak.tier != "trace"


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_trace_that_runs_is_seen_and_ended_by_its_own_key(setup, size):
    over = Event()

    def tracer(asked, gpu, watch):
        watch("layer 3 of 12")
        while not watch.stopped:
            over.wait(0.02)
        over.set()
        raise ValueError("killed")

    app = EstimatorApp(setup, tracer)
    async with app.run_test(size=size) as pilot:
        await settle(app, pilot)
        await pilot.press("t")
        for _ in range(200):
            if "layer 3 of 12" in screen_text(app):
                break
            await pilot.pause(0.02)
        assert " s: layer 3 of 12" in screen_text(app) and "t stops it" in screen_text(app)
        await press(app, pilot, "t")
        assert over.is_set() and "layer 3" not in screen_text(app) and not answer_of(app).problem


async def until(pilot, reached):
    """Until something has come about that a timer brings."""
    for _ in range(500):
        if reached():
            return
        await pilot.pause(0.02)
    raise AssertionError("it did not come about")


async def test_a_setup_that_stands_is_refined_by_itself_and_the_keys_go_on_meanwhile(setup):
    from gputop.api import answer

    go_on, asked_of = Event(), []

    def tracer(asked, gpu, watch):
        asked_of.append(asked)
        while not (go_on.is_set() or watch.stopped):
            go_on.wait(0.02)
        if watch.stopped:
            raise ValueError("killed")
        quick = answer(asked, gpu=gpu)
        return replace(quick, peak=replace(quick.peak, tier="trace"))

    app = EstimatorApp(setup, tracer, refine_s=0.01)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: len(asked_of) == 1)
        quick = answer_of(app).estimate
        assert quick.peak.tier != "trace" and "t stops it" in screen_text(app)
        await pilot.press("down", "down", "right")  # the first trace ends, the new setup's begins
        await until(pilot, lambda: len(asked_of) == 2)
        assert asked_of[1] != setup and answer_of(app).estimate.setup == asked_of[1]
        go_on.set()
        await until(pilot, lambda: answer_of(app).estimate.peak.tier == "trace")
        line = f"GiB by the {quick.peak.tier} tier, "
        assert line in screen_text(app) and " traced" in screen_text(app)
        await settle(app, pilot)
        assert len(asked_of) == 2 and not answer_of(app).problem


async def test_a_trace_that_nobody_asked_for_fails_quietly(setup):
    def tracer(*_):
        raise ValueError("no such operator")

    app = EstimatorApp(setup, tracer, refine_s=0.01)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: any("no such operator" in n.message for n in notices(app)))
        assert answer_of(app).estimate.peak.tier != "trace" and not answer_of(app).problem


def notices(app):
    return list(app._notifications)


def test_a_trace_is_ended_with_its_process(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'trace: began' >&2\nexec sleep 60\n", encoding="utf-8")
    python.chmod(0o755)
    watch = Watch(lambda line: watch.stop())
    with pytest.raises(ValueError, match="exit code -9"):
        run([], tmp_path / "log", str(python), watch)


def test_a_trace_that_fails_says_why_and_which_tier_answers(setup):
    def tracer(*_):
        raise ImportError("no torch in this Python")

    result = Estimator(tracer).trace(Form(setup), lambda _: None)
    assert (
        "no torch in this Python" in result.problem
        and "tier answers" in result.problem
        and result.estimate
    )


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50), (60, 16)])
async def test_every_size_shows_the_answer(setup, size):
    app = EstimatorApp(setup)
    async with app.run_test(size=size) as pilot:
        await settle(app, pilot)
        text = screen_text(app)
        assert "GiB" in text and "Setup" in text and "weights" in text


# ---- above a run


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = write_run(tmp_path_factory.mktemp("record") / "run", ranks=1, gpus=1, state="running")
    return build(RunRecord.open(folder), (), window_steps=500, now_ns=START_NS + 11 * 10**9)


async def test_one_key_opens_it_and_escape_goes_back(running):
    async with started(running, size=(120, 40)) as (app, pilot):
        await press(app, pilot, "v")
        assert isinstance(app.screen, EstimatorScreen)
        await press(app, pilot, "escape")
        assert app.screen is app.main and app.feed.pages.wanted is None


async def test_a_run_of_an_unknown_model_is_told_beside_the_example(running, setup):
    async with started(running, size=(120, 40)) as (app, pilot):
        await press(app, pilot, "v")
        screen_of(app).receive(running._replace(page=Trouble("not told")), None)
        await settle(app, pilot)
        assert "an example: the run's model is not known" in screen_text(app)
        screen_of(app).receive(running._replace(page=RunSetup(setup, "mine")), None)
        await settle(app, pilot)
        assert "from run mine" in screen_text(app)


async def test_it_starts_from_the_live_run(running, setup):
    async with started(running, size=(120, 40)) as (app, pilot):
        await press(app, pilot, "v")
        screen_of(app).receive(running._replace(page=RunSetup(setup, "mine")), None)
        await settle(app, pilot)
        assert screen_of(app).form.setup == setup and "from run mine" in screen_text(app)
        await press(app, pilot, "down", "down", "right")
        assert screen_of(app).copy_text() == "gputop estimate --run mine --seq 1024"


async def test_where_a_setup_comes_from_is_seen_in_a_narrow_terminal(running, setup):
    async with started(running, size=(80, 24)) as (app, pilot):
        await press(app, pilot, "v")
        screen_of(app).receive(
            running._replace(page=RunSetup(setup, "20261122-031603-train-llama-9828")), None
        )
        await settle(app, pilot)
        assert "from run 202" in screen_text(app).splitlines()[0]


# ---- where it fits, and the form


@pytest.fixture(scope="module")
def estimate():
    from gputop.api import answer

    values = {"seq": 4096, "lora_rank": 16, "checkpointing": "full"}
    return answer(setup_of(catalog.model("llama-3.1-8b"), values))


@pytest.mark.parametrize("width", [26, 47, 78, 125])
@pytest.mark.parametrize("limit", [2, 6, 99])
def test_all_sizes_are_told_or_that_there_are_larger_ones(estimate, width, limit):
    found = vram_fits.sizes(estimate)
    drawn = vram_fits.rows(found, width, limit)
    text = [row_text(row) for row in drawn]
    assert all(len(line) <= width for line in text) and len(drawn) <= limit
    if limit == 99:
        assert len(drawn) == len(found) and "288 GB" in text[-1]
    if limit == 6:
        assert text[-1].startswith("… and larger: ") and "288 GB" in text[-1]


def test_only_gpus_that_compute_in_the_dtype_are_named(estimate):
    assert estimate.setup.dtype == "bf16"
    named = {name for size in vram_fits.sizes(estimate) for name in size.names}
    assert "V100" not in named and "P100" not in named and {"H100", "A4500", "MI300X"} <= named
    for lever in estimate.levers:
        if lever.gpu:
            assert computes(catalog.gpu(lever.gpu), "bf16") and short_gpu(lever.gpu) in named
    assert short_gpu("GeForce RTX 5080") == "RTX 5080" and short_gpu("P100-PCIe-16GB") == "P100"


@pytest.mark.parametrize("width", [30, 40, 46])
def test_a_line_of_the_form_is_cut_only_where_it_is_full(estimate, width):
    form = Form(estimate.setup)
    for line, row in zip(form.lines(), lines_of(form, width), strict=True):
        text = row_text(row)
        assert len(text) == width
        if len(line.label) + len(shown(line)) <= width - 4:
            assert line.label in text and shown(line) in text
        else:
            assert "…" in text


def lines_of(form, width):
    """The form without its headings."""
    drawn = draw_form(form, width, 0, True)
    return [row for row in drawn if len(row) > 1]


@pytest.mark.parametrize("size", [(60, 20), (120, 40), (200, 60)])
async def test_the_list_of_models_uses_the_rows_and_says_how_many_there_are(setup, size):
    app = EstimatorApp(setup)
    async with app.run_test(size=size) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "slash")
        text = screen_text(app)
        shown_ = [name for name, _ in matching("") if f" {name} " in text]
        assert f"of {len(matching(''))}" in text and len(shown_) >= size[1] * 0.92 - 14
        if size[0] < 100:
            assert all(line.startswith(("│", "╭", "╰")) for line in text.splitlines()[5:12])


def test_an_adapter_takes_the_place_of_lora_and_gives_it_back():
    form = Form(setup_of(catalog.model("smollm2-135m"), {"lora_rank": 16, "quant": "nf4"}))
    adapted = form.given("adapter", "ia3")
    assert adapted.setup.lora is not None and adapted.setup.lora.rank == 0
    assert "IA3" in adapted.setup.lora.peft and not adapted.setup.quantized
    back = adapted.given("lora_rank", 8)
    assert back.setup.lora is not None and (back.setup.lora.rank, back.setup.lora.peft) == (8, "")
